from __future__ import annotations

import pytest

from db.records import ComparisonRow, CurvePoint, NewComparison
from db.store import Store
from reports.compare_page import compare_page
from reports.comparisons import by_planner, median_curve, read_comparisons, with_backdrop
from reports.growth_figures import growth_figures
from specs.model import load_model
from specs.workload import Workload
from tests.reports.stores import (
    cluster_of,
    fill_with_comparisons,
    fill_with_profiles,
    fill_with_suite,
    predicted,
    straight_plan,
)
from tests.reports.test_browser_pages import MADE


def test_throughput_is_relative_to_the_best_of_the_same_question(store: Store) -> None:
    cluster = cluster_of(("h100", 4, 2))
    question = store.add_comparison(
        NewComparison("q", load_model("tiny-llama-test"), Workload(50, 128), cluster)
    )
    for planner, time in (("fast", 100.0), ("slow", 125.0)):
        plan = predicted(straight_plan(cluster, planner=planner, global_batch=50), time)
        row = ComparisonRow(planner, store.add_plan(plan), "ok", iteration_ms=time, search_s=1.0)
        store.add_comparison_row(question, row)
    row = ComparisonRow("none", None, "no plan", "too large", search_s=2.0)
    store.add_comparison_row(question, row)
    fast, slow, none = read_comparisons(store).answers
    assert (fast.relative, slow.relative, none.relative) == (1.0, 0.8, None)
    assert fast.samples_per_s == pytest.approx(500)
    assert (fast.depth, fast.templates, fast.mix, fast.gpus_used) == (2, 1, "2 × h100", 2)
    assert (none.reason, none.depth) == ("too large", None)


def test_planners_are_ranked_by_questions_won(store: Store) -> None:
    fill_with_comparisons(store, 8)
    ranked = by_planner(read_comparisons(store).answers)
    assert ranked[0].planner == "exhaustive"
    assert (ranked[0].wins, ranked[0].questions) == (8, 8)
    metis = next(one for one in ranked if one.planner == "metis")
    assert (metis.questions, metis.answered) == (8, 6)


def test_questions_of_one_name_are_told_apart(store: Store) -> None:
    fill_with_comparisons(store, 1)
    fill_with_comparisons(store, 1)
    names = read_comparisons(store).questions
    assert len(set(names.values())) == 2
    assert all("#" in name for name in names.values())


def test_a_curve_is_the_median_over_seeds_of_the_best_so_far() -> None:
    one = (CurvePoint(1, None), CurvePoint(2, 50.0), CurvePoint(8, 20.0))
    two = (CurvePoint(1, 40.0), CurvePoint(4, 30.0))
    assert median_curve([one, two]) == [(1, 40.0), (2, 45.0), (4, 40.0), (8, 25.0)]


def test_a_curve_without_a_plan_is_no_curve() -> None:
    assert median_curve([(CurvePoint(1, None),)]) == []


def test_nested_clusters_of_a_suite_are_a_growth(store: Store) -> None:
    fill_with_suite(store)
    joins, types = read_comparisons(store).growths
    assert (joins.name, joins.gpus, joins.types) == (
        "paper, growing: tiny-llama-test",
        (2, 4, 6),
        None,
    )
    assert (types.gpus, types.types) == ((4, 8), (1, 2))


def test_a_growth_is_drawn_as_a_line_per_planner_with_gaps(store: Store) -> None:
    fill_with_suite(store)
    growth, types = growth_figures(read_comparisons(store))
    lines = {trace["name"]: (trace["x"], trace["y"]) for trace in growth.traces}
    assert lines["arachne"] == ([2, 4, 6], [160.0, 320.0, 480.0])
    assert lines["metis"] == ([2, 4, 6], [80.0, 160.0, None])
    assert types.traces[0]["y"] == [1.0, 2.0]
    assert len(growth.table.rows) == 6


def test_a_plan_that_does_not_fit_is_not_the_best(store: Store) -> None:
    fill_with_suite(store)
    rows = [row for row in read_comparisons(store).answers if row.gpus == 6]
    arachne, metis = rows
    assert (arachne.fits, arachne.relative) == (True, 1.0)
    assert (metis.fits, metis.relative) == (False, None)
    assert metis.iteration_ms is not None
    assert arachne.iteration_ms is not None
    assert metis.iteration_ms < arachne.iteration_ms


def test_published_figures_stand_beside_those_of_the_papers_suite(store: Store) -> None:
    before = compare_page(read_comparisons(store), MADE)
    assert before.context["published"] == []
    fill_with_suite(store)
    page = compare_page(read_comparisons(store), MADE)
    here = {row.name: row.here for row in page.context["published"]}
    assert here["search"] == "1.00 to 3.00 s"
    assert "growing +100.0 % (+100.0 to +100.0)" in here["leads"]


def test_random_plans_stand_behind_questions_whose_profiles_are_there(store: Store) -> None:
    fill_with_suite(store)
    assert with_backdrop(store, read_comparisons(store), 20).backdrop == {}
    fill_with_profiles(store, ["h100", "a6000"])
    found = with_backdrop(store, read_comparisons(store), 20)
    assert set(found.backdrop) == set(found.questions)
    plans = found.backdrop[max(found.questions)]
    times = [plan.iteration_ms for plan in plans]
    assert times == sorted(times)
    assert len(times) > 5
    data = compare_page(found, MADE).data
    assert len(data["backdrop"][max(found.questions)]) == len(times)
