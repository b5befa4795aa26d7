"""Everything within a stated space, in order of promise, as far as the budget goes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement, permutations

from planner.fill.template import Structure, fill_template
from planner.packing import Demand, FreeGpus, replicas_by_counting
from planner.problem import Problem
from planner.result import Budget, PlanResult
from planner.search import Search


def plan(problem: Problem, budget: Budget, seed: int) -> PlanResult:
    """The best single template: all multisets of (GPU type, TP) by growing depth.

    seed: not used, nothing is drawn.
    """
    search = Search(problem, "exhaustive", budget)
    depth = 0
    for structure in structures(problem):
        if search.spent:
            return search.result(
                reason=f"single templates up to depth {depth}, not all of the last",
                finished=False,
            )
        depth = len(structure)
        fill = fill_template(problem, structure)
        search.count(fill.evaluations, fill.refusals)
        if fill.best is not None:
            search.offer(fill.best[1].iteration_ms, [fill.best[0]])
    return search.result(reason=f"all single templates up to depth {depth}", finished=True)


def structures(problem: Problem) -> Iterator[Structure]:
    """Multisets of (type, TP) by growing depth, types together, in every order of the types."""
    free = FreeGpus.of(problem)
    kinds = [Demand(gpu, tp) for gpu, tp in free.usable if free.usable[gpu, tp]]
    for depth in range(1, min(problem.model.blocks, problem.cluster.gpus) + 1):
        any_packs = False
        for chosen in combinations_with_replacement(kinds, depth):
            if replicas_by_counting(free, chosen) < 1:
                continue
            any_packs = True
            types = list(dict.fromkeys(demand.gpu for demand in chosen))
            for order in permutations(types):
                yield tuple(d for gpu in order for d in chosen if d.gpu == gpu)
        if not any_packs:
            return
