"""What becomes of a plan on another cluster."""

from dataclasses import replace

import pytest

from planner.policy.network import initial_parameters
from planner.policy.planning import Planning, Schedule
from planner.policy.replanning import plan_on, still_stands
from planner.result import Budget
from specs.cluster import Cluster
from specs.errors import PlanError
from specs.plan import Plan
from tests.planner.policy.compositions import cluster_of_sizes, problem_on


@pytest.fixture(scope="module")
def before() -> Plan:
    problem = problem_on("llama-3-8b", cluster_of_sizes(*[("h100", 4)] * 4))
    schedule = Schedule(rollouts=8, batch=8, rounds=())
    found = Planning(problem, "arachne", Budget(), 0, schedule).run(initial_parameters(0)).plan
    assert found is not None
    return found


def test_a_plan_stands_where_nodes_were_added(before: Plan) -> None:
    grown = problem_on("llama-3-8b", cluster_of_sizes(*[("h100", 4)] * 6))
    found = plan_on(grown, before)
    assert found.cluster == grown.cluster
    assert found.prediction is not None
    assert before.prediction is not None
    assert found.prediction.iteration_ms == pytest.approx(before.prediction.iteration_ms)


def test_a_plan_falls_with_a_node_that_it_uses(before: Plan) -> None:
    used = before.templates[0].replicas[0].places[0].node
    nodes = tuple(node for node in before.cluster.nodes if node.name != used)
    found, why = still_stands(problem_on("llama-3-8b", Cluster("less", nodes)), before)
    assert found is None
    assert why == f"node {used} is gone"


def test_a_plan_falls_where_a_node_has_other_gpus(before: Plan) -> None:
    used = before.templates[0].replicas[0].places[0].node
    nodes = tuple(
        replace(node, gpu="a6000") if node.name == used else node for node in before.cluster.nodes
    )
    with pytest.raises(PlanError, match=f"node {used} has 4 a6000"):
        plan_on(problem_on("llama-3-8b", Cluster("other", nodes)), before)
