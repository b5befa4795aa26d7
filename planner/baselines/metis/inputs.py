"""What Metis plans with: nodes, layer times, memory, sizes; and a pipeline as it lays it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

Prefix = tuple[float, ...]  # sums over the first 0..L layers


def prefix_sums(values: list[float]) -> Prefix:
    """Sums over the first 0, 1, .. of the values."""
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    return tuple(sums)


@dataclass(frozen=True, slots=True)
class MetisNode:
    """A host: bandwidths in bytes/ms, inside it and of its network card."""

    gpu: str
    gpus: int
    intra: float
    inter: float


@dataclass(frozen=True)
class Rows:
    """One (GPU type, TP, micro-batch size) of one rank, over the layers; ms and bytes.

    times: forward, backward and collectives. held: state. kept: of one micro-batch in flight.
    overhead_ms: of a micro-batch beside its layers. update_ms: optimizer step.
    """

    times: Prefix
    held: Prefix
    kept: Prefix
    update_ms: Prefix
    overhead_ms: float


@dataclass(frozen=True)
class Inputs:
    """A question to Metis.

    rows: by (GPU type, TP, micro-batch). room: bytes of one GPU for state and activations.
    gradient_bytes: of whole layers. activation_bytes: of one sample between two stages.
    """

    nodes: tuple[MetisNode, ...]
    layers: int
    global_batch: int
    rows: Mapping[tuple[str, int, int], Rows]
    room: Mapping[str, float]
    gradient_bytes: Prefix
    activation_bytes: float

    @cached_property
    def gpus(self) -> int:
        """GPUs in all."""
        return sum(node.gpus for node in self.nodes)

    @cached_property
    def types(self) -> tuple[str, ...]:
        """GPU types in order of first appearance."""
        return tuple(dict.fromkeys(node.gpu for node in self.nodes))

    def ranks(self, order: tuple[str, ...]) -> tuple[int, ...]:
        """The node of every rank: all GPUs of the first type, then those of the second, ..."""
        return tuple(
            i
            for gpu in order
            for i, node in enumerate(self.nodes)
            if node.gpu == gpu
            for _ in range(node.gpus)
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """GPUs per stage, (DP, TP) per stage and micro-batches: a plan without its layer split.

    ranks: node of every rank. groups: GPUs of each stage, which take the ranks in order.
    """

    order: tuple[str, ...]
    ranks: tuple[int, ...]
    groups: tuple[int, ...]
    degrees: tuple[tuple[int, int], ...]
    micro_batches: int

    def span(self, stage: int) -> tuple[int, ...]:
        """The node of each rank of a stage."""
        first = sum(self.groups[:stage])
        return self.ranks[first : first + self.groups[stage]]


@dataclass(frozen=True, slots=True)
class Costed:
    """A plan of Metis and what it thinks it takes. bounds: first layer of each stage, and L."""

    cost_ms: float
    layout: Layout
    bounds: tuple[int, ...]
