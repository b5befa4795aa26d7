"""What becomes of a plan when its cluster changes: whether it still stands there, and its time."""

from __future__ import annotations

from planner.assemble import assemble
from planner.filled import FilledTemplate
from planner.problem import Problem
from specs.errors import PlanError, ProfileMissing
from specs.plan import Plan


def plan_on(problem: Problem, plan: Plan) -> Plan:
    """A plan as it stands on another cluster, priced there; nodes are found by their names.

    Raises PlanError where a node that it uses is gone or has other or fewer GPUs, or where it does
    not fit there, and ProfileMissing.
    """
    index = {node.name: i for i, node in enumerate(problem.cluster.nodes)}
    used: dict[str, int] = {}
    for template in plan.templates:
        for replica in template.replicas:
            for stage, place in zip(template.stages, replica.places, strict=True):
                node = problem.cluster.node_by_name.get(place.node)
                if node is None:
                    raise PlanError(f"node {place.node} is gone")
                used[place.node] = used.get(place.node, 0) + len(place.gpus)
                if node.gpu != stage.gpu or used[place.node] > node.gpus:
                    raise PlanError(
                        f"node {place.node} has {node.gpus} {node.gpu}, the plan has "
                        f"{used[place.node]} {stage.gpu} there"
                    )
    templates = [
        FilledTemplate(
            template.micro_batch,
            template.stages,
            tuple(
                tuple(index[place.node] for place in replica.places)
                for replica in template.replicas
            ),
        )
        for template in plan.templates
    ]
    found = assemble(problem, templates, plan.planner)
    if found.prediction is None or not found.prediction.fits:
        raise PlanError("it does not fit the memory there")
    return found


def still_stands(problem: Problem, plan: Plan) -> tuple[Plan | None, str]:
    """The plan on the problem's cluster, or None and why not."""
    try:
        return plan_on(problem, plan), ""
    except (PlanError, ProfileMissing) as error:
        return None, str(error)
