"""Whether a new plan is worth moving to: what it gains until the end against the pause it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from specs.plan import Plan
from specs.transfer import BYTES_PER_MS, FIXED_PAUSE_MS, bytes_to_move, pause_ms


@dataclass
class Pauses:
    """What changes of plan cost in this run so far."""

    fixed_ms: list[float] = field(default_factory=list)
    bytes_per_ms: list[float] = field(default_factory=list)

    def add(self, phases_ms: dict[str, float], received: Sequence[int]) -> None:
        """One more pause: its phases, and the bytes that each rank got."""
        fixed = [ms for name, ms in phases_ms.items() if name in ("release", "rebuild", "build")]
        self.fixed_ms.append(sum(fixed))
        most, took = max(received, default=0), phases_ms.get("transfer", 0.0)
        if most > 0 and took > 0:
            self.bytes_per_ms.append(most / took)

    def predicted_ms(self, received: Sequence[int]) -> float:
        """The pause of a change in which each rank gets so many bytes.

        Fixed part and rate are the medians of this run's pauses; before the first, what others
        took (specs/transfer.py).
        """
        fixed = median(self.fixed_ms) if self.fixed_ms else FIXED_PAUSE_MS
        rate = median(self.bytes_per_ms) if self.bytes_per_ms else BYTES_PER_MS
        return pause_ms(received, fixed, rate)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether to move, and the figures that say so; saved_ms until the end, without the pause."""

    move: bool
    reason: str
    saved_ms: float = 0.0
    pause_ms: float = 0.0
    moved_bytes: int = 0


def weigh(
    old: Plan,
    new: Plan,
    iterations_left: int,
    measured_ms: float | None,
    pauses: Pauses,
    min_gain: float,
    slowness: float = 1.0,
) -> Verdict:
    """Whether to go from a plan to another one with so many iterations left.

    measured_ms: an iteration now, which puts the predictions of both plans right: the new one is
    expected to take measured * predicted new / predicted old. slowness: how much of the measured
    time is a straggler's fault, which the new plan does without. Moves where
    iterations_left * (measured - expected) is more than the predicted pause, and the gain at least
    min_gain of an iteration.
    """
    if new.templates == old.templates:
        return Verdict(False, "the same plan is the best")
    if old.prediction is None or new.prediction is None:
        return Verdict(False, "a plan without a prediction cannot be weighed")
    received = bytes_to_move(old, new)
    cost_ms = pauses.predicted_ms(received)
    now_ms = old.prediction.iteration_ms * slowness if measured_ms is None else measured_ms
    ratio = new.prediction.iteration_ms / (old.prediction.iteration_ms * slowness)
    gain = 1 - ratio
    saved_ms = iterations_left * now_ms * gain
    figures = (
        f"{gain:+.1%} an iteration saves {saved_ms / 1e3:.1f} s in {iterations_left} iterations, "
        f"the pause costs {cost_ms / 1e3:.1f} s ({sum(received):,} bytes move)"
    )
    return Verdict(
        gain >= min_gain and saved_ms > cost_ms, figures, saved_ms, cost_ms, sum(received)
    )
