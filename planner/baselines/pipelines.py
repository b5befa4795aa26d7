"""From pipelines that another planner lays down to a plan of ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from planner.cost import price
from planner.packing import FreeGpus, Placement, assign_gpus
from planner.problem import Problem
from planner.refusal import NO_PACKING
from specs.errors import PlanError, ProfileMissing
from specs.layer import LayerKind
from specs.plan import Place, Plan, Replica, Stage, Template

HANDED_OVER = 4  # plans: the best and the next best
DOES_NOT_FIT = "memory, as a plan of ours"

CandidateT = TypeVar("CandidateT")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One copy of the model and its share of the batch.

    nodes: index of each stage's node, empty where it is for us to find one.
    """

    micro_batch: int
    stages: tuple[Stage, ...]
    samples: int
    nodes: tuple[int, ...] = ()


def stage_of(problem: Problem, gpu: str, tp: int, layers: range) -> Stage:
    """A stage whose experts, if it has any, are sharded by its TP degree alone."""
    moe = any(problem.model.layers[i].kind is LayerKind.MOE_BLOCK for i in layers)
    return Stage(gpu, tp, layers, 1, tp if moe else 1)


def even_samples(global_batch: int, replicas: int) -> list[int]:
    """Samples of each replica, equal but for one more on the first of them."""
    each, more = divmod(global_batch, replicas)
    return [each + (r < more) for r in range(replicas)]


def plan_of_pipelines(problem: Problem, planner: str, pipelines: Sequence[Pipeline]) -> Plan | None:
    """The priced plan of these pipelines, with their own shares of the batch; None without room.

    Pipelines with equal stages are replicas of one template, in order of first appearance. Where
    they name no nodes, groups are packed by TP degree, largest first, into the node with the
    fewest free GPUs that are enough, in the order of stages and in that of replicas; the faster of
    the two counts. Raises ProfileMissing, and PlanError where the pipelines are no plan.
    """
    if all(pipeline.nodes for pipeline in pipelines):
        return _priced(problem, planner, pipelines, [p.nodes for p in pipelines])
    plans = [
        _priced(problem, planner, pipelines, nodes)
        for placement in Placement
        if (nodes := place(problem, pipelines, placement)) is not None
    ]
    return min(plans, key=_iteration_ms, default=None)


def plans_that_fit(
    problem: Problem,
    planner: str,
    ranked: Iterable[CandidateT],
    pipelines_of: Callable[[CandidateT], Sequence[Pipeline]],
    rejected: Counter[str],
) -> list[Plan]:
    """The first HANDED_OVER candidates that fit our memory check, as plans, in their order.

    Where none fits, the first that does not. pipelines_of may raise PlanError or ProfileMissing.
    rejected: counts what is passed over, by reason.
    """
    plans: list[Plan] = []
    unfit: Plan | None = None
    for candidate in ranked:
        if len(plans) == HANDED_OVER:
            break
        try:
            found = plan_of_pipelines(problem, planner, pipelines_of(candidate))
        except (PlanError, ProfileMissing) as error:
            rejected[str(error)] += 1
            continue
        if found is None:
            rejected[NO_PACKING] += 1
        elif found.prediction is not None and not found.prediction.fits:
            rejected[DOES_NOT_FIT] += 1
            unfit = unfit or found
        else:
            plans.append(found)
    return plans or ([] if unfit is None else [unfit])


def _iteration_ms(plan: Plan) -> float:
    assert plan.prediction is not None  # made by _priced
    return plan.prediction.iteration_ms


def place(
    problem: Problem, pipelines: Sequence[Pipeline], placement: Placement
) -> list[tuple[int, ...]] | None:
    """The node of every stage of every pipeline; None where one finds no room."""
    free = FreeGpus.of(problem)
    found = [[-1] * len(pipeline.stages) for pipeline in pipelines]
    last: dict[str, int] = {}
    for r, s in _groups(pipelines, placement):
        stage = pipelines[r].stages[s]
        fitting = [
            i for i in free.usable.get((stage.gpu, stage.tp), ()) if free.free[i] >= stage.tp
        ]
        if not fitting:
            return None
        node = min(fitting, key=lambda i: (free.free[i], i != last.get(stage.gpu), i))
        free.free[node] -= stage.tp
        last[stage.gpu] = node
        found[r][s] = node
    return [tuple(row) for row in found]


def _groups(pipelines: Sequence[Pipeline], placement: Placement) -> Iterator[tuple[int, int]]:
    """(pipeline, stage) of every TP group in the order of placement."""
    groups = [(r, s) for r, pipeline in enumerate(pipelines) for s in range(len(pipeline.stages))]
    if placement is Placement.STAGE:
        groups.sort(key=lambda group: (group[1], group[0]))
    yield from sorted(groups, key=lambda group: -pipelines[group[0]].stages[group[1]].tp)


def _priced(
    problem: Problem,
    planner: str,
    pipelines: Sequence[Pipeline],
    nodes: Sequence[tuple[int, ...]],
) -> Plan:
    held = [0] * len(problem.cluster.nodes)
    replicas: dict[tuple[int, tuple[Stage, ...]], list[Replica]] = {}
    for pipeline, row in zip(pipelines, nodes, strict=True):
        places = tuple(
            Place(
                problem.cluster.nodes[node].name,
                assign_gpus(problem.cluster.nodes, held, node, stage.tp),
            )
            for node, stage in zip(row, pipeline.stages, strict=True)
        )
        micro_batches = -(-pipeline.samples // pipeline.micro_batch)
        last = pipeline.samples - (micro_batches - 1) * pipeline.micro_batch
        replica = Replica(micro_batches, last, places)
        replicas.setdefault((pipeline.micro_batch, pipeline.stages), []).append(replica)
    templates = tuple(
        Template(micro_batch, stages, tuple(copies))
        for (micro_batch, stages), copies in replicas.items()
    )
    plan = Plan(planner, problem.model, problem.workload, problem.cluster, templates)
    return plan.with_prediction(price(problem, plan))
