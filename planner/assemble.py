"""From filled templates to a plan document's plan: GPU indices, shares of the batch, prediction."""

from __future__ import annotations

from collections.abc import Sequence

from planner.cost import price_filled, rates
from planner.filled import FilledTemplate
from planner.packing import assign_gpus
from planner.problem import Problem
from planner.shares import deal
from specs.plan import Place, Plan, Replica, Template


def assemble(problem: Problem, templates: Sequence[FilledTemplate], planner: str) -> Plan:
    """The plan of these templates, priced, with the batch dealt by section 13.9.

    On every node the groups take GPUs from index 0 upwards, in the order template, replica, stage.
    Raises PlanError where the templates are no plan (no share for a template, GPUs used twice), and
    ProfileMissing.
    """
    prediction = price_filled(problem, templates)
    times = [[stage.time_ms for stage in stages] for stages in prediction.stages]
    shares = deal(rates(templates, times), prediction.micro_batches, problem.workload.global_batch)
    nodes = problem.cluster.nodes
    held = [0] * len(nodes)
    laid = []
    for template, dealt in zip(templates, shares, strict=True):
        replicas = []
        for row, share in zip(template.nodes, dealt, strict=True):
            places = tuple(
                Place(nodes[node].name, assign_gpus(nodes, held, node, stage.tp))
                for node, stage in zip(row, template.stages, strict=True)
            )
            replicas.append(Replica(share.micro_batches, share.last_micro_batch, places))
        laid.append(Template(template.micro_batch, template.stages, tuple(replicas)))
    return Plan(
        planner,
        problem.model,
        problem.workload,
        problem.cluster,
        tuple(laid),
        prediction,
    )
