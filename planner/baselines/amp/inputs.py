"""What AMP plans with: equal nodes in a row, layer times, sizes; and a strategy as it names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Prefix = tuple[float, ...]  # sums over the first 0..L layers


@dataclass(frozen=True, slots=True)
class AmpNode:
    """A host: its number in the cluster file, and bandwidths in bytes/ms, inside and out."""

    number: int
    gpu: str
    intra: float
    inter: float


@dataclass(frozen=True, slots=True)
class Rows:
    """One (GPU type, TP, micro-batch size) of one rank over the layers, ms and bytes.

    times: forward, backward and collectives. overhead_ms: of a micro-batch on a stage beside them.
    held: state. kept: of one micro-batch in flight.
    """

    times: Prefix
    held: Prefix
    kept: Prefix
    overhead_ms: float


@dataclass(frozen=True)
class Inputs:
    """A question to AMP: nodes of `per_node` GPUs each.

    rows: by (GPU type, TP, micro-batch). room: bytes of one GPU for state and activations.
    gradient_bytes: of whole layers. activation_bytes: of one sample between two stages.
    """

    per_node: int
    nodes: tuple[AmpNode, ...]
    layers: int
    global_batch: int
    rows: Mapping[tuple[str, int, int], Rows]
    room: Mapping[str, float]
    gradient_bytes: Prefix
    activation_bytes: float

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.per_node * len(self.nodes)


@dataclass(frozen=True, slots=True)
class Strategy:
    """Degrees, micro-batch size, and the node of every rank: (pp, dp, tp), tp fastest."""

    micro_batch: int
    tp: int
    dp: int
    pp: int
    ranks: tuple[AmpNode, ...]

    def node(self, stage: int, replica: int, part: int = 0) -> AmpNode:
        """Where a rank is."""
        return self.ranks[(stage * self.dp + replica) * self.tp + part]

    def micro_batches(self, global_batch: int) -> int:
        """Micro-batches of each replica."""
        return global_batch // (self.dp * self.micro_batch)

    def types(self, stage: int) -> tuple[str, ...]:
        """GPU types of a stage."""
        first, size = stage * self.dp * self.tp, self.dp * self.tp
        return tuple(dict.fromkeys(node.gpu for node in self.ranks[first : first + size]))


@dataclass(frozen=True, slots=True)
class Costed:
    """A strategy with its layer split and what AMP thinks it takes."""

    cost_ms: float
    strategy: Strategy
    bounds: tuple[int, ...]


def link(a: AmpNode, b: AmpNode) -> float:
    """Bytes/ms between ranks on two nodes."""
    return a.intra if a.number == b.number else min(a.inter, b.inter)


def send_per_byte(strategy: Strategy, stage: int) -> float:
    """ms per byte from a stage to the next: the slowest link of a TP group, the mean over DP."""
    total = 0.0
    for replica in range(strategy.dp):
        total += 1 / min(
            link(strategy.node(stage, replica, part), strategy.node(stage + 1, replica, part))
            for part in range(strategy.tp)
        )
    return total / strategy.dp


def ring(strategy: Strategy, stage: int) -> Sequence[float]:
    """Of each edge of the gradient ring of a stage, replica r to r + 1, the slowest link."""
    return [
        min(
            link(strategy.node(stage, r, part), strategy.node(stage, (r + 1) % strategy.dp, part))
            for part in range(strategy.tp)
        )
        for r in range(strategy.dp)
    ]
