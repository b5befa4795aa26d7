"""Improvement of plans by single changes of their structural templates."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

from planner.enumeration import Kinds
from planner.kernel.engine import Engine

Genotype = tuple[tuple[Kinds, int], ...]
"""A plan by what the fill does not decide: per template its kinds and the replicas given up."""

FEWER = (0, 1, 2, 4)  # DESIGN section 13, 20
CLEARLY = 1 - 1e-9
WITHIN = 1.10  # plans this much slower than the best are still improved


class LocalMoves:
    """Improves plans on one engine; every plan is priced once.

    offer: told (iteration_ms, genotype) of every plan that fits, right after it was priced, while
    its templates are laid in the engine. spent: asked before every plan whether to stop.
    """

    def __init__(
        self,
        engine: Engine,
        usable: Sequence[int],
        offer: Callable[[float, Genotype], None],
        spent: Callable[[], bool],
        most_templates: int,
    ) -> None:
        self.engine = engine
        self.usable = usable
        self.offer = offer
        self.spent = spent
        self.most_templates = min(most_templates, engine.templates)
        self.prices: dict[Genotype, float] = {}
        self.best_ms = float("inf")
        self._queue: list[tuple[float, Genotype]] = []

    def price(self, genotype: Genotype) -> float:
        """Iteration time in ms of a plan, its templates filled one behind the other; -1: none."""
        known = self.prices.get(genotype)
        if known is not None:
            return known
        took = -1.0
        for k, (kinds, fewer) in enumerate(genotype):
            self.engine.prepare(k)
            took = self.engine.fill_kinds(k, kinds, fewer)
            if took < 0:
                break
        self.prices[genotype] = took
        if took >= 0:
            self.offer(took, genotype)
            self.best_ms = min(self.best_ms, took)
            if took <= self.best_ms * WITHIN:
                heapq.heappush(self._queue, (took, genotype))
        return took

    def climb(self, genotype: Genotype) -> bool:
        """Take the first change that helps, again and again, until none does; False when spent.

        Where the last change helped, the neighbours behind it are tried first: a change that was
        just found worse is rarely better one step on.
        """
        took = self.price(genotype)
        if took < 0:
            return True
        at = 0
        tried = 0
        options = list(self.neighbours(genotype))
        while tried < len(options):
            if self.spent():
                return False
            neighbour = options[at % len(options)]
            at += 1
            tried += 1
            better = self.price(neighbour)
            if 0 <= better < took * CLEARLY:
                took = better
                options = list(self.neighbours(neighbour))
                tried = 0
        return True

    def run(self) -> bool:
        """Expand plans, the fastest first; True when there is nothing left, False when spent."""
        while self._queue:
            took, genotype = heapq.heappop(self._queue)
            if took > self.best_ms * WITHIN:
                return True
            for neighbour in self.neighbours(genotype):
                if self.spent():
                    return False
                self.price(neighbour)
        return True

    def neighbours(self, genotype: Genotype) -> Iterator[Genotype]:
        """Every plan one change away: of a stage, of the replicas, of the list of templates."""
        for k, (kinds, fewer) in enumerate(genotype):
            for changed in structure_steps(kinds, self.usable, self.engine.depth):
                yield (*genotype[:k], (changed, fewer), *genotype[k + 1 :])
            for other in FEWER:
                if other != fewer:
                    yield (*genotype[:k], (kinds, other), *genotype[k + 1 :])
        if len(genotype) > 1:
            for k in range(len(genotype)):
                yield genotype[:k] + genotype[k + 1 :]
            for k in range(len(genotype) - 1):
                swapped = list(genotype)
                swapped[k], swapped[k + 1] = swapped[k + 1], swapped[k]
                yield tuple(swapped)
        if len(genotype) < self.most_templates:
            for kinds, _ in genotype:
                yield (*genotype, (kinds, 0))
            for q in self.usable:
                yield (*genotype, ((q,), 0))
                yield (*genotype, ((q, q), 0))


def structure_steps(kinds: Kinds, usable: Sequence[int], most_stages: int) -> Iterator[Kinds]:
    """Every structure one change away: a stage changed, removed, added, two neighbours swapped."""
    for s, old in enumerate(kinds):
        for q in usable:
            if q != old:
                yield (*kinds[:s], q, *kinds[s + 1 :])
    if len(kinds) > 1:
        for s, old in enumerate(kinds):
            if s == 0 or kinds[s - 1] != old:
                yield kinds[:s] + kinds[s + 1 :]
    if len(kinds) < most_stages:
        for s in range(len(kinds) + 1):
            for q in usable:
                if s == 0 or kinds[s - 1] != q:
                    yield (*kinds[:s], q, *kinds[s:])
    for s in range(len(kinds) - 1):
        if kinds[s] != kinds[s + 1]:
            yield (*kinds[:s], kinds[s + 1], kinds[s], *kinds[s + 2 :])
