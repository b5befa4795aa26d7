"""Espresso (INFOCOM '25): the cheapest set of GPUs that meets a time limit; here the fastest.

Published: for DP degrees that are powers of two and depths up to 8, a best-first tree deals the
stages to GPU types (a level is a type, a branch how many stages it gets); a leaf goes to a greedy
placer that orders the types and gives each stage the blocks whose gradient synchronisation hides
behind the backward passes of the stages before it, within its memory and its share of the speed,
once for every size of the first stage; the best by an event simulation of 1F1B, each stage's
synchronisation after its last backward, is kept. A stage's forward carries 0.8 (P - 1) of its
send. Formulas as in the paper's public repository (icloud-ecnu/Espresso), which was read and run.

Assumed: our problems have no price and no limit, so what is minimised is the iteration time (as
if the limit were tightened until nothing met it). The job file that fixes TP degree and
micro-batch size is not there: every profiled pair is asked for. Times of our profiles take the
place of FLOPS at assumed efficiencies, in the shares, the simulation and the bound; memory is
state, activations of min(P - i, M) micro-batches, framework constant and largest transient within
our limit instead of a line fitted to one platform; links are those of the cluster. DP degrees go
on beyond the 8 of the released list, as far as GPUs last. Blocks are taken for equal.

Not reproduced from the released code (`Job.release` and `Question.from_parent`, for tests, do):
the memory test that throws away unfinished sets; the bound at 35 % of peak, which is none; the
largest depth left out; undefined flags; two tables of efficiencies that disagree; an all-reduce
at 2.5 Gbit/s whatever the network; the embedding forgotten at depth 1; splits that add up to
another number of blocks, or leave a stage without one.

Conversion: one template, its DP replicas with even shares of the batch, packed into nodes by us in
the better of two orders; what no packing holds is passed over for the next best. GPU types
whose nodes differ in size are read as nodes of one GPU each (TP 1), and the result says so.
`evaluations` are placements looked at.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from itertools import accumulate

import numpy as np

from planner.baselines.espresso.allocator import Allocator, Placement
from planner.baselines.espresso.placer import Job, place
from planner.baselines.espresso.question import questions
from planner.baselines.pipelines import Pipeline, even_samples, plan_of_pipelines, stage_of
from planner.baselines.sailor.question import gpu_types, uneven_types
from planner.problem import Problem
from planner.refusal import NO_PACKING
from planner.result import Budget, PlanResult, Status
from specs.errors import PlanError
from specs.plan import Plan

log = logging.getLogger(__name__)
NAME = "espresso"
HANDED_OVER = 4  # plans: the best and the next best


def plan(problem: Problem, budget: Budget, seed: int) -> PlanResult:
    """Espresso's fastest plan by its own formulas. seed: not used, nothing is drawn."""
    _compile()
    started = time.perf_counter()
    allocator = Allocator(
        lambda evaluations: budget.spent(time.perf_counter() - started, evaluations)
    )
    finished = True
    for question in questions(problem):
        if allocator.stop(allocator.evaluations):
            finished = False
            break
        allocator.search(question)
    rejected: Counter[str] = Counter()
    plans = _plans(problem, allocator, rejected)
    parts = [] if plans else ["no plan: no set of up to 8 stages has memory and GPUs enough"]
    parts.append(
        "all TP degrees, micro-batch sizes, DP degrees and depths up to 8"
        if finished
        else "not all of TP degrees, micro-batch sizes, DP degrees and depths within the budget"
    )
    uneven = uneven_types(problem)
    if uneven:
        parts.append(f"nodes of {', '.join(uneven)} differ in size: read as one GPU each")
    return PlanResult(
        plan=plans[0] if plans else None,
        planning_s=time.perf_counter() - started,
        evaluations=allocator.evaluations,
        rejected=dict(rejected.most_common()),
        status=Status.OK if plans else Status.NO_PLAN if finished else Status.BUDGET,
        reason="; ".join(parts),
        alternatives=tuple(plans[1:]),
    )


def _plans(problem: Problem, allocator: Allocator, rejected: Counter[str]) -> list[Plan]:
    plans: list[Plan] = []
    for placement in sorted(allocator.kept, key=lambda found: found.time_ms):
        if len(plans) == HANDED_OVER:
            break
        try:
            found = plan_of_pipelines(problem, NAME, pipelines(problem, placement))
        except PlanError as error:
            rejected[str(error)] += 1
            continue
        if found is None:
            rejected[NO_PACKING] += 1
        else:
            plans.append(found)
    return plans


def pipelines(problem: Problem, placement: Placement) -> list[Pipeline]:
    """The DP replicas of a placement."""
    tp, micro_batch, dp = placement.label
    types = gpu_types(problem)
    counts = list(placement.layers)
    counts[0] += 1  # the embedding
    counts[-1] += 1  # the head
    ends = list(accumulate(counts))
    stages = tuple(
        stage_of(problem, types[g], tp, range(end - count, end))
        for g, count, end in zip(placement.order, counts, ends, strict=True)
    )
    return [
        Pipeline(micro_batch, stages, samples)
        for samples in even_samples(problem.workload.global_batch, dp)
    ]


def _compile() -> None:
    """Have the placer ready before time counts; after an install this compiles it."""
    started = time.perf_counter()
    one, two = np.ones(1), np.ones((1, 2))
    job = Job(1, 1, one, one, one, two, two, one, one, one, one, one, np.ones((1, 1), int), False)
    place(job, np.ones(1, np.int64), np.inf)
    took = time.perf_counter() - started
    if took > 1:
        log.info("Espresso's placer was made ready in %.1f s", took)
