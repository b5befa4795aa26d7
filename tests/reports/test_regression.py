from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from db.store import Store
from reports import regression
from reports.accuracy import read_accuracy
from reports.accuracy_page import accuracy_document
from reports.page import Provenance
from specs.errors import SpecError
from specs.profile import Source
from tests.reports.stores import cluster_of, iterations, predicted, profile_run, straight_plan

MADE = Provenance("a store", datetime(2026, 11, 30, 12, tzinfo=UTC), "0.1.0", "arachne-report")


def report(store: Store, earlier: dict[str, Any] | None = None) -> dict[str, Any]:
    """The accuracy.json of the store as it is, compared with an earlier one."""
    found = read_accuracy(store)
    change = regression.against(earlier, found.rows)
    return json.loads(json.dumps(accuracy_document(found, MADE, change, earlier)))  # type: ignore[no-any-return]


def predict(store: Store, milliseconds: float) -> int:
    """A plan that ran 100 ms, predicted (again) to take so long."""
    run = store.find_run(Source.MEASURED, "a test")
    run_id = run.id if run else profile_run(store, Source.MEASURED)
    plan = straight_plan(cluster_of(("gh200", 4, 1)))
    plan_id = store.add_plan(predicted(plan, milliseconds, runs=[run_id]))
    store.add_measurements(plan_id, iterations([100.0]))
    return plan_id


def test_the_same_runs_predicted_worse_are_flagged(store: Store) -> None:
    predict(store, 103)
    earlier = report(store)
    assert earlier["regression"] is None
    predict(store, 92)
    now = report(store, earlier)["regression"]
    (group,) = now["groups"]
    assert now["worse"] is True
    assert (group["shared_runs"], group["new_runs"]) == (1, 0)
    assert group["then_percent"] == pytest.approx(3)
    assert group["now_percent"] == pytest.approx(8)
    assert [run["now_percent"] for run in now["runs"]] == [pytest.approx(-8)]


def test_better_predictions_are_no_regression(store: Store) -> None:
    predict(store, 92)
    earlier = report(store)
    predict(store, 103)
    now = report(store, earlier)["regression"]
    assert now["worse"] is False
    assert now["runs"] == []


def test_a_change_below_one_point_is_no_regression(store: Store) -> None:
    predict(store, 103)
    earlier = report(store)
    predict(store, 103.9)
    assert report(store, earlier)["regression"]["worse"] is False


def test_new_runs_with_larger_errors_are_new_runs_and_no_regression(store: Store) -> None:
    predict(store, 103)
    earlier = report(store)
    plan = straight_plan(cluster_of(("gh200", 4, 1)), global_batch=99)
    store.add_measurements(store.add_plan(predicted(plan, 300.0)), iterations([100.0]))
    now = report(store, earlier)["regression"]
    (group,) = now["groups"]
    assert (group["shared_runs"], group["new_runs"], group["worse"]) == (1, 1, False)
    assert group["all_now_percent"] == pytest.approx((3 + 200) / 2)


def test_making_the_report_again_does_not_wash_the_flag_away(store: Store) -> None:
    predict(store, 103)
    first = report(store)
    predict(store, 92)
    second = report(store, first)
    third = report(store, second)
    assert third["regression"] == second["regression"]
    assert third["regression"]["worse"] is True


def test_history_grows_by_one_report_each_time_something_changed(store: Store) -> None:
    predict(store, 103)
    first = report(store)
    predict(store, 92)
    second = report(store, first)
    third = report(store, second)
    assert (len(first["history"]), len(second["history"]), len(third["history"])) == (0, 1, 1)
    assert second["history"][0]["by_source"][0]["median_percent"] == pytest.approx(3)


def test_a_missing_earlier_report_is_nothing_to_compare_with(tmp_path: Path) -> None:
    assert regression.read_earlier(tmp_path / "accuracy.json", must_exist=False) is None
    assert regression.against(None, ()) is None


def test_an_earlier_report_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such file, expected an earlier accuracy"):
        regression.read_earlier(tmp_path / "gone.json", must_exist=True)


@pytest.mark.parametrize(
    "text", ["", "[1", "[]", "null", '{"schema": 99}', '{"schema": 1, "rows": [{}]}', "\x00\xff"]
)
def test_what_is_no_earlier_report_is_passed_over_or_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "accuracy.json"
    path.write_text(text, encoding="latin-1")
    assert regression.read_earlier(path, must_exist=False) is None
    with pytest.raises(SpecError, match="is not an earlier accuracy"):
        regression.read_earlier(path, must_exist=True)
