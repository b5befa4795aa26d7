"""AMP (NeurIPS '22): every combination of TP, DP and PP degree and micro-batch size, each costed.

Published: the nodes are equal in size. TP divides a node's GPUs, DP all that is left of them, PP
is the rest; DP and micro-batch size divide the batch. Ranks stand in the order stage, replica,
TP. Layers are split by dynamic programming that weighs the slowest stage M - 1 times beside the
sum. Iteration = (M - 1) * slowest stage + all layers + sends at the cuts + slowest gradient ring.
Nothing is pruned. Read beside the paper's abstract: the public code (DachengLi1/AMP), from which
the formulas are. Nothing of it is copied.

Assumed: the placements that are tried are the orders of GPU types (the paper's strategy names a
placement; the released scripts use the listed order alone). A stage is as slow as its slowest GPU
type. Layer times are those of our profiles at the micro-batch size, with our host overhead once a
stage. Memory, which AMP leaves to trying out its best plans, limits the split: state, activations
of min(M, S - k) micro-batches in flight, framework constant and largest transient. Bytes are those
of the run's precision. `evaluations` are strategies split.

Not reproduced from the released code (tests/planner/baselines/amp_release.py holds the search to
its recorded runs with all of it): the gradient ring at the speed of its last edge; sends dropped
in the dynamic program; one speed for all stages, two GPU types blended three to one; a batch that
DP does not divide ending the search; fp32 volumes whatever the precision.

Conversion: replica r of every stage together are pipeline r, on the nodes of its ranks; pipelines
with the same GPU types are one template, each with an even share. Where nodes differ in size,
every GPU is read as its own node (TP 1), and the result says so.
"""

from __future__ import annotations

import time
from collections import Counter
from itertools import pairwise

from planner.baselines.amp.inputs import Costed
from planner.baselines.amp.question import is_even, question
from planner.baselines.amp.rules import Intended
from planner.baselines.amp.search import AmpSearch
from planner.baselines.amp.split import best_split
from planner.baselines.metis.balance import StageLimits
from planner.baselines.pipelines import Pipeline, plans_that_fit, stage_of
from planner.problem import Problem
from planner.result import Budget, PlanResult, Status

NAME = "amp"


def plan(problem: Problem, budget: Budget, seed: int) -> PlanResult:
    """AMP's fastest plan by its own formulas. seed: not used, nothing is drawn.

    Where none fits our memory check, the fastest that does not.
    """
    _compile()
    started = time.perf_counter()
    search = AmpSearch(
        question(problem),
        Intended(),
        lambda evaluations: budget.spent(time.perf_counter() - started, evaluations),
    )
    ranked = search.run()
    rejected = Counter(search.rejected)
    plans = plans_that_fit(
        problem, NAME, ranked, lambda costed: pipelines(problem, costed), rejected
    )
    parts = [] if plans else ["no plan: no combination of degrees fits memory and profiles"]
    parts.append(
        "all degrees and micro-batch sizes"
        if search.finished
        else "not all degrees and micro-batch sizes within the budget"
    )
    if not is_even(problem):
        parts.append("nodes differ in size: every GPU read as a node of its own")
    return PlanResult(
        plan=plans[0] if plans else None,
        planning_s=time.perf_counter() - started,
        evaluations=search.evaluations,
        rejected=dict(rejected.most_common()),
        status=Status.OK if plans else Status.NO_PLAN if search.finished else Status.BUDGET,
        reason="; ".join(parts),
        alternatives=tuple(plans[1:]),
    )


def pipelines(problem: Problem, costed: Costed) -> list[Pipeline]:
    """The DP replicas of a strategy, on the nodes of their ranks."""
    strategy = costed.strategy
    samples = problem.workload.global_batch // strategy.dp
    found = []
    for replica in range(strategy.dp):
        nodes = [strategy.node(k, replica) for k in range(strategy.pp)]
        stages = tuple(
            stage_of(problem, node.gpu, strategy.tp, range(first, end))
            for node, (first, end) in zip(nodes, pairwise(costed.bounds), strict=True)
        )
        places = tuple(node.number for node in nodes)
        found.append(Pipeline(strategy.micro_batch, stages, samples, places))
    return found


def _compile() -> None:
    """Have the split ready before time counts."""
    best_split([StageLimits(((0.0, 1.0),), (((0.0, 1.0), 1.0),))], 1, 2)
