"""Sailor's fits of bandwidth over message size, sampled to link rows.

A fit is [[a, b, c], largest measured bytes/s]: bandwidth in GB/s (1e9) = a u^2 + b u + c with
u = log2(bytes / 1e6), fitted by least squares to messages of 2^16 to 2^30 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from profiler.importers.imported import Refused
from specs.gpu import gpu_type
from specs.profile import LinkProfile, Operation
from specs.topology import Topology

MEASURED_SIZES = tuple(1 << k for k in range(16, 31))  # bytes of the messages that were fitted

# The fits of one node, by file and place in it; and those between nodes.
INTRA_FILE = "network/intra_node_bandwidths.json"
ZONES_FILE = "network/multizone_bandwidths.json"
HOMOGENEOUS_FILE = "network/network_coeffs_all_homo.json"
MIXED_FILE = "network/multizone_bandwidths_het.json"


@dataclass(frozen=True, slots=True)
class Fit:
    """Bandwidth over message size of one link; largest_gb_per_s: the best that was measured."""

    a: float
    b: float
    c: float
    largest_gb_per_s: float

    @classmethod
    def parse(cls, value: Any) -> Fit | None:
        """The fit of a parsed JSON value, None where it is not of the form."""
        try:
            (a, b, c), largest = value
            numbers = (float(a), float(b), float(c), float(largest) / 1e9)
        except (TypeError, ValueError):
            return None
        if not all(math.isfinite(number) for number in numbers) or numbers[3] <= 0:
            return None
        return cls(*numbers)

    def gb_per_s(self, nbytes: int) -> float:
        """The polynomial at a message size, in GB/s; may be negative where the fit is bad."""
        u = math.log2(nbytes / 1e6)
        return self.a * u * u + self.b * u + self.c

    def sample(self) -> list[tuple[int, float]]:
        """(bytes, ms) at the measured sizes where the fit describes a link.

        Bandwidth is held at the largest measured, and once risen does not fall with size: past
        its vertex a parabola falls, which no link does. From below are left out the sizes where
        the polynomial is not positive, and where a smaller message would take longer than a
        larger one. Empty where nothing is left.
        """
        best = 0.0
        points: list[tuple[int, float]] = []
        for nbytes in MEASURED_SIZES:
            bandwidth = self.gb_per_s(nbytes)
            if bandwidth <= 0 and not points:
                continue
            best = min(max(best, bandwidth), self.largest_gb_per_s)
            points.append((nbytes, nbytes / (best * 1e6)))  # 1 GB/s = 1e6 bytes/ms
        first = 0
        for i in range(len(points) - 1):
            if points[i][1] >= points[i + 1][1]:
                first = i + 1
        return points[first:]


def ring_rows(
    gpu: str, topology: Topology, ranks: int, points: Iterable[tuple[int, float]]
) -> Iterator[LinkProfile]:
    """all_reduce, all_gather and reduce_scatter of a ring whose hops take these times.

    n ranks pass chunks of bytes/n: n-1 hops for all_gather and reduce_scatter, 2(n-1) for
    all_reduce. Source: Sailor's simulator, which times every ring so (without its 5e8-byte
    buckets, a habit of the training framework and not of the link).
    """
    for chunk, hop_ms in points:
        for operation, hops in (
            (Operation.ALL_REDUCE, 2 * (ranks - 1)),
            (Operation.ALL_GATHER, ranks - 1),
            (Operation.REDUCE_SCATTER, ranks - 1),
        ):
            yield LinkProfile(gpu, topology, operation, ranks, chunk * ranks, hops * hop_ms)


def p2p_rows(
    gpu: str, peer: str, topology: Topology, pairs: int, points: Iterable[tuple[int, float]]
) -> Iterator[LinkProfile]:
    """Point to point: `pairs` GPUs at each end send at the same time, bytes of all of them."""
    for nbytes, ms in points:
        yield LinkProfile(
            gpu, topology, Operation.P2P, 2 * pairs, nbytes, ms, "" if peer == gpu else peer
        )


@dataclass(frozen=True, slots=True)
class Network:
    """Link rows of the network files, what was refused, and the GPU types that have rows."""

    links: tuple[LinkProfile, ...]
    refused: tuple[Refused, ...]
    gpus: tuple[str, ...]
    notes: tuple[str, ...]


def read_network(files: Mapping[str, Any], gpus: Mapping[str, str]) -> Network:
    """Link rows of Sailor's network files.

    files: path -> parsed JSON, of those that are there. gpus: name in the files -> catalogue name.
    Inside a node: the ring operations of each GPU count and, from two GPUs, p2p. Between nodes:
    p2p within one zone (the first that has the link), per count of GPUs that send together, of
    equal and of mixed types; counts that differ at the two ends are combinations of these and
    are left out.
    """
    reader = _Reader(gpus)
    reader.intra(files.get(INTRA_FILE))
    reader.between_equals(files.get(ZONES_FILE), files.get(HOMOGENEOUS_FILE))
    reader.between_types(files.get(MIXED_FILE))
    return reader.network()


class _Reader:
    def __init__(self, gpus: Mapping[str, str]) -> None:
        self.names = gpus
        self.rows: list[LinkProfile] = []
        self.refused: list[Refused] = []
        self.cut: dict[int, list[str]] = {}  # smallest size with a true figure -> fits cut there

    def network(self) -> Network:
        gpus = dict.fromkeys(name for row in self.rows for name in (row.gpu, row.peer))
        notes = [
            f"below {smallest} bytes these fits describe no link (a bandwidth that is negative, or "
            f"a time that falls with size), so that no row is smaller: {', '.join(fits)}"
            for smallest, fits in sorted(self.cut.items())
        ]
        return Network(tuple(self.rows), tuple(self.refused), tuple(gpus), tuple(notes))

    def _points(self, value: Any, where: str) -> list[tuple[int, float]]:
        fit = Fit.parse(value)
        if fit is None:
            self.refused.append(Refused(where, f"is {value!r}, expected [[a, b, c], bytes/s]"))
            return []
        points = fit.sample()
        if not points:
            self.refused.append(Refused(where, "the fit is positive at no measured size"))
        elif points[0][0] > MEASURED_SIZES[0]:
            self.cut.setdefault(points[0][0], []).append(where.removeprefix("network/"))
        return points

    def _gpu(self, name: str, where: str) -> str | None:
        gpu = self.names.get(name)
        if gpu is None:
            self.refused.append(Refused(where, f"GPU name {name!r} has no catalogue name"))
        return gpu

    def _count(self, text: str, where: str) -> int | None:
        if text.isascii() and text.isdigit() and int(text) >= 1:
            return int(text)
        self.refused.append(Refused(where, f"GPU count {text!r}, expected a whole number"))
        return None

    def intra(self, file: Any) -> None:
        for name, counts in _items(file):
            gpu = self._gpu(name, f"{INTRA_FILE}: {name}")
            for text, value in _items(counts) if gpu else ():
                where = f"{INTRA_FILE}: {name} x {text}"
                ranks = self._count(text, where)
                if gpu is None or ranks is None:
                    continue
                topology = gpu_type(gpu).default_topology
                points = self._points(value, where)
                if ranks < 2:
                    self.refused.append(Refused(where, "a group has at least 2 GPUs"))
                    continue
                self.rows.extend(ring_rows(gpu, topology, ranks, points))
                if ranks == 2:
                    self.rows.extend(p2p_rows(gpu, gpu, topology, 1, points))

    def between_equals(self, zones: Any, homogeneous: Any) -> None:
        found: dict[tuple[str, str], tuple[str, Any]] = {}
        for zone, senders in _items(zones):
            for name, counts in _items(senders):
                for text, receivers in _items(counts):
                    value = _at(receivers, zone, name, text)
                    if value is not None:
                        where = f"{ZONES_FILE}: {zone} {name} x {text}"
                        found.setdefault((name, text), (where, value))
        for name, counts in _items(_at(homogeneous, "inter")):
            for text, value in _items(counts):
                where = f"{HOMOGENEOUS_FILE}: inter {name} x {text}"
                found.setdefault((name, text), (where, value))
        for (name, text), (where, value) in found.items():
            self._between(name, name, text, where, value)

    def between_types(self, zones: Any) -> None:
        seen: set[tuple[str, str, str]] = set()
        for zone, senders in _items(zones):
            for name, counts in _items(senders):
                for text, receivers in _items(counts):
                    for peer, ends in _items(_at(receivers, zone)):
                        value = _at(ends, text)
                        if peer == name or value is None or (name, peer, text) in seen:
                            continue
                        seen.add((name, peer, text))
                        where = f"{MIXED_FILE}: {zone} {name} to {peer} x {text}"
                        self._between(name, peer, text, where, value)

    def _between(self, name: str, peer: str, text: str, where: str, value: Any) -> None:
        gpu, other, pairs = self._gpu(name, where), self._gpu(peer, where), self._count(text, where)
        if gpu and other and pairs:
            points = self._points(value, where)
            self.rows.extend(p2p_rows(gpu, other, Topology.INTER, pairs, points))


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key), inner


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
