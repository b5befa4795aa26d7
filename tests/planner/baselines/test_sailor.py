"""Sailor against the recorded runs of its release, and as users run it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.baselines import sailor
from planner.baselines.sailor.degrees import (
    degree_choices,
    fitting_degrees,
    peers_to_try,
    stage_starts,
)
from planner.baselines.sailor.inputs import Figures, FiguresKey, Inputs, Zone
from planner.baselines.sailor.question import question
from planner.baselines.sailor.search import Candidate, Rules, SailorSearch
from planner.result import Budget, Status
from specs.cluster import Cluster, Node
from specs.topology import Topology
from tests.planner.baselines.sailor_release import (
    inputs_of,
    recorded,
    rules_of,
    shown,
    written,
)
from tests.planner.reference import reference_problem

RUNS = (
    "opt350_a100x8",
    "opt350_a100x8_v100x8",
    "opt350_smallquota_a100x8_v100x8",
    "opt350_a100x8_v100x16",
    "opt350_a100x8_v100x8_budget",
    "opt350_a100x32",
    "opt350_a100x128",
    "opt350_a100x80_v100x240",
    "opt350_geo5x32",
    "opt350_gh16",
    "opt350_cost_small",
    "opt350_cost_2zones",
    "gptneo_a100x8_v100x8",
)


def assert_same(inputs: Inputs, found: list[Candidate], run: dict[str, object]) -> None:
    """The same number of plans, and the recorded ones in order (of equal times, in any order)."""
    plans = run["top_plans"]
    assert isinstance(plans, list)
    assert len(found) == run["num_plans"]
    for plan, candidate in zip(plans, found, strict=False):
        assert candidate.time_ms == pytest.approx(1000 * plan["iter_time_s"], rel=1e-6)
        assert candidate.usd == pytest.approx(plan["cost_usd_iter"], rel=1e-6)
        equals = [c for c in found if c.time_ms == pytest.approx(candidate.time_ms, rel=1e-9)]
        answers = [(c.micro_batch, c.peers, shown(inputs, c)) for c in equals]
        assert (plan["mbs"], plan["dp"], written(plan)) in answers


@pytest.mark.parametrize("name", RUNS)
def test_the_release_is_reproduced_on_its_recorded_runs(name: str) -> None:
    run = recorded(name)
    inputs = inputs_of(run)
    assert_same(inputs, SailorSearch(inputs, rules_of(run)).run(), run)


@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 6, 8])
def test_the_release_is_reproduced_over_two_regions(gpus: int) -> None:
    run = recorded("multiregion_gptneo_small")[
        f"{gpus}+{gpus} A100-40 in us-central1-a and us-west1-b"
    ]
    inputs = inputs_of(run)
    assert_same(inputs, SailorSearch(inputs, rules_of(run)).run(), run)


def test_without_its_faults_it_is_faster_by_its_own_formulas() -> None:
    run = recorded("opt350_a100x8")
    fastest = SailorSearch(with_profiled_degrees(inputs_of(run))).run()[0]
    # The release never tries TP 1 with one GPU type where TP 2 pays.
    assert fastest.tp[0].tolist() == [1]
    assert fastest.time_ms < 0.92 * 1000 * run["top_plans"][0]["iter_time_s"]


def test_a_region_that_no_pipeline_fits_alone_is_joined_with_another() -> None:
    """The release misses depth 3, D 2 here: it remembers that one region alone has no room."""
    run = recorded("multiregion_gptneo_small")["8+8 A100-40 in us-central1-a and us-west1-b"]
    inputs = with_profiled_degrees(inputs_of(run))
    depths = {(len(c.starts), c.peers) for c in SailorSearch(inputs).run()}
    assert (3, 2) in depths
    release = {(len(c.starts), c.peers) for c in SailorSearch(inputs, Rules(release=True)).run()}
    assert (3, 2) not in release


def test_a_query_knows_nothing_of_the_query_before() -> None:
    large, small = recorded("opt350_a100x32"), recorded("opt350_a100x8")
    inputs = with_profiled_degrees(inputs_of(small))
    fresh = SailorSearch(inputs).run()[0]
    SailorSearch(with_profiled_degrees(inputs_of(large))).run()
    again = SailorSearch(inputs).run()[0]
    assert again.time_ms == fresh.time_ms
    assert sum(len(again.stage_of(i)) for i in range(len(again.starts))) <= 8


def with_profiled_degrees(inputs: Inputs) -> Inputs:
    kept = {key: f for key, f in inputs.figures.items() if np.all(np.isfinite(f.layer_ms))}
    return replace(inputs, figures=kept)


def test_the_last_stages_get_the_layers_that_remain() -> None:
    assert stage_starts(26, 4).tolist() == [0, 6, 12, 19]
    assert stage_starts(26, 1).tolist() == [0]


def test_only_degrees_that_change_the_micro_batches_are_tried() -> None:
    # ceil(10 / D) for D = 1..9: 10 5 4 3 2 2 2 2 2
    assert peers_to_try(10, 1, 10, falling=True) == [5, 4, 3, 2, 1]
    assert peers_to_try(10, 1, 10, falling=False) == [1, 2, 3, 4, 5]


def two_types() -> Inputs:
    """Four layers of 1 ms at TP 1; the fast type halves at TP 2, the slow one takes 3 ms at both.

    State 10 bytes a layer at TP 1 and 5 at TP 2; one micro-batch keeps 1 byte a layer.
    """
    one = np.ones(4)
    figures = {
        FiguresKey(0, 1, 1): Figures(one, 0 * one, 10 * one, one, 2.0),
        FiguresKey(0, 1, 2): Figures(0.5 * one, 0 * one, 5 * one, one, 2.0),
        FiguresKey(1, 1, 1): Figures(3 * one, 0 * one, 10 * one, one, 2.0),
        FiguresKey(1, 1, 2): Figures(3 * one, 0 * one, 5 * one, one, 2.0),
    }
    return Inputs(
        types=("fast", "slow"),
        global_batch=8,
        zones=(Zone("lab", "lab", (2, 2)),),
        tps=((1, 2), (1, 2)),
        figures=figures,
        capacity_bytes=(100.0, 26.0),
        gradient_bytes=one,
        send_ms=lambda *_: 0.25,
        step_ms=lambda nbytes, *_: nbytes,
        bandwidth=lambda *_: 1.0,
        sent_bytes=1.0,
        largest_peers=5,
        usd_per_ms=(0.0, 0.0),
        egress_usd_per_byte=np.zeros((1, 1)),
    )


def test_the_smallest_degree_that_fits_counts_what_is_in_flight() -> None:
    # Depth 1: 4 * 10 + 4 + 2 = 46 > 26 at TP 1, 20 + 4 + 2 = 26 at TP 2.
    assert fitting_degrees(two_types(), 1, 1, stage_starts(4, 1)).tolist() == [2]
    # Depth 2: the first stage keeps two micro-batches, 20 + 4 + 2; the last one, 20 + 2 + 2.
    assert fitting_degrees(two_types(), 1, 1, stage_starts(4, 2)).tolist() == [1, 1]
    roomless = replace(two_types(), capacity_bytes=(100.0, 25.0))
    assert fitting_degrees(roomless, 1, 1, stage_starts(4, 2)).tolist() == [2, 1]


def test_every_type_may_run_at_its_smallest_or_at_its_scaling_degree() -> None:
    starts = stage_starts(4, 2)
    choices = [c.tolist() for c in degree_choices(two_types(), 1, starts, release=False)]
    assert choices == [[[1, 1], [1, 1]], [[2, 2], [1, 1]]]
    released = [c.tolist() for c in degree_choices(two_types(), 1, starts, release=True)]
    assert released == [[[1, 1], [1, 1]]]


def test_a_small_question_is_answered_as_by_hand() -> None:
    """Two fast GPUs, at best two stages, one replica each, 8 micro-batches.

    Stages of 2 ms: 7 * (2 + 0.25) + 4 + 2 * 0.25 = 20.25. One stage, TP 2: 8 * 2 = 16. One stage,
    two replicas of TP 1: 4 * 4 = 16 and a ring of 4 bytes: 2 * 1 step of 2 bytes = 4, 20 in all.
    One stage of TP 2 on the fast ones and one of TP 2 on the slow ones: 4 * 12 + 4.
    Two stages, first TP 2 on the fast ones (1 ms), second on the slow: 7 * 6.25 + 7 + 0.5.
    """
    best = SailorSearch(two_types()).run()[0]
    assert best.time_ms == 16
    assert best.peers == 1
    assert best.stage_of(0) == [(0, 2, 0)]


def test_equal_pipelines_become_replicas_of_one_template() -> None:
    problem = reference_problem("llama-3-8b", "two-64")
    result = sailor.plan(problem, Budget(), 0)
    assert result.status is Status.OK
    assert result.plan is not None
    assert result.reason == "all depths"
    assert result.evaluations > 0
    inputs = question(problem)
    best = SailorSearch(inputs).run()[0]
    assert sum(len(t.replicas) for t in result.plan.templates) == best.peers
    counts = {t.samples(r) for t in result.plan.templates for r in t.replicas}
    assert max(counts) - min(counts) <= 1
    assert result == replace(sailor.plan(problem, Budget(), 1), planning_s=result.planning_s)


def test_mixed_stages_become_templates_by_replica() -> None:
    problem = reference_problem("llama-3-8b", "two-64")
    inputs = question(problem)
    starts = stage_starts(inputs.layers, 5)
    a100, h100 = 0, 1
    tp = np.array([[4] * 5, [1] * 5])
    replicas = np.zeros((5, 2, 1), np.int64)
    replicas[:, h100, 0] = 4
    replicas[0] = [[1], [3]]  # one A100 group leads the first stage
    replicas[4] = [[2], [2]]  # two lead the last
    candidate = Candidate(0.0, 0.0, 1, 4, starts, tp, replicas, np.zeros((5, 1), np.int64))
    laid = sailor.pipelines(problem, inputs, candidate)
    kinds = [tuple(stage.gpu for stage in pipeline.stages) for pipeline in laid]
    middle = ("h100",) * 3
    assert kinds == [
        ("a100-40gb", *middle, "a100-40gb"),
        ("h100", *middle, "a100-40gb"),
        ("h100", *middle, "h100"),
        ("h100", *middle, "h100"),
    ]
    assert [stage.tp for stage in laid[0].stages] == [4, 1, 1, 1, 4]
    plan = sailor.plan_of_pipelines(problem, "sailor", laid)
    assert plan is not None
    assert sorted(len(t.replicas) for t in plan.templates) == [1, 1, 2]
    assert a100 == inputs.types.index("a100-40gb")


def test_uneven_nodes_are_read_as_single_gpus_and_the_result_says_so() -> None:
    problem = reference_problem("llama-3-8b", "uneven-52")
    result = sailor.plan(problem, Budget(), 0)
    assert result.plan is not None
    assert {stage.tp for t in result.plan.templates for stage in t.stages} == {1}
    assert "a100-40gb, a6000, h100 differ in size: read as one GPU each" in result.reason


def test_a_budget_ends_the_search_with_the_best_so_far() -> None:
    problem = reference_problem("llama-3-8b", "mixed-64")
    result = sailor.plan(problem, Budget(evaluations=3), 0)
    assert result.status is Status.OK
    assert result.evaluations == 3
    assert result.plan is not None
    assert "within the budget" in result.reason
    hurried = sailor.plan(problem, Budget(seconds=1e-6), 0)
    assert hurried.status is Status.BUDGET
    assert hurried.plan is None


def test_without_memory_there_is_no_plan_and_a_reason() -> None:
    base = reference_problem("qwen3-32b", "two-64")
    node = Node("only", "h100", 1, Topology.NVLINK, 12.5, 10.0)
    problem = replace(base, cluster=Cluster("one", (node,)))
    result = sailor.plan(problem, Budget(), 0)
    assert result.status is Status.NO_PLAN
    assert result.plan is None
    assert "memory" in result.reason
    assert result.rejected["no TP degree fits memory"] > 0
