"""What the store hands out and takes in: dataclasses, never a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from specs.cluster import Cluster
from specs.measurement import Measurement, RunTrace
from specs.model import Model
from specs.plan import Plan
from specs.profile import HostProfile, LayerProfile, LayerRefusal, LinkProfile, ProfileRun
from specs.workload import Workload


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """A layer profile and the run it comes from."""

    run: ProfileRun
    profile: LayerProfile


@dataclass(frozen=True, slots=True)
class StoredRefusal:
    """A key that a run could not profile."""

    run: ProfileRun
    refusal: LayerRefusal


@dataclass(frozen=True, slots=True)
class StoredLink:
    """A link profile and the run it comes from."""

    run: ProfileRun
    profile: LinkProfile


@dataclass(frozen=True, slots=True)
class StoredHost:
    """A host profile and the run it comes from."""

    run: ProfileRun
    profile: HostProfile


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan as stored. Two are the same where plan, planner, options and profile runs are.

    plan: with its prediction. memory_bytes: predicted for the fullest GPU. status: `fits`,
    `does not fit` or `unpriced`. planning_s, evaluations, rejected: the effort of the search that
    found it last. profile_runs: ids, also of runs that were deleted since.
    """

    id: int
    plan: Plan
    plan_hash: str
    planning_s: float
    evaluations: int
    rejected: Mapping[str, int]
    options: Mapping[str, Any]
    created: datetime
    profile_runs: tuple[int, ...]
    status: str
    memory_bytes: float | None = None
    updated: datetime | None = None

    @property
    def iteration_ms(self) -> float | None:
        """The predicted iteration time in ms; None for a plan without a prediction."""
        return self.plan.prediction.iteration_ms if self.plan.prediction else None


@dataclass(frozen=True, slots=True)
class StoredMeasurement:
    """One measured iteration of a stored plan. created: when it was written, in UTC."""

    plan_id: int
    measurement: Measurement
    created: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class StoredTrace:
    """The trace of one run of a stored plan. created: when it was written, in UTC."""

    plan_id: int
    trace: RunTrace
    created: datetime = field(compare=False)


@dataclass(frozen=True, slots=True)
class NewComparison:
    """The question that planners are asked. suite: names the table it belongs to, or empty."""

    title: str
    model: Model
    workload: Workload
    cluster: Cluster
    suite: str = ""
    origin: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """What one planner answered.

    status: `ok`, `no plan`, `budget` or `unsupported`, with its reason. iteration_ms: the plan's
    price by our cost model. rejected: candidates refused, by reason.
    """

    planner: str
    plan_id: int | None
    status: str
    reason: str = ""
    iteration_ms: float | None = None
    search_s: float = 0.0
    evaluations: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredComparison:
    """A comparison with the rows it has so far, in the order they came."""

    id: int
    comparison: NewComparison
    rows: tuple[ComparisonRow, ...]
    created: datetime


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Best plan so far after so many evaluations; None before the first that fits."""

    evaluations: int
    best_iteration_ms: float | None
    elapsed_s: float | None = None


@dataclass(frozen=True, slots=True)
class SearchCurve:
    """How a planner got to its plan. phase: `planning` or `learning`."""

    planner: str
    points: tuple[CurvePoint, ...]
    seed: int = 0
    phase: str = "planning"


@dataclass(frozen=True, slots=True)
class StoredCurve:
    """A search curve of a comparison."""

    comparison_id: int
    curve: SearchCurve


@dataclass(frozen=True, slots=True)
class NewReconfiguration:
    """One live change from a plan to another.

    phases_ms: ms of each phase by name (plan, release, rebuild, transfer, build). bytes_per_rank:
    received by each rank. repeat: which time this event was done, from 0. run: groups the events
    of one training run, as in measurements.
    """

    event: str
    old_plan_id: int | None
    new_plan_id: int | None
    phases_ms: Mapping[str, float]
    bytes_per_rank: tuple[int, ...] = ()
    repeat: int = 0
    run: str = ""
    host: str = ""
    origin: str = ""
    status: str = "ok"
    reason: str = ""

    @property
    def total_ms(self) -> float:
        """All phases together, in ms."""
        return sum(self.phases_ms.values())


@dataclass(frozen=True, slots=True)
class StoredReconfiguration:
    """A reconfiguration as stored."""

    id: int
    reconfiguration: NewReconfiguration
    created: datetime


@dataclass(frozen=True, slots=True)
class NewPolicy:
    """A trained policy: trained on what, by which recipe, how good it is, where its file is."""

    run: str
    recipe: str
    models: Sequence[str]
    metrics: Mapping[str, Any]
    file_hash: str
    file: str = ""
    origin: str = ""
    host: str = ""
    seed: int = 0
    steps: int = 0
    training_s: float = 0.0
    status: str = "complete"


@dataclass(frozen=True, slots=True)
class StoredPolicy:
    """A policy as stored."""

    id: int
    policy: NewPolicy
    created: datetime
