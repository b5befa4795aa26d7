"""Planned against measured inside an iteration: every stage of a run, term by term."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from specs.measurement import Measurement, StageTimes
from specs.plan import Plan
from specs.prediction import StagePrediction

COMPUTE, COMMUNICATION, SYNC, UPDATE = "compute", "communication", "sync", "update"
TERMS = (COMPUTE, COMMUNICATION, SYNC, UPDATE)


@dataclass(frozen=True, slots=True)
class TermError:
    """One term of one stage over a whole iteration, in ms."""

    term: str
    predicted_ms: float
    measured_ms: float

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured; None for a term that took no time."""
        return self.predicted_ms / self.measured_ms - 1 if self.measured_ms > 0 else None


@dataclass(frozen=True, slots=True)
class StageError:
    """One stage of one run: medians over its iterations, beside what was predicted.

    compute: forward and backward of all micro-batches, collectives inside layers included.
    communication: what the stage sends to its neighbours. sync, update: once an iteration.
    iteration_ms: of the run, which shares are of.
    """

    template: int
    stage: int
    depth: int
    gpu: str
    iteration_ms: float
    terms: tuple[TermError, ...]

    @property
    def role(self) -> str:
        """Where the stage stands in its pipeline: the ends have embedding and head."""
        if self.depth == 1:
            return "only stage"
        if self.stage == 0:
            return "first stage"
        return "last stage" if self.stage == self.depth - 1 else "middle stage"

    def share(self, term: TermError) -> float:
        """(predicted - measured) as a share of the iteration: what the error weighs."""
        return (term.predicted_ms - term.measured_ms) / self.iteration_ms

    def to_json(self) -> dict[str, Any]:
        """The stage as plain values, units in the names."""
        return {
            "template": self.template,
            "stage": self.stage,
            "gpu": self.gpu,
            "role": self.role,
            "terms": [
                {
                    "term": term.term,
                    "predicted_ms": term.predicted_ms,
                    "measured_ms": term.measured_ms,
                    "error_percent": None if term.error is None else 100 * term.error,
                    "share_percent": 100 * self.share(term),
                }
                for term in self.terms
            ],
        }


def stage_errors(
    plan: Plan, measurements: Iterable[Measurement], iteration_ms: float
) -> tuple[StageError, ...]:
    """The stages of one run of a plan with a prediction; none where the run recorded none."""
    prediction = plan.prediction
    found: dict[tuple[int, int], list[StageTimes]] = defaultdict(list)
    for row in measurements:
        if not row.warm_up:
            for times in row.stages:
                found[times.template, times.stage].append(times)
    if prediction is None:
        return ()
    errors = []
    for (k, s), recorded in sorted(found.items()):
        if k >= len(plan.templates) or s >= plan.templates[k].depth:
            continue  # the stages of another plan: nothing here to hold them against
        template = plan.templates[k]
        count = statistics.median(replica.micro_batches for replica in template.replicas)
        terms = _terms(prediction.stages[k][s], recorded, count)
        errors.append(StageError(k, s, template.depth, template.stages[s].gpu, iteration_ms, terms))
    return tuple(errors)


def _terms(
    predicted: StagePrediction, measured: list[StageTimes], count: float
) -> tuple[TermError, ...]:
    """Per iteration of `count` micro-batches; a short last one is priced and counted as full."""

    def middle(name: str) -> float:
        return statistics.median(float(getattr(times, name)) for times in measured)

    compute = predicted.compute_ms + predicted.comm_ms
    return (
        TermError(COMPUTE, compute * count, middle("compute_ms") * count),
        TermError(COMMUNICATION, predicted.send_ms * count, middle("send_ms")),
        TermError(SYNC, predicted.sync_ms, middle("sync_ms")),
        TermError(UPDATE, predicted.update_ms, middle("update_ms")),
    )
