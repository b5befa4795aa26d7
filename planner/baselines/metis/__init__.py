"""Metis (USENIX ATC '24): groups of GPUs from outside in, data before tensor parallelism inside.

Published: the GPUs stand in a row, one type after the other. For every order of types, number of
stages, deal of the row to stages (groups of like size, powers of two) and number of micro-batches
(divisors of the batch), each stage starts with data parallelism alone; while memory makes the
layer split give way, one stage halves its DP and doubles its TP degree. A group may reach over two
types: its replicas then share the samples by speed. Layers go to stages by speed. Iteration =
(M - 1) * slowest stage + stage times + overhead + update + gradient rings + sends, from profiles.
Read beside the paper's abstract: the public code (SamsungLabs/Metis), from which the limit on
permutations, the order of the search and the formulas are. Nothing of it is copied.

Assumed: like-size groups first (scale variance 1), then those of the released default 0.5, with
at most 4 blocks permuted; the order the released default. Overhead of a micro-batch is our host
overhead. Memory is per GPU: state, activations of min(M, S - k) micro-batches in flight, framework
constant and largest transient, within our limit (Metis holds a profiled figure against the memory
of a whole group). A TP group lies in one node. Layers are split by the exact minimum of the
slowest stage, where Metis deals sevenths of layers and repairs. `evaluations` are layouts split.

Not reproduced from the released code (tests/planner/baselines/metis_release.py holds the search
to its recorded runs with all of it): the second and later orders of types start with plans costed
for their first stage only, which then top the list; layers lost and stages left empty; links
between nodes taken for links inside; rings along the TP direction; five times the memory of one
replica against that of its whole group, without activations in flight; optimizer time and sizes of
whichever profile file comes first; an order of types that depends on a hash seed; a micro-batch
without a profile, or nodes whose GPUs are no power of two, ending the search.

Conversion: our templates run one DP degree. The least of the stages' becomes it, and a stage with
more replicas than that runs them as one TP group where the node is large enough and profiled; what
cannot be so is passed over for the next plan of the ranking. Replicas of a mixed stage become
templates of their own, with the samples of their share. Groups lie on the ranks that Metis gives
them; where one would cross nodes, we pack them.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter

from planner.baselines.metis.balance import StageLimits, balanced
from planner.baselines.metis.convert import pipelines
from planner.baselines.metis.inputs import Costed
from planner.baselines.metis.question import question
from planner.baselines.metis.rules import Intended
from planner.baselines.metis.search import MetisSearch
from planner.baselines.pipelines import plans_that_fit
from planner.problem import Problem
from planner.result import Budget, PlanResult, Status

NAME = "metis"
VARIANCES = (1.0, 0.5)  # scale variance of a pass; the second pass has the first's groups too
MOST_PERMUTED = 4  # blocks
RANKED = 400  # plans kept for conversion


def plan(problem: Problem, budget: Budget, seed: int) -> PlanResult:
    """Metis's fastest plan by its own formulas that we can lay down. seed: nothing is drawn.

    Where none fits our memory check, the fastest that does not.
    """
    balanced([StageLimits(((0.0, 1.0),), ())], 1)  # have it compiled before time counts
    started = time.perf_counter()
    inputs = question(problem)
    kept: list[tuple[float, int, Costed]] = []
    rejected: Counter[str] = Counter()
    evaluations = number = 0
    covered: list[str] = []
    finished = True
    for variance in VARIANCES:
        before = evaluations
        search = MetisSearch(
            inputs,
            Intended(variance, MOST_PERMUTED),
            lambda more, before=before: budget.spent(  # type: ignore[misc]
                time.perf_counter() - started, before + more
            ),
        )
        for costed in search.run():
            number += 1
            entry = (-costed.cost_ms, -number, costed)
            if len(kept) < RANKED:
                heapq.heappush(kept, entry)
            elif entry > kept[0]:
                heapq.heapreplace(kept, entry)
        evaluations += search.evaluations
        rejected += search.rejected
        if not search.finished:
            finished = False
            break
        covered.append(f"{variance:g}")
    ranked = [costed for _, _, costed in sorted(kept, reverse=True)]
    plans = plans_that_fit(
        problem, NAME, ranked, lambda costed: pipelines(problem, inputs, costed), rejected
    )
    parts = [] if plans else [_why_none(ranked)]
    parts.append(
        f"all groups of scale variance {' and '.join(covered)}"
        if covered
        else "not all groups of scale variance 1 within the budget"
    )
    return PlanResult(
        plan=plans[0] if plans else None,
        planning_s=time.perf_counter() - started,
        evaluations=evaluations,
        rejected=dict(rejected.most_common()),
        status=Status.OK if plans else Status.NO_PLAN if finished else Status.BUDGET,
        reason="; ".join(parts),
        alternatives=tuple(plans[1:]),
    )


def _why_none(ranked: list[Costed]) -> str:
    if ranked:
        return "no plan: none of Metis's plans has a form as templates of equal replicas"
    return "no plan: no group layout fits memory and profiles"
