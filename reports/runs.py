"""One run of a plan as one figure: the median of its iterations with its spread."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from specs.measurement import Measurement


class Statistic(StrEnum):
    """What the figure of a run is: the median of its own iterations, or somebody's mean."""

    MEDIAN = "median"
    MEAN = "mean"


@dataclass(frozen=True, slots=True)
class RunTime:
    """Iteration time of one run.

    iteration_ms: median of the counted iterations, or the published mean. mad_ms: median absolute
    deviation from that median; None for a mean and for a single iteration. iterations: how many
    stand behind the figure. warm_ups: left out of it. drift: of the machine, the largest that an
    iteration recorded. peak_bytes: the largest of any rank in any iteration, warm-ups included.
    """

    statistic: Statistic
    iteration_ms: float
    mad_ms: float | None
    iterations: int
    warm_ups: int
    drift: float | None
    peak_bytes: int | None
    losses: tuple[float, ...]

    @property
    def label(self) -> str:
        """How the figure came about, in words: `median of 10`, `mean of 50`, `one iteration`."""
        if self.iterations == 1:
            return "one iteration"
        return f"{self.statistic} of {self.iterations}"


def median_absolute_deviation(values: Sequence[float]) -> float:
    """Median of |value - median of the values|, in their unit. Raises StatisticsError on none."""
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values)


def run_time(measurements: Iterable[Measurement]) -> RunTime | None:
    """The iterations of one run as one figure; None where every one is a warm-up.

    Single iterations (samples = 1) give their median and MAD. Where a figure is already a mean
    of several, the run is the mean of all, weighted by their samples, and has no spread.
    """
    rows = sorted(measurements, key=lambda row: row.iteration)
    counted = [row for row in rows if not row.warm_up]
    if not counted:
        return None
    times = [row.iteration_ms for row in counted]
    iterations = sum(row.samples for row in counted)
    mad: float | None = None
    if all(row.samples == 1 for row in counted):
        statistic, time = Statistic.MEDIAN, statistics.median(times)
        if len(times) > 1:
            mad = median_absolute_deviation(times)
    else:
        statistic = Statistic.MEAN
        time = sum(row.iteration_ms * row.samples for row in counted) / iterations
    drifts = [row.drift for row in rows if row.drift is not None]
    peaks = [peak for row in rows for peak in row.peak_bytes]
    return RunTime(
        statistic=statistic,
        iteration_ms=time,
        mad_ms=mad,
        iterations=iterations,
        warm_ups=len(rows) - len(counted),
        drift=max(drifts, key=abs) if drifts else None,
        peak_bytes=max(peaks) if peaks else None,
        losses=tuple(row.loss for row in counted if row.loss is not None),
    )
