"""From repeated timings to one figure: median, spread, and whether the machine stood still."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

MIN_SAMPLES = 15  # p75/p25 of one collective reaches 4 on a quiet host: fewer say nothing
MAX_SAMPLES = 200
WINDOW_S = 0.8  # a window this long has enough samples of anything that takes under 50 ms
DRIFT_LIMIT = 0.05  # reference work before and after a window may differ by this share
SPEED_LIMIT = 0.12  # and be slower by this share than the fastest of the run


@dataclass(frozen=True, slots=True)
class Figure:
    """A median of samples in ms, with its median absolute deviation."""

    ms: float
    mad_ms: float
    samples: int


def figure(samples_ms: Sequence[float]) -> Figure:
    """Median, and median of the distances from it. Raises ValueError for no samples."""
    if not samples_ms:
        raise ValueError("a figure needs at least one sample")
    middle = median(samples_ms)
    return Figure(middle, median(abs(x - middle) for x in samples_ms), len(samples_ms))


def repetitions(pass_ms: float, *, window_s: float = WINDOW_S, most: int = MAX_SAMPLES) -> int:
    """How many timed passes fill a window, between MIN_SAMPLES and `most`.

    pass_ms: the slowest rank's time of one warm pass. The count is settled before the window and
    equal on all ranks: a rank that stopped on its own clock would leave the others in a collective.
    """
    return min(most, max(MIN_SAMPLES, round(window_s * 1e3 / max(pass_ms, 1e-3))))


def drift(before_ms: float, after_ms: float) -> float:
    """How much slower reference work got from before to after: 0.03 = 3 % slower."""
    return after_ms / before_ms - 1


def steady(before_ms: float, after_ms: float, limit: float = DRIFT_LIMIT) -> bool:
    """Whether a window between two timings of reference work can be trusted."""
    return abs(drift(before_ms, after_ms)) <= limit


def same_speed(level_ms: float, fastest_ms: float, limit: float = SPEED_LIMIT) -> bool:
    """Whether the reference work around a window ran about as fast as it ever did in this run."""
    return level_ms <= fastest_ms * (1 + limit)
