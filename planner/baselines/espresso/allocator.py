"""Espresso's GPU allocator: best-first over how many stages each GPU type gets."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from planner.baselines.espresso.placer import Job, place

Ints = NDArray[np.int64]
Bound = Callable[[Sequence[int], int, Sequence[int]], float]


@dataclass(frozen=True)
class Placement:
    """One answer: types and blocks by stage, and what it is worth (less is better).

    label: of the question it answers.
    """

    value: float
    time_ms: float
    order: tuple[int, ...]
    layers: tuple[int, ...]
    label: tuple[int, ...] = ()


@dataclass(frozen=True)
class Question:
    """The tree of one depth, DP degree, TP degree and micro-batch size.

    quota: stages of each type at most. value: of a placement, from its stages by type and its ms.
    bound(stages by type, stages to come, types they may be of): the least value of that,
    infinite where it can hold no plan. goes_on: whether an unfinished multiset may still beat a
    value. limit_ms: iteration times from there on count for nothing. from_parent: an unfinished
    multiset is completed from its parent's type on (the release), not with the types to come.
    by_time: the value is the time and the bound is proven, so what reaches the best need not be
    looked at.
    label: tells questions apart.
    """

    depth: int
    job: Job
    quota: tuple[int, ...]
    value: Callable[[Sequence[int], float], float]
    bound: Bound
    goes_on: Callable[[Sequence[int], float], bool]
    limit_ms: float = np.inf
    from_parent: bool = False
    by_time: bool = False
    label: tuple[int, ...] = ()


@dataclass(order=True)
class _Node:
    bound: float
    counts: list[int] = field(compare=False)
    level: int = field(compare=False)


class Allocator:
    """The search; `best` is its answer so far, `evaluations` counts placements that were timed."""

    def __init__(self, stop: Callable[[int], bool] = lambda evaluations: False) -> None:
        self.best: Placement | None = None
        self.kept: list[Placement] = []
        self.evaluations = 0
        self.stop = stop

    @property
    def best_value(self) -> float:
        """The value to beat."""
        return np.inf if self.best is None else self.best.value

    def search(self, question: Question) -> None:
        """Homogeneous sets first, then the tree: a level is a type, a branch its stages."""
        types = len(question.quota)
        for g in range(types):
            if question.quota[g] >= question.depth and not self.stop(self.evaluations):
                self._try(question, [question.depth * (u == g) for u in range(types)])
        heap = [_Node(0.0, [0] * types, -1)]
        while heap and not self.stop(self.evaluations):
            node = heapq.heappop(heap)
            if question.by_time and node.bound >= self.best_value:
                return
            used = sum(node.counts)
            if used == question.depth:
                self._try(question, node.counts)
                continue
            if node.level + 1 >= types:
                continue
            if used and not question.goes_on(node.counts, self.best_value):
                continue
            g = node.level + 1
            for count in range(min(question.quota[g], question.depth - used) + 1):
                counts = list(node.counts)
                counts[g] += count
                bound = self._completed(question, counts, node.level)
                if bound < np.inf:
                    heapq.heappush(heap, _Node(bound, counts, g))

    def _completed(self, question: Question, counts: list[int], parent: int) -> float:
        missing = question.depth - sum(counts)
        types = list(range(parent + 2, len(counts)))
        if question.from_parent:
            types = list(range(max(parent, 0), len(counts)))
            if parent < 0:
                types.insert(0, len(counts) - 1)
        return question.bound(counts, missing, types)

    def _try(self, question: Question, counts: list[int]) -> None:
        limit = min(question.limit_ms, self.best_value) if question.by_time else question.limit_ms
        time_ms, order, layers, timed = place(question.job, np.array(counts, np.int64), limit)
        self.evaluations += timed
        if not time_ms < limit:
            return
        value = question.value(counts, time_ms)
        found = Placement(
            value, time_ms, tuple(order.tolist()), tuple(layers.tolist()), question.label
        )
        self.kept.append(found)
        if value < self.best_value:
            self.best = found
