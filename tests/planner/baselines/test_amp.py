"""AMP against the recorded runs of its release, and as users run it."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from planner.baselines import amp
from planner.baselines.amp.inputs import AmpNode, Inputs, Rows, Strategy, ring, send_per_byte
from planner.baselines.amp.question import question
from planner.baselines.amp.rules import Intended
from planner.baselines.amp.search import AmpSearch
from planner.baselines.amp.split import best_split
from planner.baselines.metis.balance import StageLimits
from planner.baselines.metis.inputs import prefix_sums
from planner.result import Budget, Status
from specs.cluster import Cluster, Node
from specs.topology import Topology
from tests.planner.baselines import amp_release as release
from tests.planner.reference import reference_problem

RUNS = ["amp12_2x4_homog", "amp12_4x4_mixed", "amp12_4x4_slowlink_last"]


@pytest.mark.parametrize("name", RUNS)
def test_with_the_faults_of_the_release_every_candidate_and_cost_comes_out(name: str) -> None:
    expected = {
        (one["mbs"], one["tp"], one["dp"], one["pp"]): one for one in release.recorded(name)["all"]
    }
    found = release.run(name)
    assert len(found) == len(expected)
    for costed in found:
        strategy = costed.strategy
        theirs = expected[strategy.micro_batch, strategy.tp, strategy.dp, strategy.pp]
        assert costed.cost_ms == pytest.approx(theirs["cost_s"], rel=1e-4)
        assert list(costed.bounds) == theirs["partition"]


@pytest.mark.parametrize("name", RUNS)
def test_the_five_best_of_the_release_come_out_in_its_order(name: str) -> None:
    for ours, theirs in zip(release.run(name)[:5], release.recorded(name)["top5"], strict=True):
        strategy = ours.strategy
        assert [strategy.micro_batch, strategy.tp, strategy.dp, strategy.pp] == [
            theirs[key] for key in ("mbs", "tp", "dp", "pp")
        ]


def two_nodes(slow: float = 10.0) -> tuple[AmpNode, ...]:
    return AmpNode(0, "g", 100.0, 20.0), AmpNode(1, "g", 100.0, slow)


def test_a_send_takes_the_slowest_link_of_a_tp_group_and_the_mean_over_replicas() -> None:
    a, b = two_nodes()
    # Stage 0 on a (4 ranks), stage 1: replica 0 on a and b, replica 1 on b.
    strategy = Strategy(1, 2, 2, 2, (a, a, a, a, a, b, b, b))
    assert send_per_byte(strategy, 0) == pytest.approx((1 / 10 + 1 / 10) / 2)
    inside = Strategy(1, 2, 2, 2, (a,) * 8)
    assert send_per_byte(inside, 0) == 1 / 100


def test_a_ring_is_as_slow_as_its_slowest_edge_not_its_last() -> None:
    a, b = two_nodes()
    strategy = Strategy(1, 1, 4, 1, (a, b, a, a))
    assert ring(strategy, 0) == [10.0, 10.0, 100.0, 100.0]


def test_the_cost_of_a_strategy_in_numbers() -> None:
    a, b = two_nodes()
    size = 4
    rows = Rows(prefix_sums([1.0, 3.0, 4.0, 2.0]), (0.0,) * 5, (0.0,) * 5, 0.5)
    inputs = Inputs(
        2, (a, b), size, 12, {("g", 1, 2): rows}, {"g": 1.0}, prefix_sums([50.0] * 4), 20.0
    )
    strategy = Strategy(2, 1, 2, 2, (a, a, b, b))
    # 3 micro-batches; stages 4.5 and 6.5: 2 * 6.5 + 11; send 40 / 10; ring 2 * 1/2 * 100 / 100.
    assert Intended().cost_ms(inputs, strategy, (0, 2, 4)) == pytest.approx(24 + 4 + 1)


@pytest.mark.parametrize("seed", range(40))
def test_the_split_is_the_best_of_all_splits_that_fit(seed: int) -> None:
    draw = random.Random(seed)
    layers, count, micro_batches = draw.randint(1, 8), draw.randint(1, 4), draw.randint(1, 9)
    stages = []
    for _ in range(count):
        kinds = range(draw.randint(1, 2))
        times = tuple(
            prefix_sums(
                [draw.choice([1.0, 2.0, 0.3]) * draw.uniform(0.5, 3) for _ in range(layers)]
            )
            for _ in kinds
        )
        memory = tuple(
            (prefix_sums([draw.choice([1.0, 2.0]) for _ in range(layers)]), draw.uniform(2, 12))
            for _ in kinds
        )
        stages.append(StageLimits(times, memory))

    def value(bounds: tuple[int, ...]) -> float:
        spans = [
            max(times[end] - times[first] for times in stage.times)
            for stage, (first, end) in zip(stages, pairwise(bounds), strict=True)
        ]
        return (micro_batches - 1) * max(spans) + sum(spans)

    splits = [
        (0, *cuts, layers)
        for cuts in combinations(range(1, layers), count - 1)
        if all(
            stage.free(first, end) >= 0
            for stage, (first, end) in zip(stages, pairwise((0, *cuts, layers)), strict=True)
        )
    ]
    found = best_split(stages, layers, micro_batches)
    if not splits:
        assert found is None
    else:
        assert found in splits
        assert value(found) == pytest.approx(min(map(value, splits)), rel=1e-9)


def test_llama_on_the_mixed_cluster_is_planned_and_fits() -> None:
    result = amp.plan(reference_problem("llama-3-8b", "mixed-128"), Budget(), 0)
    assert result.status is Status.OK
    assert result.plan is not None
    assert result.plan.prediction is not None
    assert result.plan.prediction.fits
    assert 6900 < result.plan.prediction.iteration_ms < 9000
    assert result.plan.gpus_used == 128
    assert result.reason == "all degrees and micro-batch sizes"


def test_nodes_of_different_sizes_are_read_as_single_gpus() -> None:
    problem = reference_problem("llama-3-8b", "uneven-52")
    result = amp.plan(problem, Budget(), 0)
    assert result.plan is not None
    assert "every GPU read as a node of its own" in result.reason
    assert {stage.tp for template in result.plan.templates for stage in template.stages} == {1}
    assert result.plan.gpus_used == 52


def test_a_batch_that_the_replicas_do_not_divide_is_passed_over() -> None:
    search = AmpSearch(question(reference_problem("llama-3-8b", "uneven-52")), Intended())
    assert {costed.strategy.dp for costed in search.run()} <= {1, 2, 4}
    assert search.rejected["batch does not divide"] > 0


def test_the_budget_ends_the_search() -> None:
    problem = reference_problem("llama-3-8b", "mixed-128")
    result = amp.plan(problem, Budget(evaluations=20), 0)
    assert result.evaluations == 20
    assert "not all degrees" in result.reason


def test_a_model_that_fits_nowhere_is_said_to() -> None:
    nodes = (Node("n0", "a100-40gb", 1, Topology.NVLINK, 12.5, 10.0),)
    problem = replace(reference_problem("qwen3-32b", "mixed-128"), cluster=Cluster("one", nodes))
    result = amp.plan(problem, Budget(), 0)
    assert result.plan is None
    assert result.status is Status.NO_PLAN
    assert result.reason.startswith("no plan: no combination of degrees fits")
    assert result.rejected["memory"] > 0
