"""The reconstruction of HetAuto: its forest, its masks, its tree."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from planner.baselines import hetauto
from planner.baselines.hetauto.choices import STOP, Choices
from planner.baselines.hetauto.forest import Forest
from planner.baselines.hetauto.tree import Node, TreeSearch
from planner.kernel.engine import Engine
from planner.result import Budget, Status
from planner.search import Search
from specs.cluster import Cluster
from specs.cluster import Node as ClusterNode
from specs.topology import Topology
from tests.planner.reference import reference_problem


def test_the_forest_learns_a_step() -> None:
    draw = np.random.default_rng(0)
    x = draw.random((300, 4))
    y = np.where(x[:, 2] > 0.5, 10.0, 0.0)
    forest = Forest(20, 0)
    forest.fit(x, y)
    assert forest.predict(np.array([0.5, 0.5, 0.9, 0.5])) > 8
    assert forest.predict(np.array([0.5, 0.5, 0.1, 0.5])) < 2
    again = Forest(20, 0)
    again.fit(x, y)
    assert again.predict(x[0]) == forest.predict(x[0])


def test_one_value_makes_one_leaf() -> None:
    forest = Forest(3, 0)
    forest.fit(np.zeros((10, 2)), np.full(10, 4.0))
    assert forest.predict(np.ones(2)) == 4
    assert [len(tree.value) for tree in forest.trees] == [1, 1, 1]


def test_a_depth_that_cannot_hold_the_model_is_no_choice() -> None:
    """Qwen3-32B has 16 bytes for each of its parameters: 488 GiB, eight 75 GiB cards at TP 1."""
    problem = reference_problem("qwen3-32b", "two-64")
    choices = Choices(Engine(problem))
    start = choices.start([node.gpus for node in problem.cluster.nodes])
    depths, weights = choices.depths(start, first=True)
    widest = max(choices.room)
    assert min(depths) == -(-choices.need // widest) > 1
    assert STOP not in depths
    assert STOP in choices.depths(start, first=False)[0]
    assert np.all(np.diff(weights) < 0)


def test_stages_keep_to_nodes_and_to_memory() -> None:
    problem = reference_problem("llama-3-8b", "two-64")
    choices = Choices(Engine(problem))
    start = choices.start([node.gpus for node in problem.cluster.nodes])
    two = replace(start, depth=2)
    assert {choices.tp[q] for q in choices.stages(two)[0]} <= {1, 2, 4}
    one_left = replace(two, free=(1, *[0] * (len(start.free) - 1)), depth=1)
    only = problem.cluster.nodes[0].gpu
    assert all(choices.types[q] == only for q in choices.stages(one_left)[0])
    h100 = next(q for q, k in enumerate(choices.kinds) if k.gpu == "h100" and k.tp == 4)
    after = choices.add(two, h100)
    assert sum(start.free) - sum(after.free) == 4
    weights = dict(zip(*choices.stages(after), strict=True))
    a100 = next(q for q, k in enumerate(choices.kinds) if k.gpu != "h100" and k.tp == 4)
    assert weights[h100] == 4 * weights[a100]


def test_the_tree_goes_where_value_and_prior_are_high() -> None:
    problem = reference_problem("llama-3-8b", "two-64")
    tree = TreeSearch(Engine(problem), Search(problem, "hetauto", Budget(evaluations=1)), 0)
    node = Node([1, 2, 3], np.array([0.2, 0.6, 0.2]), visits=3)
    assert tree._select(node) == 2  # nothing tried: the prior decides
    node.children[2] = Node([], np.zeros(0), visits=3, total=0.3, best=0.1)
    node.children[1] = Node([], np.zeros(0), visits=3, total=6.0, best=2.0)
    node.children[3] = Node([], np.zeros(0), visits=3, total=0.0, best=0.0)
    assert tree._select(node) == 1
    assert node.children[1].value == 2


def test_a_plan_is_found_and_is_the_same_for_the_same_seed() -> None:
    problem = reference_problem("llama-3-8b", "two-64")
    result = hetauto.plan(problem, Budget(evaluations=600), 3)
    assert result.status is Status.OK
    assert result.plan is not None
    assert result.plan.prediction is not None
    assert result.plan.prediction.fits
    assert result.evaluations >= 600
    assert result.reason.startswith("reconstruction; ")
    again = hetauto.plan(problem, Budget(evaluations=600), 3)
    assert again == replace(result, planning_s=again.planning_s)
    times = [time_ms for _, time_ms in result.curve]
    assert times == sorted(times, reverse=True)
    assert times[-1] == pytest.approx(result.plan.prediction.iteration_ms, rel=1e-9)


def test_more_evaluations_never_give_a_worse_plan() -> None:
    problem = reference_problem("llama-3-8b", "uneven-52")
    few, many = (hetauto.plan(problem, Budget(evaluations=n), 0) for n in (300, 1200))
    assert few.plan is not None
    assert many.plan is not None
    assert few.plan.prediction is not None
    assert many.plan.prediction is not None
    assert many.plan.prediction.iteration_ms <= few.plan.prediction.iteration_ms


def test_a_small_tree_comes_to_an_end() -> None:
    node = ClusterNode("only", "h100", 4, Topology.NVLINK, 12.5, 10.0)
    problem = replace(reference_problem("llama-3-8b", "two-64"), cluster=Cluster("four", (node,)))
    began = time.perf_counter()
    result = hetauto.plan(problem, Budget(evaluations=10_000_000), 0)
    assert result.status is Status.OK
    assert result.evaluations < 10_000_000
    assert time.perf_counter() - began < 240


def test_a_model_that_fits_nowhere_has_no_plan() -> None:
    node = ClusterNode("only", "h100", 1, Topology.NVLINK, 12.5, 10.0)
    problem = replace(reference_problem("qwen3-32b", "two-64"), cluster=Cluster("one", (node,)))
    result = hetauto.plan(problem, Budget(evaluations=100), 0)
    assert result.status is Status.NO_PLAN
    assert result.plan is None
