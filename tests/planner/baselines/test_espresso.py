"""Espresso against the example of its release, and as users run it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.baselines import espresso
from planner.baselines.espresso.allocator import Allocator
from planner.baselines.espresso.placer import Job, place, simulated_ms
from planner.baselines.espresso.question import questions
from planner.result import Budget, Status
from specs.cluster import Cluster, Node
from specs.topology import Topology
from tests.planner.baselines import espresso_release as release
from tests.planner.reference import reference_problem


def names(order: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(release.GPUS[g].name for g in order)


def test_the_plan_of_the_readme_is_found() -> None:
    best = release.run(memory_prune=False).best
    assert best is not None
    assert names(best.order) == ("A6000", "A6000", "3090")
    assert best.layers == (11, 12, 3)
    assert best.time_ms == pytest.approx(50139.08731211838, rel=1e-12)
    assert best.value == pytest.approx(0.2019491016738102, rel=1e-12)


def test_the_runners_up_are_those_of_the_recorded_run() -> None:
    allocator = Allocator()
    low, high = release.depths(16)
    for depth in range(low, high):
        allocator.search(release.question(depth, 1, memory_prune=False))
    found = {(names(p.order), p.layers): p.value for p in allocator.kept}
    expected = {
        (("A4000", "A6000", "A6000"), (2, 13, 11)): 0.20568,
        (("A6000", "A6000", "A30"), (11, 12, 3)): 0.20772,
        (("A6000", "A6000", "A6000"), (9, 9, 8)): 0.22176,
        (("A6000", "A6000", "A4000", "A4000"), (10, 11, 4, 1)): 0.23712,
    }
    for plan, usd in expected.items():
        assert found[plan] == pytest.approx(usd, abs=5e-6)


def test_the_memory_test_of_the_release_loses_the_plan_of_the_readme() -> None:
    best = release.run(memory_prune=True).best
    assert best is not None
    assert names(best.order) == ("A6000", "A6000", "A6000")
    assert best.layers == (9, 9, 8)
    assert best.time_ms == pytest.approx(44353, abs=0.5)


@pytest.mark.parametrize(
    ("name", "blocks", "forward_s"),
    [
        ("A6000", [11, 13, 11], 0.19067),
        ("3090", [5, 6, 3], 0.21608),
        ("A30", [5, 6, 3], 0.19488),
        ("A4000", [2, 4, 1], 0.33179),
    ],
)
def test_the_tables_of_the_release_are_the_recorded_ones(
    name: str, blocks: list[int], forward_s: float
) -> None:
    gpu = next(gpu for gpu in release.GPUS if gpu.name == name)
    assert [release.most_blocks(gpu, 3, i, 16) for i in range(3)] == blocks
    assert release.block_s(gpu, 16, gpu.placer_efficiency) == pytest.approx(forward_s, abs=5e-6)


def test_the_least_memory_is_the_recorded_one() -> None:
    found = [round(release.least_gib(depth, 16), 1) for depth in (2, 3, 4)]
    assert found == [102.3, 109.3, 116.4]


def test_the_simulation_gives_the_recorded_times() -> None:
    forward = np.array([1.7979658914728682, 1.9608355179704016, 0.6576776913227617])
    send = np.array([0.98304, 0.98304, 2.4576])
    none = np.zeros(3)
    took = simulated_ms(forward + 1.6 * send, 3 * forward, none, 4)
    assert took == pytest.approx(50.13908731211839, rel=1e-14)
    rounded = forward.round(4)  # as the record has it
    assert simulated_ms(rounded, 3 * rounded, none, 4) == pytest.approx(39.2348, rel=1e-12)
    even = np.ones(4)
    assert simulated_ms(even, 2 * even, np.zeros(4), 8) == 33
    for shape, expected in (((1, 2, 1), 28), ((2, 1, 1), 26), ((1, 1, 2), 30)):
        forward = np.array(shape, float)
        assert simulated_ms(forward, 2 * forward, none, 4) == expected


def test_synchronisation_comes_after_the_last_backward_of_its_stage() -> None:
    # Two stages, f 1, b 2, m 1: forward ends at 2, backward of the last at 4, of the first at 6.
    one = np.ones(2)
    assert simulated_ms(one, 2 * one, np.array([0.0, 1.5]), 1) == 6
    assert simulated_ms(one, 2 * one, np.array([0.0, 3.0]), 1) == 7


def job(**changes: object) -> Job:
    """Six blocks, two types, the first twice as fast; two stages, no ends, no network."""
    zero, pair = np.zeros(2), np.zeros((2, 2))
    base = Job(
        blocks=6,
        micro_batches=3,
        power=np.array([2.0, 1.0]),
        forward_ms=np.array([1.0, 2.0]),
        backward_ms=np.array([2.0, 4.0]),
        first_ms=pair,
        last_ms=pair,
        send_ms=zero,
        sync_ms=zero,
        first_sync_ms=zero,
        last_sync_ms=zero,
        slack_ms=np.array([2.0, 4.0]),
        most=np.full((2, 2), 6),
        release=False,
    )
    return base._replace(**changes)


def test_blocks_go_to_stages_in_proportion_to_speed() -> None:
    """Fast 4 and slow 2 blocks: both stages take 4 + 8 ms.

    Three micro-batches: 4 * 12 ms, whichever is first.
    """
    took, order, layers, timed = place(job(), np.array([1, 1]), np.inf)
    assert took == 48
    assert sorted(zip(order.tolist(), layers.tolist(), strict=True)) == [(0, 4), (1, 2)]
    assert timed > 0


def test_memory_limits_a_stage() -> None:
    took, order, layers, _ = place(job(most=np.array([[3, 3], [6, 6]])), np.array([1, 1]), np.inf)
    by_type = dict(zip(order.tolist(), layers.tolist(), strict=True))
    assert by_type == {0: 3, 1: 3}
    assert took > 48
    nowhere = place(job(most=np.array([[3, 3], [2, 2]])), np.array([1, 1]), np.inf)
    assert nowhere[0] == np.inf


def test_the_bound_never_exceeds_what_the_placer_finds() -> None:
    problem = reference_problem("llama-3-8b", "mixed-64")
    looked_at = 0
    for question in questions(problem):
        if question.depth != 3 or question.label[2] not in (1, 8):
            continue
        for a in range(4):
            for b in range(4 - a):
                counts = [a, b, 3 - a - b]
                if any(n > most for n, most in zip(counts, question.quota, strict=True)):
                    continue
                took = place(question.job, np.array(counts), np.inf)[0]
                assert question.bound(counts, 0, []) <= took
                looked_at += took < np.inf
    assert looked_at > 20


def test_a_plan_is_one_template_with_even_shares() -> None:
    problem = reference_problem("llama-3-8b", "two-64")
    result = espresso.plan(problem, Budget(), 0)
    assert result.status is Status.OK
    assert result.plan is not None
    assert len(result.plan.templates) == 1
    template = result.plan.templates[0]
    counts = {template.samples(replica) for replica in template.replicas}
    assert max(counts) - min(counts) <= 1
    assert result.plan.prediction is not None
    assert result.plan.prediction.fits
    assert result == replace(espresso.plan(problem, Budget(), 1), planning_s=result.planning_s)


def test_uneven_nodes_are_read_as_single_gpus_and_the_result_says_so() -> None:
    result = espresso.plan(reference_problem("llama-3-8b", "uneven-52"), Budget(), 0)
    assert result.plan is not None
    assert {stage.tp for stage in result.plan.templates[0].stages} == {1}
    assert "differ in size: read as one GPU each" in result.reason


def test_a_budget_ends_the_search_with_the_best_so_far() -> None:
    problem = reference_problem("llama-3-8b", "mixed-64")
    whole = espresso.plan(problem, Budget(), 0)
    part = espresso.plan(problem, Budget(evaluations=whole.evaluations // 2), 0)
    assert part.status is Status.OK
    assert part.evaluations < whole.evaluations
    assert "within the budget" in part.reason


def test_a_model_that_fits_nowhere_has_no_plan() -> None:
    node = Node("only", "h100", 1, Topology.NVLINK, 12.5, 10.0)
    base = reference_problem("qwen3-32b", "two-64")
    result = espresso.plan(replace(base, cluster=Cluster("one", (node,))), Budget(), 0)
    assert result.status is Status.NO_PLAN
    assert result.plan is None
    assert "no plan" in result.reason
