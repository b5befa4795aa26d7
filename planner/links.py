"""Time of one transfer over its size, from measured sizes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from specs.errors import PlanError


@dataclass(frozen=True, slots=True)
class LinkCurve:
    """Times of one operation on one kind of link and group, over message size.

    nbytes: measured sizes, rising; times_ms: one each. As many of both, at least one.
    """

    nbytes: tuple[int, ...]
    times_ms: tuple[float, ...]

    def __post_init__(self) -> None:
        sizes = self.nbytes
        if not sizes or len(sizes) != len(self.times_ms):
            raise PlanError(f"a link curve has a time per size, got {sizes} and {self.times_ms}")
        if any(a >= b for a, b in pairwise(sizes)):
            raise PlanError(f"the sizes of a link curve rise, got {sizes}")

    @classmethod
    def of(cls, points: Iterable[tuple[int, float]]) -> LinkCurve:
        """The curve of (bytes, ms) points in any order, one per size."""
        ordered = sorted(points)
        return cls(tuple(size for size, _ in ordered), tuple(time for _, time in ordered))

    def time_ms(self, nbytes: float) -> float:
        """Time of a transfer of nbytes, in ms.

        Linear between measured sizes; below the smallest its time; above the largest the slope of
        the last two points (with one point, its time over its size). DESIGN section 13, 7.
        """
        sizes, times = self.nbytes, self.times_ms
        if nbytes <= sizes[0]:
            return times[0]
        if nbytes > sizes[-1]:
            return times[-1] + (nbytes - sizes[-1]) * self.last_slope
        right = bisect_left(sizes, nbytes)
        left = right - 1
        slope = (times[right] - times[left]) / (sizes[right] - sizes[left])
        return times[left] + (nbytes - sizes[left]) * slope

    @property
    def last_slope(self) -> float:
        """Time per byte beyond the largest measured size, in ms/byte."""
        if len(self.nbytes) == 1:
            return self.times_ms[0] / self.nbytes[0] if self.nbytes[0] else 0.0
        rise = self.times_ms[-1] - self.times_ms[-2]
        return max(0.0, rise / (self.nbytes[-1] - self.nbytes[-2]))

    @property
    def bytes_per_ms(self) -> float:
        """Bandwidth of large messages, in bytes/ms: the inverse of the last slope."""
        slope = self.last_slope
        return 1 / slope if slope > 0 else self.nbytes[-1] / self.times_ms[-1]
