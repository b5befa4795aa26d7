"""Sailor (SOSP '25, arXiv 2504.17096): one pipeline, D replicas of each stage, GPU types mixed.

Published: loops over depth, micro-batch size and D around a dynamic program that deals the D
replicas of each stage to GPU types; the layers are cut evenly and the TP degree of a stage follows
by rule (the smallest that fits memory, or the larger one up to which every step pays). Heuristics:
TP inside a node (H1), no TP below what memory needs (H2), D falling until throughput stops rising
(H3), D rising for cost (H4), a stage in one region (H5), zones of a region merged (H6). Iteration
= (M - 1) * slowest stage + stage times + sends + slowest gradient ring + update, every replica
running the same M. Read beside the paper: the released code (MIT), from which the figure 1.5 of
the TP rule, the thinning of D and the passing over of equally fast deals are.

Assumed: layer times with their TP collectives are those of our profiles; a link is latency +
bytes / bandwidth of the slowest network card of a GPU type, and every replica is a machine of its
own, whatever node it shares, as in Sailor; memory of stage i of P is (state bytes + two further
copies) per parameter + activations of one micro-batch * (P - i) + framework constant and largest
transient, within our limit. The paper speaks of a least TP degree and of scaling; here each type
may run at either, and all combinations are tried. A problem here is one region without a price
limit, so H4 to H6 have nothing to decide. Deals that a lower bound on their time shows to be
slower than a known plan are not followed; the answer is the same. Time is counted from the first
depth on; `evaluations` are whole pipelines timed.

Not reproduced from the released code (`Rules.release`, for tests, does): the TP rule that treats
the first GPU type in the alphabet unlike the others; H3 ending the search where types differ in
speed; a type given up for all stages because one does not fit; answers kept from other queries
and other region lists; the update forgotten for P > 1; the cost objective that knows P = 1 only;
sizes known for TP 1, 2, 4 only and degrees without a profile taken as free.

Conversion: replica r of every stage together are pipeline r; pipelines with the same types and
degrees are one template. Each keeps Sailor's share, an even one. Groups are packed into nodes by
us, in the better of two orders; a plan that no packing holds is passed over for the next. GPU
types whose nodes differ in size are read as nodes of one GPU each (TP 1), and the result says so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter

import numpy as np

from planner.baselines.pipelines import (
    Pipeline,
    even_samples,
    plan_of_pipelines,
    stage_of,
)
from planner.baselines.sailor.inputs import Figures, FiguresKey, Inputs, Zone
from planner.baselines.sailor.question import question, uneven_types
from planner.baselines.sailor.search import Candidate, SailorSearch
from planner.problem import Problem
from planner.refusal import NO_PACKING
from planner.result import Budget, PlanResult, Status
from specs.errors import PlanError
from specs.plan import Plan

log = logging.getLogger(__name__)
NAME = "sailor"
HANDED_OVER = 4  # plans: the best and the next best
MOST_PASSED_OVER = 100  # candidates without a packing before giving up


def plan(problem: Problem, budget: Budget, seed: int) -> PlanResult:
    """Sailor's fastest plan by its own formulas. seed: not used, nothing is drawn."""
    started = time.perf_counter()
    inputs = question(problem)
    started += _compile()
    search = SailorSearch(inputs, most_evaluations=budget.evaluations)
    timer = None
    if budget.seconds is not None:
        left = budget.seconds - (time.perf_counter() - started)
        timer = threading.Timer(max(left, 0.0), search.stop)
        timer.daemon = True
        timer.start()
    try:
        ranked = search.run()
    finally:
        if timer is not None:
            timer.cancel()
    rejected = Counter(search.rejected)
    plans = _plans(problem, inputs, ranked, rejected)
    finished = search.finished
    status = Status.OK if plans else Status.NO_PLAN if finished else Status.BUDGET
    return PlanResult(
        plan=plans[0] if plans else None,
        planning_s=time.perf_counter() - started,
        evaluations=search.evaluations,
        rejected=dict(rejected.most_common()),
        status=status,
        reason=_reason(problem, search, bool(plans)),
        alternatives=tuple(plans[1:]),
    )


def _reason(problem: Problem, search: SailorSearch, found: bool) -> str:
    parts = [] if found else ["no plan: by Sailor's memory rule no depth has GPUs enough"]
    if search.finished:
        parts.append("all depths")
    else:
        parts.append(f"depths up to {search.depth} of {search.inputs.layers} within the budget")
    uneven = uneven_types(problem)
    if uneven:
        parts.append(f"nodes of {', '.join(uneven)} differ in size: read as one GPU each")
    return "; ".join(parts)


def _plans(
    problem: Problem, inputs: Inputs, ranked: list[Candidate], rejected: Counter[str]
) -> list[Plan]:
    plans: list[Plan] = []
    for candidate in ranked:
        if len(plans) == HANDED_OVER or rejected[NO_PACKING] >= MOST_PASSED_OVER:
            break
        try:
            found = plan_of_pipelines(problem, NAME, pipelines(problem, inputs, candidate))
        except PlanError as error:
            rejected[str(error)] += 1
            continue
        if found is None:
            rejected[NO_PACKING] += 1
        else:
            plans.append(found)
    return plans


def pipelines(problem: Problem, inputs: Inputs, candidate: Candidate) -> list[Pipeline]:
    """Replica r of every stage as pipeline r."""
    ends = [*candidate.starts.tolist()[1:], inputs.layers]
    stages = [
        [
            stage_of(problem, inputs.types[t], tp, range(int(start), int(end)))
            for t, tp, _ in candidate.stage_of(i)
        ]
        for i, (start, end) in enumerate(zip(candidate.starts, ends, strict=True))
    ]
    samples = even_samples(problem.workload.global_batch, candidate.peers)
    return [
        Pipeline(candidate.micro_batch, tuple(stage[r] for stage in stages), share)
        for r, share in enumerate(samples)
    ]


def _compile() -> float:
    """Seconds it took to have the kernel ready; the first time after an install it is compiled."""
    started = time.perf_counter()
    one = np.ones(1)
    SailorSearch(
        Inputs(
            types=("gpu",),
            global_batch=1,
            zones=(Zone("zone", "zone", (1,)),),
            tps=((1,),),
            figures={FiguresKey(0, 1, 1): Figures(one, one, one, one, 0.0)},
            capacity_bytes=(2.0,),
            gradient_bytes=one,
            send_ms=lambda *_: 0.0,
            step_ms=lambda nbytes, *_: nbytes,
            bandwidth=lambda *_: 1.0,
            sent_bytes=1.0,
            largest_peers=2,
            usd_per_ms=(0.0,),
            egress_usd_per_byte=np.zeros((1, 1)),
        )
    ).run()
    took = time.perf_counter() - started
    if took > 1:
        log.info("Sailor's kernel was made ready in %.1f s", took)
    return took
