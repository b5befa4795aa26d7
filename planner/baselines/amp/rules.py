"""How AMP's strategies are split and costed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations
from typing import Protocol

from planner.baselines.amp.inputs import (
    AmpNode,
    Inputs,
    Rows,
    Strategy,
    ring,
    send_per_byte,
)
from planner.baselines.amp.split import best_split
from planner.baselines.metis.balance import StageLimits


class NoRow(Exception):
    """A strategy needs a profile row that is not there."""


class Rules(Protocol):
    """How the search is answered; the released code's own answers live in tests."""

    def orders(self, inputs: Inputs) -> Iterator[tuple[AmpNode, ...]]:
        """Orders of the nodes: the placements that are tried."""

    def split(self, inputs: Inputs, strategy: Strategy) -> tuple[int, ...] | None:
        """The layer split; None where memory allows none. Raises NoRow."""

    def cost_ms(self, inputs: Inputs, strategy: Strategy, bounds: Sequence[int]) -> float:
        """Iteration time. Raises NoRow."""


class Intended:
    """AMP as its paper means it; what was corrected stands in the package's docstring."""

    def orders(self, inputs: Inputs) -> Iterator[tuple[AmpNode, ...]]:
        """The nodes type by type, in every order of types, that of the cluster file first."""
        types = list(dict.fromkeys(node.gpu for node in inputs.nodes))
        for order in permutations(types):
            yield tuple(node for gpu in order for node in inputs.nodes if node.gpu == gpu)

    def split(self, inputs: Inputs, strategy: Strategy) -> tuple[int, ...] | None:
        """The best split within memory, of min(M, S - k) micro-batches in flight at stage k."""
        micro_batches = strategy.micro_batches(inputs.global_batch)
        stages = [
            _limits(inputs, strategy, k, min(micro_batches, strategy.pp - k))
            for k in range(strategy.pp)
        ]
        return best_split(stages, inputs.layers, micro_batches)

    def cost_ms(self, inputs: Inputs, strategy: Strategy, bounds: Sequence[int]) -> float:
        """(M - 1) * slowest stage + all stages + sends at the cuts + slowest gradient ring.

        A send is counted once, as published; a ring of dp replicas takes 2 (dp-1)/dp * bytes / tp
        over its slowest edge. Source: AMP (NeurIPS '22).
        """
        micro_batches = strategy.micro_batches(inputs.global_batch)
        times, rings = [], [0.0]
        for k, (first, end) in enumerate(pairwise(bounds)):
            rows = _rows(inputs, strategy, k)
            times.append(max(r.times[end] - r.times[first] + r.overhead_ms for r in rows))
            if strategy.dp > 1:
                nbytes = (inputs.gradient_bytes[end] - inputs.gradient_bytes[first]) / strategy.tp
                share = 2 * (strategy.dp - 1) / strategy.dp
                rings.append(share * nbytes / min(ring(strategy, k)))
        sent = inputs.activation_bytes * strategy.micro_batch
        sends = sum(sent * send_per_byte(strategy, k) for k in range(strategy.pp - 1))
        return (micro_batches - 1) * max(times) + sum(times) + sends + max(rings)


def _rows(inputs: Inputs, strategy: Strategy, stage: int) -> list[Rows]:
    """The rows of each GPU type of a stage. Raises NoRow."""
    found = []
    for gpu in strategy.types(stage):
        rows = inputs.rows.get((gpu, strategy.tp, strategy.micro_batch))
        if rows is None:
            raise NoRow(
                f"no profile of {gpu} at tp={strategy.tp} micro_batch={strategy.micro_batch}"
            )
        found.append(rows)
    return found


def _limits(inputs: Inputs, strategy: Strategy, stage: int, flight: int) -> StageLimits:
    times, memory = [], []
    for gpu, rows in zip(strategy.types(stage), _rows(inputs, strategy, stage), strict=True):
        times.append(rows.times)
        held = tuple(h + flight * k for h, k in zip(rows.held, rows.kept, strict=True))
        memory.append((held, inputs.room[gpu]))
    return StageLimits(tuple(times), tuple(memory))
