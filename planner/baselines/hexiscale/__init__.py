"""HexiScale (MLSys '26, first FlashFlex, arXiv 2409.01143): pipelines of different shape.

Published: the GPUs are a complete graph, vertices weighted by compute and edges by bandwidth. A
balanced multilevel partition makes pipelines of it, a second one cuts each into one to three blocks
that keep fast links inside; blocks are put in the order with most bandwidth between neighbours, the
GPUs of one machine are split into TP groups by a table, by what each split alone would take, and
layers are dealt to the stages in proportion to their memory. An iteration = 1.8 * the slowest
pipeline (columns of a GPipe schedule, forward and backward in one) + 1.1 * the synchronisation of
all blocks. Round after round the number of pipelines takes a step up or down, and the partition
keeps fast links between pipelines or inside them, as the moving average of past costs suggests.
From the paper (in notes) and its released planner (Relaxed-System-Lab/FlashFlex), which was run.

Assumed: times are those of our profiles instead of peak FLOPS, for every profiled micro-batch
size, of which the best is kept; links are those of the cluster, without latency. METIS is not at
hand: the partition is our own (heavy-edge matching, region growing, Fiduccia-Mattheyses). The first
rounds spread the number of pipelines over its range; there are 200 rounds. Orders of blocks that
tie in bandwidth (a single block: of its GPU types) are all priced. A pipeline's batch follows from
its speed (the paper says that batches differ, not how they are found).

Not reproduced from the released code: batches computed once, from the first number of pipelines;
blocks ordered for the least bandwidth; only one direction of the partition; empty parts; stages
that get no layer (they are left out, their GPUs stay idle); memory at 8 bytes a parameter and one
micro-batch in flight (here: state of the workload's optimizer, activations of min(P - i, M)
micro-batches, framework and transient within our limit; where a deal by memory has no room, one by
the layers that fit is tried, and the widest TP groups); no pipeline on fewer than five GPUs.

Conversion: pipelines with equal stages are replicas of one template, different ones are templates
of their own, on the very GPUs that HexiScale chose; the batch is dealt to them by our rule, which
is as fast as can be. A plan in which a pipeline would get no micro-batch is passed over for the one
before. `evaluations` are sets of pipelines priced.
"""

from __future__ import annotations

import logging
import time
from collections import Counter

import numpy as np

from planner.assemble import assemble
from planner.baselines.hexiscale.inputs import Inputs
from planner.baselines.hexiscale.partition import partition
from planner.baselines.hexiscale.pipeline import Pipe
from planner.baselines.hexiscale.question import question
from planner.baselines.hexiscale.search import Candidate, HexiScaleSearch
from planner.baselines.pipelines import stage_of
from planner.baselines.sailor.question import gpu_types
from planner.filled import FilledTemplate
from planner.problem import Problem
from planner.result import Budget, PlanResult, Status
from specs.errors import PlanError
from specs.plan import Plan, Stage

log = logging.getLogger(__name__)
NAME = "hexiscale"
ROUNDS = 200
HANDED_OVER = 4  # plans: the best and those before it
NO_ROOM = "a stage has no room for its layers"


def plan(problem: Problem, budget: Budget, seed: int) -> PlanResult:
    """HexiScale's fastest plan by its own formulas; the same for the same seed."""
    _compile()
    started = time.perf_counter()
    inputs = question(problem)
    search = HexiScaleSearch(
        inputs,
        seed,
        lambda evaluations: budget.spent(time.perf_counter() - started, evaluations),
    )
    search.run(ROUNDS)
    rejected: Counter[str] = Counter()
    if search.no_room:
        rejected[NO_ROOM] = search.no_room
    plans: list[Plan] = []
    for candidate in reversed(search.kept):
        if len(plans) == HANDED_OVER:
            break
        try:
            plans.append(assemble(problem, templates(problem, inputs, candidate), NAME))
        except PlanError as error:
            rejected[str(error)] += 1
    finished = search.rounds == ROUNDS
    parts = [] if plans else [f"no plan: {NO_ROOM} in each of {search.evaluations} tries"]
    parts.append(f"{search.rounds} rounds" + ("" if finished else " within the budget"))
    return PlanResult(
        plan=plans[0] if plans else None,
        planning_s=time.perf_counter() - started,
        evaluations=search.evaluations,
        rejected=dict(rejected.most_common()),
        status=Status.OK if plans else Status.NO_PLAN if finished else Status.BUDGET,
        reason="; ".join(parts),
        alternatives=tuple(plans[1:]),
    )


def templates(problem: Problem, inputs: Inputs, candidate: Candidate) -> list[FilledTemplate]:
    """Pipelines as templates, those with equal stages together, in order of first appearance."""
    found: dict[tuple[Stage, ...], list[tuple[int, ...]]] = {}
    types = gpu_types(problem)
    for pipe in candidate.pipes:
        nodes = tuple(int(inputs.node[devices[0]]) for devices in pipe.stages)
        found.setdefault(_stages(problem, types, inputs, pipe), []).append(nodes)
    return [
        FilledTemplate(candidate.micro_batch, stages, tuple(nodes))
        for stages, nodes in found.items()
    ]


def _stages(
    problem: Problem, types: tuple[str, ...], inputs: Inputs, pipe: Pipe
) -> tuple[Stage, ...]:
    stages = []
    first = 0
    last = len(pipe.stages) - 1
    for s, (devices, blocks) in enumerate(zip(pipe.stages, pipe.blocks, strict=True)):
        end = first + blocks + (s == 0) + (s == last)
        gpu = types[int(inputs.gpu[devices[0]])]
        stages.append(stage_of(problem, gpu, len(devices), range(first, end)))
        first = end
    return tuple(stages)


def _compile() -> None:
    """Have the partition ready before time counts; after an install this compiles it."""
    started = time.perf_counter()
    partition(np.ones(2), np.ones((2, 2)), 2, 0)
    took = time.perf_counter() - started
    if took > 1:
        log.info("HexiScale's partition was made ready in %.1f s", took)
