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
# Of runs that did not time the collectives inside layers: they are in the first of these.
WHOLE, TRANSFERS = "compute with collectives", "transfers"
OLDER_TERMS = (WHOLE, TRANSFERS, SYNC, UPDATE)


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

    compute: forward and backward of all micro-batches, less collectives inside layers.
    communication: these collectives, and what the stage sends to its neighbours. Where a run did
    not time them and the prediction has some, the first two are `compute with collectives` and
    `transfers`. sync, update: once an iteration. iteration_ms: of the run, which shares are of.
    """

    template: int
    stage: int
    depth: int
    gpu: str
    iteration_ms: float
    terms: tuple[TermError, ...]

    @property
    def split(self) -> bool:
        """Whether collectives inside layers are communication, on both sides."""
        return self.terms[0].term != WHOLE

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

    compute, comm, send = predicted.compute_ms, predicted.comm_ms, predicted.send_ms
    passes, sent = middle("compute_ms"), middle("send_ms")
    once = (
        TermError(SYNC, predicted.sync_ms, middle("sync_ms")),
        TermError(UPDATE, predicted.update_ms, middle("update_ms")),
    )
    timed = [times.comm_ms for times in measured if times.comm_ms is not None]
    if comm and len(timed) < len(measured):
        return (
            TermError(WHOLE, (compute + comm) * count, passes * count),
            TermError(TRANSFERS, send * count, sent),
            *once,
        )
    inside = statistics.median(timed) if timed else 0.0  # without a group there is none
    return (
        TermError(COMPUTE, compute * count, max(0.0, passes - inside) * count),
        TermError(COMMUNICATION, (comm + send) * count, inside * count + sent),
        *once,
    )
