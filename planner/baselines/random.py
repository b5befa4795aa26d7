"""Random valid templates under the same masks and fill as every other planner: the baseline.

Own design: no paper. Each draw lays templates one after the other on the GPUs that are left,
every stage a GPU type and TP degree drawn evenly among those that still pack, the depth drawn
first. A template is kept if the whole plan gets faster.
"""

from __future__ import annotations

import random as pseudo_random

from planner.fill.template import Structure, fill_template
from planner.filled import FilledPlan, FilledTemplate
from planner.packing import Demand, FreeGpus, Placement, pack
from planner.problem import Problem
from planner.result import Budget, PlanResult
from planner.search import Search

MOST_TEMPLATES = 8
MOST_STAGES = 32
DEFAULT_EVALUATIONS = 2_000  # where a budget names no ceiling: a random search has no natural end


def plan(problem: Problem, budget: Budget, seed: int) -> PlanResult:
    """The best of random plans within the budget; the same for the same seed.

    Where the budget names neither seconds nor evaluations, 2,000 evaluations are drawn.
    """
    if budget.seconds is None and budget.evaluations is None:
        budget = Budget(evaluations=DEFAULT_EVALUATIONS)
    search = Search(problem, "random", budget)
    draw = pseudo_random.Random(seed)
    draws = 0
    while not search.spent:
        draws += 1
        _lay_templates(problem, search, draw)
    return search.result(reason=f"{draws:,} random plans drawn", finished=False)


def _lay_templates(problem: Problem, search: Search, draw: pseudo_random.Random) -> None:
    laid: list[FilledTemplate] = []
    so_far = float("inf")
    while len(laid) < MOST_TEMPLATES:
        free = FreeGpus.of(problem, FilledPlan(problem.cluster, tuple(laid)).used)
        structure = draw_structure(problem, free, draw)
        if structure is None:
            return
        fill = fill_template(problem, structure, laid)
        search.count(fill.evaluations, fill.refusals)
        if fill.best is None or fill.best[1].iteration_ms >= so_far or search.spent:
            return
        laid.append(fill.best[0])
        so_far = fill.best[1].iteration_ms
        search.offer(so_far, laid)


def draw_structure(
    problem: Problem, free: FreeGpus, draw: pseudo_random.Random
) -> Structure | None:
    """A random structural template that packs at least once; None where no GPU is left.

    The depth is even between 1 and the most that could pack; it ends early where no further
    stage packs.
    """
    kinds = [Demand(gpu, tp) for gpu, tp in free.usable]
    most = min(problem.model.blocks, MOST_STAGES, sum(free.free))
    if most < 1:
        return None
    depth = draw.randint(1, most)
    stages: list[Demand] = []
    while len(stages) < depth:
        fitting = [
            kind for kind in kinds if pack(free, [*stages, kind], 1, Placement.REPLICA) is not None
        ]
        if not fitting:
            break
        stages.append(draw.choice(fitting))
    return tuple(stages) or None
