"""Contests: rows as they are stored and shown, and going on where one stopped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from db.store import Store, open_store
from planner.comparison import (
    Answer,
    Contest,
    comparison_rows,
    labelled,
    layout,
    planner_and_variant,
    run_contest,
    run_curves,
)
from planner.problem import Problem
from planner.profiles import Origin, load_profiles
from planner.race import Race
from planner.result import Budget, PlanResult, Status
from profiler.estimate import estimate_missing
from specs.cluster import Cluster, Node
from specs.model import load_model
from specs.topology import Topology
from tests.reports.stores import cluster_of, predicted, straight_plan


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db")) as opened:
        yield opened


def small_problem(store: Store) -> Problem:
    """Six GPUs of two types, a tiny model, estimated profiles of this store."""
    model = load_model("tiny-llama-test")
    nodes = [Node(f"h100-{i}", "h100", 2, Topology.NVSWITCH, 12.5, 10.0) for i in range(2)]
    nodes.append(Node("a6000-0", "a6000", 2, Topology.PCIE, 12.5, 10.0))
    cluster = Cluster("six", tuple(nodes))
    workload = replace(model.default_workload, global_batch=16)
    estimate_missing(store, model, workload, cluster)
    return Problem(
        model, workload, cluster, load_profiles(store, model, workload, cluster, source=None)
    )


def contest_of(store: Store, planners: Sequence[str], **more: object) -> Contest:
    contest = Contest("small", small_problem(store), tuple(planners), Budget(evaluations=60))
    return replace(contest, **more)  # type: ignore[arg-type]


def test_every_answer_is_stored_with_its_plan_and_curve(store: Store) -> None:
    contest = contest_of(store, ["arachne", "random"], options={"seed": 0})
    with Race(1) as race:
        comparison, answers = run_contest(store, race, contest)
    stored = store.comparison(comparison)
    assert [row.planner for row in stored.rows] == ["arachne", "random"]
    for answer, row in zip(answers, stored.rows, strict=True):
        assert answer.plan_id is not None
        assert row.iteration_ms == store.plan(answer.plan_id).iteration_ms
    for curve in store.search_curves(comparison):
        row = next(row for row in stored.rows if row.planner == curve.curve.planner)
        last = curve.curve.points[-1]
        assert (last.evaluations, last.best_iteration_ms) == (row.evaluations, row.iteration_ms)


def test_resuming_asks_only_for_the_rows_that_are_missing(store: Store) -> None:
    asked: list[str] = []

    def said(answer: Answer) -> None:
        asked.append(answer.planner)

    with Race(1) as race:
        first, _ = run_contest(store, race, contest_of(store, ["random"]), said=said)
        both = contest_of(store, ["arachne", "random"])
        second, answers = run_contest(store, race, both, resume=True, said=said)
        third, _ = run_contest(store, race, both, resume=True, said=said)
    assert asked == ["random", "arachne"]
    assert first == second == third
    assert [answer.planner for answer in answers] == ["arachne", "random"]
    assert len(store.comparisons()) == 1
    rows = comparison_rows(answers)
    assert all(row["iteration_s"] > 0 for row in rows)


def test_rows_that_other_runs_price_alike_are_kept_and_others_asked_again(store: Store) -> None:
    contest = contest_of(store, ["random"])
    asked: list[str] = []
    with Race(1) as race:
        first, answers = run_contest(store, race, contest)
        origins = {
            key: Origin(99, one.source) for key, one in contest.problem.profiles.origins.items()
        }
        again = replace(contest.problem.profiles, origins=origins)
        alike = replace(contest, problem=replace(contest.problem, profiles=again))
        same, _ = run_contest(
            store, race, alike, resume=True, said=lambda one: asked.append(one.planner)
        )
        assert (same, asked) == (first, [])
        rows = {
            key: replace(row, forward_ms=2 * row.forward_ms)
            for key, row in contest.problem.profiles.layers.items()
        }
        slower = replace(contest.problem.profiles, layers=rows)
        other = replace(contest, problem=replace(contest.problem, profiles=slower))
        same, changed = run_contest(
            store, race, other, resume=True, said=lambda one: asked.append(one.planner)
        )
    assert (same, asked) == (first, ["random"])
    (old,), (new,) = comparison_rows(answers), comparison_rows(changed)
    assert new["iteration_s"] > old["iteration_s"]


def test_another_budget_is_another_comparison(store: Store) -> None:
    with Race(1) as race:
        first, _ = run_contest(store, race, contest_of(store, ["random"]))
        other = contest_of(store, ["random"], budget=Budget(seconds=0.1))
        second, _ = run_contest(store, race, other, resume=True)
    assert first != second


def test_curves_are_followed_for_the_planners_that_are_asked(store: Store) -> None:
    contest = contest_of(store, ["annealing", "random", "metis"], budget=Budget(seconds=0.2))
    with Race(1) as race:
        comparison, _ = run_contest(store, race, contest)
        counts = run_curves(store, race, contest, comparison)
    assert counts == {"random": 3, "annealing": 1}
    curves = [stored.curve for stored in store.search_curves(comparison)]
    assert sorted(curve.seed for curve in curves if curve.planner == "random") == [0, 1, 2]
    for curve in curves:
        times = [point.best_iteration_ms for point in curve.points]
        assert times == sorted(times, key=lambda ms: -(ms or 0.0))


def test_a_plan_that_does_not_fit_is_not_ranked() -> None:
    cluster = cluster_of(("h100", 4, 2))
    answers = []
    for planner, ms, gib in (("fast", 100.0, 4.0), ("slow", 125.0, 4.0), ("too-large", 50.0, 4.0)):
        plan = predicted(straight_plan(cluster, planner=planner), ms, memory_gib=gib)
        if planner == "too-large":
            assert plan.prediction is not None
            stage = plan.prediction.stages[0][0]
            full = replace(stage, memory=replace(stage.memory, limit=1.0))
            stages = ((full, *plan.prediction.stages[0][1:]),)
            plan = plan.with_prediction(replace(plan.prediction, stages=stages))
        answers.append(Answer(planner, PlanResult(plan, 1.0, 10, {"memory": 4}, Status.OK), 1))
    rows = {row["planner"]: row for row in comparison_rows(answers)}
    assert rows["fast"]["relative_to_best"] == 1.0
    assert rows["slow"]["relative_to_best"] == 0.8
    assert (rows["too-large"]["fits"], rows["too-large"]["relative_to_best"]) == (False, None)
    assert rows["fast"]["gpus_used"] + rows["fast"]["gpus_idle"] == 8
    assert rows["fast"]["refused"] == 4


def test_the_layout_shows_type_and_degree_of_every_stage() -> None:
    plan = straight_plan(cluster_of(("h100", 2, 2), ("a6000", 2, 1)))
    assert layout(plan) == "1 x [2 h100:1, a6000:1]"


def test_labels_tell_planner_and_variant() -> None:
    assert planner_and_variant(labelled("metis", "retiled")) == ("metis", "retiled")
    assert planner_and_variant("flat-rl") == ("flat-rl", "")
