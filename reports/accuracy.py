"""Planned against measured: one row per run of a plan, read from the store."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from reports.runs import RunTime, Statistic, median_absolute_deviation, run_time
from reports.stage_errors import StageError, stage_errors
from specs.plan import Plan
from specs.prediction import Prediction
from specs.profile import Source

if TYPE_CHECKING:
    from db.records import StoredMeasurement, StoredPlan
    from db.store import Store

ONE_MACHINE, ACROSS_MACHINES = "one machine", "across machines"


@dataclass(frozen=True, slots=True)
class AccuracyRow:
    """One run of one plan beside what was predicted for it.

    source: where the profiles of the prediction come from; several are joined by ` + `. gpus: the
    GPUs the plan holds, by type. machines: nodes it runs on. layout: depth, TP, replicas and
    micro-batch per template, in short. run_to_run: spread of the plan's runs on this host, a share
    of their median; None with fewer than two. Peaks are of the fullest GPU; None where unknown.
    stages: term by term, where the run recorded them.
    """

    plan_id: int
    plan_hash: str
    run: str
    model: str
    gpus: tuple[tuple[str, int], ...]
    machines: int
    layout: str
    planner: str
    source: str
    host: str
    origin: str
    recorded: datetime
    predicted_ms: float
    time: RunTime
    profile_runs: tuple[int, ...]
    predicted_peak_bytes: float | None
    run_to_run: float | None = None
    stages: tuple[StageError, ...] = ()

    @property
    def measured_ms(self) -> float:
        """Iteration time of the run in ms."""
        return self.time.iteration_ms

    @property
    def error(self) -> float:
        """(predicted - measured) / measured: positive where the plan ran faster than predicted."""
        return self.predicted_ms / self.measured_ms - 1

    @property
    def spread(self) -> float | None:
        """MAD of the run's iterations as a share of their median; None for a published mean."""
        return None if self.time.mad_ms is None else self.time.mad_ms / self.measured_ms

    @property
    def memory_error(self) -> float | None:
        """(predicted - measured) / measured peak memory; None where either is missing."""
        if not self.time.peak_bytes or self.predicted_peak_bytes is None:
            return None
        return self.predicted_peak_bytes / self.time.peak_bytes - 1

    @property
    def hardware(self) -> str:
        """GPU types of the plan in alphabetical order: rows of one hardware may be averaged."""
        return " + ".join(sorted(gpu for gpu, _ in self.gpus))

    @property
    def gpu_label(self) -> str:
        """GPU counts and types: `4 × gh200 + 8 × a6000`."""
        return " + ".join(f"{count} × {gpu}" for gpu, count in self.gpus)

    @property
    def where(self) -> str:
        """Whether the plan crosses a network."""
        return ONE_MACHINE if self.machines == 1 else ACROSS_MACHINES

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What makes a run the same run in two reports: plan, planner, run, host."""
        return (self.plan_hash, self.planner, self.run, self.host)

    def to_json(self) -> dict[str, Any]:
        """The row with its units in the names; errors in percent."""
        return {
            "plan_id": self.plan_id,
            "plan_hash": self.plan_hash,
            "run": self.run,
            "model": self.model,
            "gpus": dict(self.gpus),
            "machines": self.machines,
            "layout": self.layout,
            "planner": self.planner,
            "source": self.source,
            "host": self.host,
            "origin": self.origin,
            "recorded": self.recorded.isoformat(),
            "predicted_ms": self.predicted_ms,
            "measured_ms": self.measured_ms,
            "measured_is": self.time.label,
            "mad_ms": self.time.mad_ms,
            "iterations": self.time.iterations,
            "warm_ups": self.time.warm_ups,
            "error_percent": 100 * self.error,
            "drift_percent": None if self.time.drift is None else 100 * self.time.drift,
            "run_to_run_percent": None if self.run_to_run is None else 100 * self.run_to_run,
            "profile_runs": list(self.profile_runs),
            "predicted_peak_bytes": self.predicted_peak_bytes,
            "measured_peak_bytes": self.time.peak_bytes,
            "memory_error_percent": (
                None if self.memory_error is None else 100 * self.memory_error
            ),
            "stages": [stage.to_json() for stage in self.stages],
        }


@dataclass(frozen=True)
class Accuracy:
    """All rows, ordered by plan and run, and how many runs are left out for which reason."""

    rows: tuple[AccuracyRow, ...]
    left_out: dict[str, int]
    unmeasured_plans: int


def source_label(sources: Iterable[str]) -> str:
    """The sources of one prediction as one label, most trusted first: `measured + estimated`."""
    trust = [source.value for source in Source]
    known = sorted(set(sources), key=lambda s: (trust.index(s) if s in trust else len(trust), s))
    return " + ".join(known) or "unknown"


def layout_label(plan: Plan) -> str:
    """A plan in short, per template: stages, TP degrees, replicas, micro-batch.

    `3 × (4 stages, tp 1·2, b 4)`: three replicas of four stages of TP degree 1 or 2 with
    micro-batches of four samples.
    """
    parts = []
    for template in plan.templates:
        degrees = "·".join(str(tp) for tp in sorted({stage.tp for stage in template.stages}))
        stages = "1 stage" if template.depth == 1 else f"{template.depth} stages"
        parts.append(
            f"{len(template.replicas)} × ({stages}, tp {degrees}, b {template.micro_batch})"
        )
    return " + ".join(parts)


def gpus_held(plan: Plan) -> tuple[tuple[str, int], ...]:
    """GPUs of each type that the plan holds (not those it leaves idle), in cluster order."""
    idle = plan.idle_gpus
    held = {gpu: count - idle.get(gpu, 0) for gpu, count in plan.cluster.gpus_by_type.items()}
    return tuple((gpu, count) for gpu, count in held.items() if count)


def fullest_gpu_bytes(prediction: Prediction) -> float | None:
    """The largest predicted memory of any stage, in bytes; None where none was predicted."""
    needs = [stage.memory.total for template in prediction.stages for stage in template]
    return max(needs, default=None)


def read_accuracy(store: Store) -> Accuracy:
    """Every run in the store beside its plan's prediction."""
    return accuracy_of(*plans_and_measurements(store))


def plans_and_measurements(
    store: Store,
) -> tuple[list[StoredPlan], list[StoredMeasurement]]:
    """Both, read in the order in which every measurement has its plan although runs come in."""
    measurements = store.measurements()
    return store.plans(), measurements


def accuracy_of(plans: Sequence[StoredPlan], measurements: Sequence[StoredMeasurement]) -> Accuracy:
    """The rows of these plans and measurements.

    A run is what shares plan, run name, host and origin. Left out, and counted by reason: runs of
    warm-ups only, runs whose plan has no prediction, runs of no length.
    """
    by_id = {stored.id: stored for stored in plans}
    runs: dict[tuple[int, str, str, str], list[StoredMeasurement]] = defaultdict(list)
    for stored in measurements:
        m = stored.measurement
        runs[(stored.plan_id, m.run, m.host, m.origin)].append(stored)

    left_out: Counter[str] = Counter()
    rows: list[AccuracyRow] = []
    for (plan_id, run, host, origin), group in sorted(runs.items()):
        plan = by_id[plan_id]
        prediction = plan.plan.prediction
        time = run_time(stored.measurement for stored in group)
        if time is None:
            left_out["only warm-up iterations"] += 1
        elif prediction is None:
            left_out["the plan has no prediction"] += 1
        elif time.iteration_ms <= 0:
            left_out["an iteration time of 0 ms"] += 1
        else:
            rows.append(
                AccuracyRow(
                    plan_id=plan_id,
                    plan_hash=plan.plan_hash,
                    run=run,
                    model=plan.plan.model.name,
                    gpus=gpus_held(plan.plan),
                    machines=len({place.node for *_, place in plan.plan.places()}),
                    layout=layout_label(plan.plan),
                    planner=plan.plan.planner,
                    source=source_label(prediction.sources),
                    host=host,
                    origin=origin,
                    recorded=max(stored.created or plan.created for stored in group),
                    predicted_ms=prediction.iteration_ms,
                    time=time,
                    profile_runs=prediction.profile_runs,
                    predicted_peak_bytes=fullest_gpu_bytes(prediction),
                    stages=stage_errors(
                        plan.plan, (stored.measurement for stored in group), time.iteration_ms
                    ),
                )
            )
    measured = {stored.plan_id for stored in measurements}
    return Accuracy(
        tuple(_with_run_to_run(rows)), dict(left_out), sum(i not in measured for i in by_id)
    )


def _with_run_to_run(rows: Sequence[AccuracyRow]) -> list[AccuracyRow]:
    """The rows with the spread of a plan's runs on one host beside each of them."""
    repeats: dict[tuple[int, str], list[float]] = defaultdict(list)
    for row in rows:
        # A published mean and our own median are not repeats of one another.
        if row.time.statistic is Statistic.MEDIAN:
            repeats[(row.plan_id, row.host)].append(row.measured_ms)
    spreads = {
        key: median_absolute_deviation(times) / statistics.median(times)
        for key, times in repeats.items()
        if len(times) > 1
    }
    return [
        replace(row, run_to_run=spreads.get((row.plan_id, row.host)))
        if row.time.statistic is Statistic.MEDIAN
        else row
        for row in rows
    ]
