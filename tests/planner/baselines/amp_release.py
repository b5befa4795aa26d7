"""AMP as released: the recorded runs of its public code, and its faults as rules of our search.

Facts of DachengLi1/AMP (commit 72eeea4), written anew from a description of what it does; nothing
is copied. Profiles and clusters of the runs are our own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from planner.baselines.amp.inputs import (
    AmpNode,
    Costed,
    Inputs,
    Strategy,
    link,
    send_per_byte,
)
from planner.baselines.amp.search import AmpSearch

RUNS = Path(__file__).parents[1] / "data" / "peer_runs" / "amp"


@cache
def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RUNS / f"{name}.json").read_text())
    return found


def inputs_of(run: dict[str, Any]) -> Inputs:
    """A recorded question; times in s, sizes in 4-byte elements, as AMP has them."""
    asked = run["inputs"]
    return Inputs(
        per_node=asked["gpus_per_node"],
        nodes=tuple(
            AmpNode(i, "any", speeds["intra"], speeds["inter"])
            for i, speeds in enumerate(asked["node_bandwidth_elements_per_s"])
        ),
        layers=len(asked["layer_kinds"]),
        global_batch=asked["gbs"],
        rows={},
        room={},
        gradient_bytes=(),
        activation_bytes=0.0,
    )


class Released:
    """AMP's own answers, faults included."""

    def __init__(self, run: dict[str, Any]) -> None:
        asked = run["inputs"]
        self.kinds: list[str] = asked["layer_kinds"]
        self.blocks: int = asked["model"]["num_layers"]
        self.hidden: int = asked["model"]["hidden_size"]
        self.seq_len: int = asked["model"]["sequence_length"]
        self.vocabulary: int = asked["model"]["vocab_size"]
        self.batch: int = asked["gbs"]
        self.fast: dict[str, list[float]] = asked["forward_seconds_per_sample_fast"]
        self.slow: dict[str, list[float]] = asked["forward_seconds_per_sample_slow"]

    def orders(self, inputs: Inputs) -> Iterator[tuple[AmpNode, ...]]:
        yield inputs.nodes

    def _layer_s(self, strategy: Strategy) -> list[float]:
        """Three forwards of every layer; two GPU types blended three to one."""
        pairs = zip(self.fast[str(strategy.tp)], self.slow[str(strategy.tp)], strict=True)
        return [3 * strategy.micro_batch * (0.75 * fast + 0.25 * slow) for fast, slow in pairs]

    def _sent(self, strategy: Strategy) -> list[float]:
        """Elements sent after each layer; what does nothing sends what it was sent."""
        volumes: list[float] = []
        for kind in self.kinds:
            if kind == "head":
                per_sample = self.seq_len * self.vocabulary / strategy.tp
                volumes.append(strategy.micro_batch * per_sample)
            elif kind == "noop":
                volumes.append(volumes[-1])
            else:
                volumes.append(strategy.micro_batch * self.seq_len * self.hidden)
        return volumes

    def split(self, inputs: Inputs, strategy: Strategy) -> tuple[int, ...] | None:
        if strategy.pp > self.blocks:
            return None
        micro_batches = strategy.micro_batches(self.batch)
        if micro_batches == 1:
            each, more = divmod(self.blocks, strategy.pp)
            counts = [each + (k < more) for k in range(strategy.pp)]
            counts[0] += 2
            counts[-1] += len(self.kinds) - self.blocks - 2
            return (0, *(sum(counts[: k + 1]) for k in range(strategy.pp)))
        return self._dynamic(strategy, micro_batches)

    def _dynamic(self, strategy: Strategy, micro_batches: int) -> tuple[int, ...]:
        """Its dynamic program: sends are compared, but not carried on in what is stored."""
        layers = self._layer_s(strategy)
        sent = self._sent(strategy)
        speed = [send_per_byte(strategy, k) for k in range(strategy.pp - 1)]
        before = [0.0]
        for time in layers:
            before.append(before[-1] + time)

        @cache
        def best(last: int, cuts: int, behind: float) -> tuple[float, int]:
            """(cost, last layer before the last cut) of layers 0..last; behind: slowest later."""
            if cuts == 0:
                return (micro_batches - 1) * max(0.0, before[last + 1] - behind), -1
            stored, at = float("inf"), -1
            for cut in range(cuts - 1, last):
                stage = before[last + 1] - before[cut + 1]
                value = best(cut, cuts - 1, max(behind, stage))[0]
                value += (micro_batches - 1) * max(0.0, stage - behind)
                if value + sent[cut] * speed[cuts - 1] < stored:
                    stored, at = value, cut
            return stored, at

        bounds = [len(layers)]
        last, behind = len(layers) - 1, 0.0
        for cuts in range(strategy.pp - 1, 0, -1):
            _, cut = best(last, cuts, behind)
            behind = max(behind, before[last + 1] - before[cut + 1])
            bounds.append(cut + 1)
            last = cut
        return (0, *reversed(bounds))

    def cost_ms(self, inputs: Inputs, strategy: Strategy, bounds: Sequence[int]) -> float:
        """In seconds, as AMP has it."""
        layers, sent = self._layer_s(strategy), self._sent(strategy)
        stages = [sum(layers[first:end]) for first, end in pairwise(bounds)]
        total = (strategy.micro_batches(self.batch) - 1) * max(stages) + sum(layers)
        for k in range(strategy.pp - 1):
            total += sent[bounds[k + 1] - 1] * send_per_byte(strategy, k)
        return total + max(
            self._ring(strategy, k, self.kinds[first:end])
            for k, (first, end) in enumerate(pairwise(bounds))
        )

    def _ring(self, strategy: Strategy, stage: int, kinds: Sequence[str]) -> float:
        """Gradients at the speed of the last edge of the ring alone."""
        tp, dp = strategy.tp, strategy.dp
        weights = 12 * self.hidden**2 / tp * kinds.count("block")
        if "embed" in kinds or "head" in kinds:
            weights += self.hidden * self.vocabulary / tp
        return max(
            2
            * (dp - 1)
            / (dp * link(strategy.node(stage, dp - 1, part), strategy.node(stage, 0, part)))
            * weights
            for part in range(tp)
        )


def run(name: str) -> list[Costed]:
    """Every strategy the released code costs on a recorded question, best first; cost in s."""
    question = recorded(name)
    search = AmpSearch(inputs_of(question), Released(question))
    found = search.run()
    assert search.finished
    return found
