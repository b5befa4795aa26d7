"""A reconstruction of HetAuto (EuroSys '26): its paper and code are not public here.

Published, as indexes of the paper have it: the search for a strategy is a sequence of decisions,
made by Monte Carlo tree search guided by principles, with a cost model that a random forest
improves. Not known, and so our own: everything else, which is order and size of the decisions, the
principles, the tree's policy and its constants, rollouts and values, features, target and use of
the forest. Its Virtual-1F1B and its unified accelerator interface are not part of a search and are
left out. What this planner does says nothing about how well the published system does.

Reconstructed: decisions are those of the learned planner (template after template a depth, or none,
then GPU type and TP degree of every stage), and every template is filled by the shared rules and
priced by our cost model, so that a comparison by evaluations compares searches and nothing else.
Tree policy: value + 1.4 P sqrt(N) / (1 + n), the value being half mean and half best of first
plan's time / time, clipped to [0, 2]. P and rollouts follow principles: TP inside a node, shallow
before deep, equal types next to each other, nothing that cannot hold the model. From 64 priced
templates on, each rollout draws four completions and takes the one that the forest (20 trees,
fitted anew at each doubling) thinks fastest.

Ends at the budget, or after 1,000 simulations in a row that met nothing new; without a budget after
2,000 evaluations. Deterministic for a seed and a ceiling on evaluations.
"""

from __future__ import annotations

import time
from collections import Counter

from planner.baselines.hetauto.tree import TreeSearch
from planner.kernel.engine import Engine
from planner.problem import Problem
from planner.result import Budget, PlanResult
from planner.search import Search

NAME = "hetauto"
DEFAULT_EVALUATIONS = 2_000  # where a budget names no ceiling: the search has no natural end


def plan(problem: Problem, budget: Budget, seed: int) -> PlanResult:
    """The best plan that the tree search meets within the budget."""
    if budget.seconds is None and budget.evaluations is None:
        budget = Budget(evaluations=DEFAULT_EVALUATIONS)
    _load_code(problem)
    started = time.perf_counter()
    engine = Engine(problem)
    search = Search(problem, NAME, budget, started)
    if not engine.kinds:
        return search.result(reason="no GPU type has profiles", finished=True)
    tree = TreeSearch(engine, search, seed)
    finished = tree.run()
    tally = engine.tally()
    search.rejected, search.closest = Counter(tally.rejected), tally.closest
    return search.result(
        reason=f"reconstruction; {tree.simulations:,} simulations", finished=finished
    )


def _load_code(problem: Problem) -> None:
    """Have the kernel ready before time counts."""
    engine = Engine(problem)
    if engine.kinds:
        engine.prepare(0)
        engine.fill(0, engine.row(engine.kinds[:1]))
