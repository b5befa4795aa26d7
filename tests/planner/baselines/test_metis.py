"""Metis against the recorded runs of its release, and as users run it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest

from planner.baselines import metis
from planner.baselines.metis.balance import StageLimits, balanced
from planner.baselines.metis.groups import device_groups
from planner.baselines.metis.inputs import Costed, Inputs, Layout, MetisNode, Rows, prefix_sums
from planner.baselines.metis.question import question
from planner.baselines.metis.rules import Intended
from planner.baselines.metis.search import MetisSearch
from planner.baselines.metis.stages import binary_digits, share_samples
from planner.result import Budget, Status
from specs.cluster import Cluster, Node
from specs.topology import Topology
from tests.planner.baselines import metis_release as release
from tests.planner.reference import reference_problem

COMPLETED_RUNS = [
    "synth10_a100_2x4",
    "synth10_a100_2x4_tightmem",
    "synth10_a100x2_v100x2_4",
    "synth26_a100_4x4_tightmem",
    "synth26_a100x2_v100x2_4",
]


def as_recorded(costed: Costed) -> list[object]:
    layout = costed.layout
    return [
        list(layout.order),
        list(layout.groups),
        [list(degrees) for degrees in layout.degrees],
        layout.micro_batches,
        list(costed.bounds),
    ]


@pytest.mark.parametrize("name", COMPLETED_RUNS)
def test_with_the_faults_of_the_release_every_recorded_plan_comes_out(name: str) -> None:
    found, expected = release.run(name), release.recorded_plans(name)
    assert len(found) == len(expected)
    assert Counter(str(as_recorded(one)) for one in found) == Counter(
        str(one[1:]) for one in expected
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.cost_ms == pytest.approx(theirs[0], rel=1e-6)


@pytest.mark.parametrize("name", COMPLETED_RUNS)
def test_the_best_whole_plans_are_those_recorded(name: str) -> None:
    recorded = release.recorded(name)
    layers = recorded["inputs"]["model"]["num_layers"]
    whole = release.complete_plans(release.run(name), layers)
    for ours, theirs in zip(whole, recorded["top5_complete_plans_only"], strict=False):
        assert ours.cost_ms == pytest.approx(theirs["cost_ms"], rel=1e-6)
        assert as_recorded(ours) == [
            theirs["node_sequence"],
            theirs["device_groups"],
            theirs["strategies_dp_tp"],
            theirs["num_microbatches"],
            theirs["layer_partition"],
        ]
    assert len(whole) >= len(recorded["top5_complete_plans_only"])


def test_the_release_costs_two_stage_plans_for_their_first_stage_alone() -> None:
    found = release.run("synth10_a100x2_v100x2_4")
    assert found[0].cost_ms == pytest.approx(297.3216666666667, rel=1e-9)
    again = [one for one in found if as_recorded(one) == as_recorded(found[0])]
    assert len(again) == 2
    assert again[1].cost_ms > 1.3 * again[0].cost_ms


def synthetic(name: str) -> Inputs:
    """A recorded question in the units of the corrected planner: bytes, and links between nodes."""
    run = release.recorded(name)
    inputs = release.inputs_of(run)
    hosts = [run["inputs"]["clusterfile"][host["ip"]] for host in run["inputs"]["hostfile"]]
    size = inputs.layers + 1
    return replace(
        inputs,
        nodes=tuple(
            MetisNode(
                node.gpu, node.gpus, host["intra_bandwidth"] * 1e6, host["inter_bandwidth"] * 1e6
            )
            for node, host in zip(inputs.nodes, hosts, strict=True)
        ),
        rows={
            key: Rows(row.times, row.held, (0.0,) * size, (0.0,) * size, row.overhead_ms)
            for key, row in inputs.rows.items()
        },
        gradient_bytes=prefix_sums([1e8] * inputs.layers),
        activation_bytes=inputs.activation_bytes * 2,
    )


@pytest.mark.parametrize("name", COMPLETED_RUNS)
def test_the_corrected_search_loses_no_layer_and_leaves_no_stage_empty(name: str) -> None:
    inputs = synthetic(name)
    search = MetisSearch(inputs, Intended(1.0, 4))
    found = list(search.run())
    assert search.finished
    assert found
    for costed in found:
        assert costed.bounds[0] == 0
        assert costed.bounds[-1] == inputs.layers
        assert all(a < b for a, b in pairwise(costed.bounds))
        assert sum(costed.layout.groups) == inputs.gpus


def test_a_batch_whose_micro_batches_have_no_profile_is_named_and_passed_over() -> None:
    # The release stops with an exception here: 96 samples on 8 or 4 or 2 GPUs give 3, 6 and 12.
    search = MetisSearch(synthetic("synth10_fault_gbs96"), Intended(1.0, 4))
    assert list(search.run())
    assert "no profile of A100 at tp=1 micro_batch=3" in search.rejected


def test_nodes_of_eight_and_four_gpus_are_no_exception() -> None:
    search = MetisSearch(synthetic("synth10_fault_unequal_nodes"), Intended(0.5, 4))
    found = list(search.run())
    assert search.finished
    assert {sum(one.layout.groups) for one in found} == {12}


def test_groups_of_like_size_come_first() -> None:
    assert list(device_groups(8, 2, 1.0, 4)) == [(4, 4)]
    assert list(device_groups(8, 3, 1.0, 4)) == [(2, 2, 4), (2, 4, 2), (4, 2, 2)]
    assert list(device_groups(32, 3, 1.0, 4)) == []
    # 10 div 3 = 3: no group below 3 at variance 1, none below 1.5 at 0.5.
    assert list(device_groups(10, 3, 1.0, 4)) == []
    assert list(device_groups(10, 3, 0.5, 4)) == [(2, 4, 4), (4, 2, 4), (4, 4, 2)]


@pytest.mark.parametrize(("gpus", "stages"), [(8, 4), (16, 6), (24, 7), (12, 5)])
def test_groups_without_a_limit_are_all_orders_of_all_multisets(gpus: int, stages: int) -> None:
    sizes = [1, 2, 4, 8, 16]

    def orders(count: int, total: int) -> list[tuple[int, ...]]:
        if count == 0:
            return [()] if total == 0 else []
        return [(s, *rest) for s in sizes if s <= total for rest in orders(count - 1, total - s)]

    found = list(device_groups(gpus, stages, 1e-9, 99))
    assert len(found) == len(set(found))
    assert set(found) == set(orders(stages, gpus))


def test_many_equal_groups_are_permuted_in_blocks() -> None:
    # 1,1,1,1,2,2 with at most 4 blocks: (1,1),(1,1),2,2 in their six orders; 1,1 reads like 2 not.
    found = set(device_groups(8, 6, 1e-9, 4))
    assert (1, 1, 1, 1, 2, 2) in found
    assert (1, 1, 2, 1, 1, 2) in found
    assert (1, 2, 1, 1, 1, 2) not in found


def limits(times: list[float], memory: list[float], room: float) -> StageLimits:
    return StageLimits((prefix_sums(times),), ((prefix_sums(memory), room),))


@pytest.mark.parametrize("seed", range(30))
def test_the_layer_split_is_the_best_of_all_splits_that_fit(seed: int) -> None:
    draw = random.Random(seed)
    layers, count = draw.randint(1, 8), draw.randint(1, 4)
    stages = []
    for _ in range(count):
        speed = draw.uniform(0.5, 3)
        stages.append(
            limits(
                [draw.choice([1.0, 2.0, 0.3]) * speed for _ in range(layers)],
                [draw.choice([1.0, 2.0]) for _ in range(layers)],
                draw.uniform(2, 12),
            )
        )

    def slowest(bounds: tuple[int, ...]) -> float:
        return max(
            stage.times[0][end] - stage.times[0][first]
            for stage, (first, end) in zip(stages, pairwise(bounds), strict=True)
        )

    splits = [
        (0, *cuts, layers)
        for cuts in combinations(range(1, layers), count - 1)
        if all(
            stage.free(first, end) >= 0
            for stage, (first, end) in zip(stages, pairwise((0, *cuts, layers)), strict=True)
        )
    ]
    found = balanced(stages, layers)
    if not splits:
        assert found is None
    else:
        assert found in splits
        assert slowest(found) == pytest.approx(min(map(slowest, splits)), rel=1e-9)


def test_shares_follow_speed_and_add_up() -> None:
    inputs = synthetic("synth10_a100x2_v100x2_4")
    owners = ["A100", "A100", "V100", "V100"]
    shares = share_samples(inputs, owners, 1, 16)
    assert sum(shares) == 16
    assert shares[0] == shares[1] > shares[2] == shares[3]
    assert binary_digits(6) == [4, 2]


def test_the_cost_of_two_stages_in_numbers() -> None:
    # Two nodes of two GPUs; stage times 4 and 6 ms; 3 micro-batches of 2 samples; dp 2 on each.
    times, size = [1.0, 3.0, 4.0, 2.0], 4
    row = Rows(
        prefix_sums(times), prefix_sums([0.0] * size), (0.0,) * 5, prefix_sums([0.5] * size), 0.25
    )
    inputs = Inputs(
        nodes=(MetisNode("g", 2, 100.0, 10.0), MetisNode("g", 2, 100.0, 10.0)),
        layers=size,
        global_batch=12,
        rows={("g", 1, 2): row},
        room={"g": 1.0},
        gradient_bytes=prefix_sums([50.0] * size),
        activation_bytes=20.0,
    )
    layout = Layout(("g",), (0, 0, 1, 1), (2, 2), ((2, 1), (2, 1)), 3)
    # 2 * 6 + 10 + 3 * 0.25 + update 1 + ring 2 * 1/2 * 100 / 100 + send 40 / 10
    assert Intended(1.0, 4).cost_ms(inputs, layout, (0, 2, 4), 2) == pytest.approx(28.75)


def test_llama_on_the_mixed_cluster_is_planned_and_fits() -> None:
    problem = reference_problem("llama-3-8b", "mixed-128")
    result = metis.plan(problem, Budget(evaluations=1500), 0)
    assert result.status is Status.OK
    assert result.plan is not None
    assert result.plan.prediction is not None
    assert result.plan.prediction.fits
    # Worse than the best plan known (6.93 s), but no straw man.
    assert 6900 < result.plan.prediction.iteration_ms < 12_000
    assert result.evaluations >= 1500
    again = metis.plan(problem, Budget(evaluations=1500), 7)
    assert again.plan == result.plan


def test_one_gpu_type_ends_by_itself() -> None:
    nodes = tuple(Node(f"n{i}", "h100", 4, Topology.NVLINK, 12.5, 10.0) for i in range(4))
    problem = replace(reference_problem("llama-3-8b", "mixed-128"), cluster=Cluster("h", nodes))
    result = metis.plan(problem, Budget(), 0)
    assert result.plan is not None
    assert "scale variance 1 and 0.5" in result.reason
    assert result.plan.gpus_used == 16


def test_a_model_that_fits_nowhere_is_said_to() -> None:
    nodes = (Node("n0", "a100-40gb", 1, Topology.NVLINK, 12.5, 10.0),)
    problem = replace(reference_problem("qwen3-32b", "mixed-128"), cluster=Cluster("one", nodes))
    result = metis.plan(problem, Budget(), 0)
    assert result.plan is None
    assert result.status is Status.NO_PLAN
    assert result.reason.startswith("no plan: no group layout fits")
    assert result.rejected["memory"] > 0


def test_mixed_stages_become_templates_with_the_samples_of_their_share() -> None:
    problem = reference_problem("llama-3-8b", "two-64")
    inputs = question(problem)
    from planner.baselines.metis.convert import pipelines

    groups, degrees = (64,), ((16, 4),)
    layout = Layout(("a100-40gb", "h100"), inputs.ranks(("a100-40gb", "h100")), groups, degrees, 16)
    found = pipelines(problem, inputs, Costed(1.0, layout, (0, inputs.layers)))
    assert len(found) == 16
    assert sum(one.samples for one in found) == 1024
    by_type = {one.stages[0].gpu: one.samples for one in found}
    assert by_type["h100"] > by_type["a100-40gb"]
    assert np.all([len(one.nodes) == 1 for one in found])
