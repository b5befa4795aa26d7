"""HexiScale's search: rounds of partitions of the device graph into pipelines and their stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from planner.baselines.hexiscale.inputs import Inputs
from planner.baselines.hexiscale.partition import partition
from planner.baselines.hexiscale.pipeline import (
    Devices,
    Pipe,
    gpipe_ms,
    pipe_of,
    stage_times,
    sync_ms,
)
from planner.shares import Rate, micro_batches

Floats = NDArray[np.float64]
EXPLORE = 0.2  # share of rounds that take the direction with the worse average
SMOOTHING = 0.3  # weight of a new cost in the moving average
MORE_BLOCKS = (2, 0.2)  # blocks of a pipeline: 1 + Binomial(2, 0.2), as released
FEWEST_DEVICES = 5  # a pipeline has so many on average, as released


class Direction(IntEnum):
    """What the cut between pipelines crosses: fast links (good for DP) or slow ones (for PP)."""

    DATA = 0
    PIPELINE = 1


@dataclass(frozen=True)
class Candidate:
    """Pipelines with one micro-batch size, and what they take by HexiScale's formulas."""

    time_ms: float
    micro_batch: int
    pipes: tuple[Pipe, ...]


@dataclass
class HexiScaleSearch:
    """One search; `kept` are the plans that were the best when found, the best last.

    stop(evaluations): whether the caller wants an end.
    """

    inputs: Inputs
    seed: int
    stop: Callable[[int], bool] = lambda evaluations: False
    kept: list[Candidate] = field(default_factory=list)
    evaluations: int = 0
    no_room: int = 0
    rounds: int = 0

    def __post_init__(self) -> None:
        self._draw = np.random.default_rng(self.seed)
        slow = 1 / self.inputs.bandwidth
        np.fill_diagonal(slow, 0.0)
        fast = self.inputs.bandwidth.copy()
        np.fill_diagonal(fast, 0.0)
        # The cut is minimised: to cross fast links, an edge weighs the inverse of its bandwidth.
        self._edges = {
            Direction.DATA: slow / slow.max(initial=1e-300),
            Direction.PIPELINE: fast / fast.max(initial=1e-300),
        }
        self._average: dict[Direction, float] = {}

    @property
    def fewest(self) -> int:
        """Pipelines at least: none has more devices than the model has blocks."""
        return min(1 + self.inputs.devices // self.inputs.blocks, self.inputs.devices)

    @property
    def most(self) -> int:
        """Pipelines at most."""
        return max(self.fewest, self.inputs.devices // FEWEST_DEVICES)

    @property
    def best_ms(self) -> float:
        """Time of the best plan so far."""
        return self.kept[-1].time_ms if self.kept else np.inf

    def run(self, rounds: int) -> None:
        """A round for numbers of pipelines over the whole range, then steps of one at random."""
        if self.inputs.devices == 0:
            return
        spread = self._spread()
        count = spread[0]
        for number in range(rounds):
            if self.stop(self.evaluations):
                return
            if number < len(spread):
                count = spread[number]
            self._round(count)
            self.rounds += 1
            if number + 1 == len(spread) and self.kept:
                count = len(self.kept[-1].pipes)
            if number + 1 >= len(spread):
                count += int(self._draw.choice([-1, 1]))
                count = min(max(count, self.fewest), self.most)

    def _spread(self) -> list[int]:
        """Numbers of pipelines to begin with: from fewest to most, each a third more."""
        found = [self.fewest]
        while found[-1] < self.most:
            found.append(min(self.most, max(found[-1] + 1, found[-1] * 4 // 3)))
        return found

    def _direction(self) -> Direction:
        unseen = [d for d in Direction if d not in self._average]
        if unseen:
            return unseen[int(self._draw.integers(len(unseen)))]
        better, worse = sorted(Direction, key=lambda d: self._average[d])
        return worse if self._draw.random() < EXPLORE else better

    def _round(self, count: int) -> None:
        inputs = self.inputs
        direction = self._direction()
        part = self._partition(np.arange(inputs.devices), self._edges[direction], count)
        groups = [self._blocks(np.flatnonzero(part == p)) for p in range(count)]
        cost = np.inf
        for micro_batch in inputs.micro_batches:
            if self.stop(self.evaluations):
                break
            candidate = self._price(groups, micro_batch)
            self.evaluations += 1
            if candidate is None:
                self.no_room += 1
                continue
            cost = min(cost, candidate.time_ms)
            if candidate.time_ms < self.best_ms:
                self.kept.append(candidate)
        if np.isfinite(cost):
            before = self._average.get(direction, cost)
            self._average[direction] = (1 - SMOOTHING) * before + SMOOTHING * cost

    def _partition(
        self, devices: NDArray[np.int64], edges: Floats, parts: int
    ) -> NDArray[np.int64]:
        inside = np.ascontiguousarray(edges[np.ix_(devices, devices)])
        seed = int(self._draw.integers(2**31))
        found: NDArray[np.int64] = partition(self.inputs.power[devices], inside, parts, seed)
        return found

    def _blocks(self, devices: NDArray[np.int64]) -> list[Devices]:
        """A pipeline's devices in blocks with fast links inside."""
        trials, share = MORE_BLOCKS
        count = min(1 + int(self._draw.binomial(trials, share)), len(devices))
        part = self._partition(devices, self._edges[Direction.PIPELINE], count)
        return [tuple(devices[part == p].tolist()) for p in range(count)]

    def _price(self, groups: Sequence[Sequence[Devices]], micro_batch: int) -> Candidate | None:
        """factor * the slowest pipeline + factor * synchronisation; None where one has no room.

        The batch is dealt so that the slowest pipeline is as fast as can be.
        """
        inputs = self.inputs
        even = max(1, -(-inputs.global_batch // (micro_batch * len(groups))))
        pipes = []
        for blocks in groups:
            pipe = pipe_of(inputs, blocks, micro_batch, even)
            if pipe is None:
                return None
            pipes.append(pipe)
        times = [stage_times(inputs, pipe.stages, pipe.blocks, micro_batch) for pipe in pipes]
        if any(np.isinf(row).any() for row in times):
            return None
        slowest = slowest_ms(times, micro_batch, inputs.global_batch)
        total = inputs.pipeline_factor * slowest + inputs.sync_factor * sync_ms(inputs, pipes)
        return Candidate(total, micro_batch, tuple(pipes))


def slowest_ms(times: Sequence[Sequence[float]], micro_batch: int, global_batch: int) -> float:
    """Time of the slowest pipeline with the batch dealt best.

    times: of the stages of each pipeline. Past its ramps a pipeline takes its slowest stage for
    every further micro-batch.
    """
    rates = []
    for row in times:
        depth, slowest = len(row), max(row)
        ramps = gpipe_ms(row, depth) - (depth - 1) * slowest
        rates.append(Rate(1, micro_batch, max(ramps, slowest), slowest))
    counts = micro_batches(rates, global_batch)[1]
    return max(gpipe_ms(row, m) for row, m in zip(times, counts, strict=True) if m)
