"""Planned against measured: one run of a plan beside its prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from runtime.records import Iteration, drift_of, stage_times
from specs.measurement import StageTimes
from specs.plan import Plan
from specs.prediction import StagePrediction

STEADY = 0.10  # an iteration counts as steady where the reference work was at most this much slower
WINDOW = 0.05  # profiles before and after a run that predict further apart than this: no window


@dataclass(frozen=True, slots=True)
class Spread:
    """A median in ms, its median absolute deviation, and how many figures it is of."""

    ms: float
    mad_ms: float
    count: int

    @classmethod
    def of(cls, values_ms: Sequence[float]) -> Spread:
        """The spread of at least one figure."""
        middle = median(values_ms)
        return cls(middle, median(abs(value - middle) for value in values_ms), len(values_ms))


@dataclass(frozen=True, slots=True)
class StageRow:
    """One stage: what was predicted (None without a prediction) and what was measured."""

    measured: StageTimes
    predicted: StagePrediction | None
    peak_bytes: int

    @property
    def predicted_ms(self) -> float | None:
        """Forward, backward and collectives inside layers of one micro-batch."""
        return self.predicted.compute_ms + self.predicted.comm_ms if self.predicted else None

    @property
    def error(self) -> float | None:
        """Predicted over measured forward + backward, less 1."""
        return error_of(self.predicted_ms, self.measured.compute_ms)


@dataclass(frozen=True, slots=True)
class Bracket:
    """The profiles right before and right after a run: their ids, and what each alone predicts."""

    runs: tuple[int, int]
    alone_ms: tuple[float, float]

    @property
    def drift(self) -> float:
        """The later prediction over the earlier one, less 1: what the machine did meanwhile."""
        return self.alone_ms[1] / self.alone_ms[0] - 1

    @property
    def steady(self) -> bool:
        """Whether the two agree to 5 %; where not, the error is the machine's as much."""
        return abs(self.drift) <= WINDOW

    def to_json(self, measured_ms: float) -> dict[str, Any]:
        """The figures, with the error of the profile that was there before the run."""
        return {
            "runs": list(self.runs),
            "before_ms": self.alone_ms[0],
            "after_ms": self.alone_ms[1],
            "before_error": error_of(self.alone_ms[0], measured_ms),
            "drift": self.drift,
            "steady": self.steady,
        }


@dataclass(frozen=True)
class Comparison:
    """A run of a plan against its prediction.

    measured: of all iterations after the warm-up. steady: of those around which the machine was
    as fast as when the profile was taken (without one: as its fastest in the run), within 10 %;
    None where no iteration was. profile_reference_ms: the reference work in the profile run.
    drift: of the run, end over start less 1. slowdown: the reference work in the run (median)
    over that in the profile, less 1: how much slower the machine is now than when it was profiled.
    bracket: where the prediction is of a profile before and one after the run.
    """

    predicted_ms: float | None
    measured: Spread
    steady: Spread | None
    drift: float
    slowdown: float | None
    loss_first: float
    loss_last: float
    stages: tuple[StageRow, ...]
    bracket: Bracket | None = None

    @property
    def error(self) -> float | None:
        """Predicted over measured iteration time, less 1: negative where the plan was too rosy."""
        return error_of(self.predicted_ms, self.measured.ms)

    @property
    def scaled_ms(self) -> float | None:
        """The prediction at the speed that the machine had in the run: times 1 + slowdown.

        The reference work is not the layers, so this is a hint at how much of the error is the
        machine's; it replaces no figure.
        """
        if self.predicted_ms is None or self.slowdown is None:
            return None
        return self.predicted_ms * (1 + self.slowdown)

    @property
    def scaled_error(self) -> float | None:
        """The scaled prediction over the measured time, less 1."""
        return error_of(self.scaled_ms, self.measured.ms)

    @property
    def steady_error(self) -> float | None:
        """The same against the steady iterations."""
        return error_of(self.predicted_ms, self.steady.ms) if self.steady else None

    def to_json(self) -> dict[str, Any]:
        """The figures as plain values."""
        return {
            "predicted_ms": self.predicted_ms,
            "measured_ms": self.measured.ms,
            "mad_ms": self.measured.mad_ms,
            "counted": self.measured.count,
            "error": self.error,
            "steady_ms": self.steady.ms if self.steady else None,
            "steady_mad_ms": self.steady.mad_ms if self.steady else None,
            "steady_counted": self.steady.count if self.steady else 0,
            "steady_error": self.steady_error,
            "drift": self.drift,
            "slowdown_since_profile": self.slowdown,
            "scaled_ms": self.scaled_ms,
            "scaled_error": self.scaled_error,
            "loss_first": self.loss_first,
            "loss_last": self.loss_last,
            "bracket": self.bracket.to_json(self.measured.ms) if self.bracket else None,
            "stages": [
                {
                    "template": row.measured.template,
                    "stage": row.measured.stage,
                    "predicted_compute_ms": row.predicted_ms,
                    "measured_compute_ms": row.measured.compute_ms,
                    "error": row.error,
                    "comm_ms": row.measured.comm_ms,
                    "predicted_comm_ms": row.predicted.comm_ms if row.predicted else None,
                    "forward_ms": row.measured.forward_ms,
                    "backward_ms": row.measured.backward_ms,
                    "send_ms": row.measured.send_ms,
                    "receive_ms": row.measured.receive_ms,
                    "sync_ms": row.measured.sync_ms,
                    "predicted_sync_ms": row.predicted.sync_ms if row.predicted else None,
                    "update_ms": row.measured.update_ms,
                    "predicted_update_ms": row.predicted.update_ms if row.predicted else None,
                    "peak_bytes": row.peak_bytes,
                    "predicted_bytes": row.predicted.memory.total if row.predicted else None,
                }
                for row in self.stages
            ],
        }


def error_of(predicted: float | None, measured: float) -> float | None:
    """Predicted over measured, less 1; None without a prediction."""
    return None if predicted is None or measured <= 0 else predicted / measured - 1


def compare(
    plan: Plan,
    iterations: Sequence[Iteration],
    profile_reference_ms: float | None,
    bracket: Bracket | None = None,
) -> Comparison:
    """Put a finished run beside the plan's prediction. Needs one iteration after the warm-up."""
    counted = [iteration for iteration in iterations if not iteration.warm_up]
    references = [ms for iteration in counted for ms in iteration.reference_ms]
    base = min(references) if profile_reference_ms is None else profile_reference_ms
    calm = [i.ms for i in counted if max(i.reference_ms) <= base * (1 + STEADY)]
    prediction = plan.prediction
    rows = []
    for times in stage_times(plan, counted):
        peaks = _peaks(plan, counted, times)
        predicted = prediction.stages[times.template][times.stage] if prediction else None
        rows.append(StageRow(times, predicted, max(peaks)))
    slowdown = None
    if profile_reference_ms is not None:
        slowdown = median(references) / profile_reference_ms - 1
    return Comparison(
        predicted_ms=prediction.iteration_ms if prediction else None,
        measured=Spread.of([iteration.ms for iteration in counted]),
        steady=Spread.of(calm) if calm else None,
        drift=drift_of(iterations),
        slowdown=slowdown,
        loss_first=iterations[0].loss,
        loss_last=iterations[-1].loss,
        stages=tuple(rows),
        bracket=bracket,
    )


def _peaks(plan: Plan, iterations: Sequence[Iteration], times: StageTimes) -> list[int]:
    from specs.layout import ranks_of

    own = [
        place.rank
        for place in ranks_of(plan)
        if (place.template, place.stage) == (times.template, times.stage)
    ]
    return [iteration.steps[rank].peak_bytes for iteration in iterations for rank in own]
