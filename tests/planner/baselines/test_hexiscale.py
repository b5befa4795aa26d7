"""HexiScale against values of its released planner, and as users run it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.baselines import hexiscale
from planner.baselines.hexiscale.inputs import TimesKey
from planner.baselines.hexiscale.partition import partition
from planner.baselines.hexiscale.pipeline import (
    Pipe,
    block_orders,
    gpipe_ms,
    layer_quota,
    send_ms,
    split_machine,
    stage_times,
    sync_ms,
)
from planner.baselines.hexiscale.search import HexiScaleSearch, slowest_ms
from planner.result import Budget, Status
from specs.cluster import Cluster, Node
from specs.topology import Topology
from tests.planner.baselines import hexiscale_release as release
from tests.planner.reference import reference_problem

# Devices 0 to 2 are A100, 3 to 5 RTX 4090, 6 and 7 RTX 3090.
SEVEN_STAGES = Pipe(((3,), (4,), (5,), (0, 1), (2,), (6,), (7,)), (2, 2, 2, 15, 7, 2, 2))


@pytest.mark.parametrize(
    ("memory", "layers", "quota"),
    [
        ([24, 24, 24, 160, 80, 24, 24], 32, [2, 2, 2, 15, 7, 2, 2]),
        ([24, 24, 24, 160, 80, 24, 24], 40, [2, 2, 3, 18, 9, 3, 3]),
        ([160, 24, 24, 80, 24, 24, 24], 40, [18, 2, 2, 9, 3, 3, 3]),
        ([40, 40, 16, 16, 40, 40, 16, 16], 24, [5, 5, 1, 1, 5, 5, 1, 1]),
        ([40, 16, 16, 16, 16], 24, [10, 3, 3, 4, 4]),
        ([80, 80, 80, 80, 32, 16, 16, 32, 16, 16], 24, [5, 5, 5, 5, 2, 0, 0, 2, 0, 0]),
    ],
)
def test_layers_are_dealt_as_the_release_deals_them(
    memory: list[float], layers: int, quota: list[int]
) -> None:
    assert layer_quota(memory, layers) == quota


def test_unit_times_are_those_of_the_release() -> None:
    small = release.LLAMA_7B
    for gpu, tp, expected in (
        (release.A100, 1, 0.0227293),
        (release.A100, 2, 0.0113647),
        (release.RTX_4090, 1, 0.0429271),
        (release.RTX_3090, 1, 0.0886444),
    ):
        assert release.compute_s(small, gpu, tp, 1) == pytest.approx(expected, abs=5e-8)
    assert release.tp_comm_s(small, release.A100, 2, 1) == pytest.approx(0.0009375, rel=1e-12)
    assert release.tp_comm_s(small, release.RTX_4090, 2, 1) == pytest.approx(0.09375, rel=1e-12)


def test_transfers_are_those_of_the_release() -> None:
    inputs = release.inputs(release.LLAMA_7B, micro_batches=(1,))
    assert send_ms(inputs, (0,), (1,), 1) == pytest.approx(0.3125, rel=1e-12)
    assert send_ms(inputs, (0,), (3,), 1) == pytest.approx(125.0, rel=1e-12)
    assert send_ms(inputs, (0, 1), (3, 4), 1) == pytest.approx(140.625, rel=1e-12)


def test_the_seven_stages_of_the_release_take_what_it_says() -> None:
    inputs = release.inputs(release.LLAMA_7B, micro_batches=(1,))
    times = stage_times(inputs, SEVEN_STAGES.stages, SEVEN_STAGES.blocks, 1)
    assert gpipe_ms(times, 12) == pytest.approx(4451.321, abs=5e-4)
    total = inputs.pipeline_factor * gpipe_ms(times, 12)
    assert total == pytest.approx(8012.378, abs=5e-4)
    assert sync_ms(inputs, [SEVEN_STAGES]) == 0


def test_two_pipelines_of_the_release_take_what_it_says() -> None:
    inputs = release.inputs(release.LLAMA_7B, micro_batches=(1,))
    first = Pipe(((0, 1), (3,)), (24, 8))
    second = Pipe(((2,), (4,), (5,), (6,), (7,)), (14, 6, 6, 3, 3))
    took = [
        gpipe_ms(stage_times(inputs, pipe.stages, pipe.blocks, 1), 12) for pipe in (first, second)
    ]
    assert took == pytest.approx([5386.441, 6646.770], abs=5e-4)
    sync = sync_ms(inputs, [first, second])
    assert sync == pytest.approx(19927.5, abs=0.05)
    total = inputs.pipeline_factor * max(took) + inputs.sync_factor * sync
    assert total == pytest.approx(33884.436, abs=5e-4)


def test_memory_of_the_release_is_reproduced() -> None:
    small = release.LLAMA_7B
    assert release.stage_gib(small, 8, 1, 1, False, False) == pytest.approx((12.0, 0.3125))
    assert release.stage_gib(small, 8, 2, 1, False, False) == pytest.approx((6.0, 0.1875))
    assert release.stage_gib(small, 8, 1, 1, True, False)[0] == pytest.approx(13.1016, abs=5e-5)
    assert release.stage_gib(small, 8, 1, 1, False, True)[0] == pytest.approx(12.9766, abs=5e-5)


@pytest.mark.parametrize(
    ("model", "released_s"), [(release.LLAMA_7B, 2 * 8.012378), (release.LLAMA_13B, 26.882)]
)
def test_the_search_is_no_slower_than_the_release_by_the_same_formulas(
    model: tuple[int, int], released_s: float
) -> None:
    """The release's 7B answer assumes half the batch, so it counts twice."""
    search = HexiScaleSearch(release.inputs(model), seed=0)
    search.run(100)
    assert search.best_ms / 1000 <= released_s + 0.001


def test_columns_of_a_pipeline() -> None:
    # Columns 1; 1, 2; 1, 2, 1 (twice, m = 4); 2, 1; 1: 1 + 2 + 2 + 2 + 2 + 1
    assert gpipe_ms([1, 2, 1], 4) == 10
    # m = 2 on three stages: 1; 1, 3; 3, 2; 2
    assert gpipe_ms([1, 3, 2], 2) == 1 + 3 + 3 + 2
    assert gpipe_ms([5], 3) == 15


def test_the_batch_is_dealt_so_that_the_slowest_is_fast() -> None:
    # 12 samples to stages of 1 and 2 ms: 8 and 4 micro-batches, 8 ms both.
    assert slowest_ms([[1.0], [2.0]], 1, 12) == 8


def test_one_machine_is_split_by_what_each_split_alone_would_take() -> None:
    inputs = release.inputs(release.LLAMA_7B, micro_batches=(1,))
    # Fast links: TP 2 and one pipeline stage are about even in compute; TP has no bubble.
    assert split_machine(inputs, (0, 1), 1, 1) == [(0, 1)]
    # Slow links make TP costly.
    assert split_machine(inputs, (3, 4), 1, 12) == [(3,), (4,)]


def test_blocks_are_ordered_for_bandwidth_between_neighbours() -> None:
    inputs = release.inputs(release.LLAMA_7B)
    orders = block_orders(inputs, [(0,), (3,), (1, 2)])
    # The two blocks of A100 stand side by side, their larger one next to the other type.
    assert orders == [[(0,), (1, 2), (3,)], [(3,), (1, 2), (0,)]]


def test_a_partition_has_balanced_parts_and_cuts_light_edges() -> None:
    """Four machines of four: edges of 100 inside and 1 between, into four parts."""
    node = np.repeat(np.arange(4), 4)
    edges = np.where(node[:, None] == node[None, :], 100.0, 1.0)
    np.fill_diagonal(edges, 0.0)
    for seed in range(5):
        part = partition(np.ones(16), edges, 4, seed)
        assert sorted(np.bincount(part)) == [4, 4, 4, 4]
        assert all(len(set(part[node == n])) == 1 for n in range(4))


def test_the_inverse_edges_spread_a_machine_over_parts() -> None:
    node = np.repeat(np.arange(4), 4)
    edges = np.where(node[:, None] == node[None, :], 0.01, 1.0)
    np.fill_diagonal(edges, 0.0)
    part = partition(np.ones(16), edges, 4, 0)
    assert all(len(set(part[node == n])) > 2 for n in range(4))


def test_no_part_is_empty_whatever_the_weights() -> None:
    draw = np.random.default_rng(1)
    for _ in range(30):
        n = int(draw.integers(2, 40))
        parts = int(draw.integers(1, n + 1))
        edges = draw.random((n, n))
        edges = edges + edges.T
        np.fill_diagonal(edges, 0.0)
        part = partition(draw.random(n) ** 3 + 1e-3, edges, parts, int(draw.integers(100)))
        assert sorted(set(part.tolist())) == list(range(parts))


def test_different_pipelines_are_several_templates() -> None:
    problem = reference_problem("llama-3-8b", "two-64")
    result = hexiscale.plan(problem, Budget(evaluations=120), 0)
    assert result.status is Status.OK
    assert result.plan is not None
    assert len(result.plan.templates) > 1
    again = hexiscale.plan(problem, Budget(evaluations=120), 0)
    assert again == replace(result, planning_s=again.planning_s)


def test_a_large_model_gets_a_plan() -> None:
    result = hexiscale.plan(reference_problem("qwen3-32b", "two-64"), Budget(evaluations=200), 0)
    assert result.plan is not None
    assert result.plan.prediction is not None
    assert result.plan.prediction.fits


def test_without_memory_there_is_no_plan_and_a_reason() -> None:
    node = Node("only", "h100", 2, Topology.NVLINK, 12.5, 10.0)
    base = reference_problem("qwen3-32b", "two-64")
    result = hexiscale.plan(replace(base, cluster=Cluster("one", (node,))), Budget(), 0)
    assert result.status is Status.NO_PLAN
    assert result.reason.startswith("no plan: a stage has no room")


def test_times_of_other_types_are_not_mixed_up() -> None:
    inputs = release.inputs(release.LLAMA_7B, micro_batches=(1,))
    key = TimesKey(release.RTX_4090, 1, 1)
    assert stage_times(inputs, [(3,)], [32], 1) == [32 * inputs.times[key].block]
