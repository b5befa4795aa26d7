"""Link profiles as curves: time and bus bandwidth over size, with a line fitted to each."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specs.profile import LinkProfile, Operation

if TYPE_CHECKING:
    from db.records import StoredLink


@dataclass(frozen=True, slots=True)
class Fit:
    """time = latency + bytes / bandwidth. residual_percent: median of |fit - time| / time."""

    latency_ms: float
    gb_per_s: float | None
    residual_percent: float

    def time_ms(self, nbytes: float) -> float:
        """Time of a transfer in ms by the fit."""
        if self.gb_per_s is None:
            return self.latency_ms
        return self.latency_ms + nbytes / (self.gb_per_s * 1e6)


@dataclass(frozen=True)
class LinkSeries:
    """One curve: what is sent over what by how many, in rising size, from the newest run."""

    source: str
    run_id: int
    gpu: str
    peer: str
    topology: str
    operation: str
    ranks: int
    points: tuple[LinkProfile, ...]
    fit: Fit

    @property
    def label(self) -> str:
        """`h100, nvlink, all_reduce over 4`."""
        ends = self.gpu if self.gpu == self.peer else f"{self.gpu} to {self.peer}"
        return f"{ends}, {self.topology}, {self.operation} over {self.ranks}"


def bus_gb_per_s(profile: LinkProfile) -> float | None:
    """Traffic per link in GB/s, whatever the group size: comparable with the hardware's figure.

    all_reduce 2 (n-1)/n * bytes / time; all_gather and reduce_scatter (n-1)/n * bytes / time
    (bytes: the full buffer); p2p and all_to_all bytes / time. Source: nccl-tests, PERFORMANCE.md.
    None for a transfer that took no time.
    """
    if profile.time_ms <= 0:
        return None
    n = profile.ranks
    factor = {
        Operation.ALL_REDUCE: 2 * (n - 1) / n,
        Operation.ALL_GATHER: (n - 1) / n,
        Operation.REDUCE_SCATTER: (n - 1) / n,
    }.get(profile.operation, 1.0)
    return factor * profile.nbytes / (profile.time_ms * 1e6)


def fit_line(points: Sequence[tuple[float, float]]) -> Fit:
    """Latency and bandwidth of (bytes, ms) points, least squares of the relative error.

    Weights 1/time^2, so that small messages count as much as large ones; a latency below 0 is
    held at 0, a time that does not grow gives no bandwidth. Raises StatisticsError on no points.
    """
    usable = [(n, t) for n, t in points if t > 0]
    if len({n for n, _ in usable}) < 2:
        return Fit(statistics.median(t for _, t in points), None, 0.0)
    weights = [1 / t**2 for _, t in usable]
    total = sum(weights)
    mean_n = sum(w * n for w, (n, _) in zip(weights, usable, strict=True)) / total
    mean_t = sum(w * t for w, (_, t) in zip(weights, usable, strict=True)) / total
    spread = sum(w * (n - mean_n) ** 2 for w, (n, _) in zip(weights, usable, strict=True))
    slope = (
        sum(w * (n - mean_n) * (t - mean_t) for w, (n, t) in zip(weights, usable, strict=True))
        / spread
    )
    latency = mean_t - slope * mean_n
    if latency < 0:
        latency = 0.0
        slope = sum(w * n * t for w, (n, t) in zip(weights, usable, strict=True)) / sum(
            w * n * n for w, (n, _) in zip(weights, usable, strict=True)
        )
    if slope <= 0:
        latency, slope = mean_t, 0.0
    fit = Fit(latency, 1 / (slope * 1e6) if slope > 0 else None, 0.0)
    residuals = [abs(fit.time_ms(n) - t) / t for n, t in usable]
    return Fit(fit.latency_ms, fit.gb_per_s, 100 * statistics.median(residuals))


def link_series(rows: Iterable[StoredLink]) -> list[LinkSeries]:
    """The curves in the store; of several runs with the same curve and source, the newest."""
    found: dict[tuple[str, str, str, str, str, int], dict[int, list[LinkProfile]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for stored in rows:
        p = stored.profile
        key = (stored.run.run.source.value, p.gpu, p.peer, p.topology.value, p.operation.value)
        found[(*key, p.ranks)][stored.run.id].append(p)
    series = []
    for (source, gpu, peer, topology, operation, ranks), runs in found.items():
        newest = max(runs)
        points = tuple(sorted(runs[newest], key=lambda p: p.nbytes))
        fit = fit_line([(p.nbytes, p.time_ms) for p in points])
        series.append(
            LinkSeries(source, newest, gpu, peer, topology, operation, ranks, points, fit)
        )
    return sorted(series, key=lambda s: (s.gpu, s.peer, s.topology, s.operation, s.ranks, s.source))
