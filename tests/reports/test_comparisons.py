from __future__ import annotations

import pytest

from db.records import ComparisonRow, CurvePoint, NewComparison
from db.store import Store
from reports.comparisons import by_planner, median_curve, read_comparisons
from specs.model import load_model
from specs.workload import Workload
from tests.reports.stores import cluster_of, fill_with_comparisons, predicted, straight_plan


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
