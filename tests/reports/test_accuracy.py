from __future__ import annotations

import pytest

from db.store import Store
from reports.accuracy import gpus_held, layout_label, read_accuracy, source_label
from reports.summary import MIXED, by_source, by_source_and_hardware, overall
from specs.measurement import Measurement
from specs.profile import Source
from tests.reports.stores import (
    GIB,
    cluster_of,
    iterations,
    predicted,
    profile_run,
    straight_plan,
)


def add(store: Store, predicted_ms: float, times: list[float], **facts: object) -> int:
    """A plan on a GH200 node predicted to take so long, and one run of it."""
    plan = straight_plan(cluster_of(("gh200", 4, 1)), global_batch=int(predicted_ms))
    plan_id = store.add_plan(predicted(plan, predicted_ms, **facts))  # type: ignore[arg-type]
    if times:
        store.add_measurements(plan_id, iterations(times))
    return plan_id


def test_the_error_is_predicted_less_measured_in_shares_of_measured(store: Store) -> None:
    add(store, 110, [99.0, 100.0, 101.0])
    (row,) = read_accuracy(store).rows
    assert row.error == pytest.approx(0.10)
    assert row.spread == pytest.approx(0.01)
    assert (row.gpu_label, row.hardware, row.machines) == ("1 × gh200", "gh200", 1)


def test_a_row_keeps_source_and_profile_runs(store: Store) -> None:
    one = profile_run(store, Source.MEASURED)
    two = profile_run(store, Source.ESTIMATED)
    add(store, 110, [100.0], runs=[one, two], sources=["estimated", "measured"])
    (row,) = read_accuracy(store).rows
    assert row.source == "measured + estimated"
    assert row.profile_runs == (one, two)
    assert row.to_json()["profile_runs"] == [one, two]


def test_sources_are_named_in_order_of_trust() -> None:
    assert source_label(["estimated", "imported", "measured", "imported"]) == (
        "measured + imported + estimated"
    )
    assert source_label([]) == "unknown"


def test_runs_of_one_plan_on_one_host_give_the_run_to_run_spread(store: Store) -> None:
    plan_id = add(store, 100, [100.0])
    store.add_measurements(plan_id, iterations([104.0], run="second"))
    store.add_measurements(plan_id, iterations([90.0], run="elsewhere", host="host-b"))
    spreads = {row.run: row.run_to_run for row in read_accuracy(store).rows}
    # 100 and 104: median 102, both 2 away from it
    assert spreads["run-1"] == spreads["second"] == pytest.approx(2 / 102)
    assert spreads["elsewhere"] is None


def test_a_published_mean_is_no_repeat_of_a_run_of_ours(store: Store) -> None:
    plan_id = add(store, 100, [100.0])
    store.add_measurements(plan_id, [Measurement("p", "host-a", "set", 0, 140.0, samples=10)])
    assert [row.run_to_run for row in read_accuracy(store).rows] == [None, None]


def test_what_cannot_be_compared_is_counted_by_reason(store: Store) -> None:
    add(store, 100, [])
    plan_id = add(store, 101, [])
    store.add_measurements(plan_id, [Measurement("r", "h", "o", 0, 5.0, warm_up=True)])
    bare = store.add_plan(straight_plan(cluster_of(("gh200", 4, 1)), global_batch=7))
    store.add_measurements(bare, iterations([5.0]))
    none = add(store, 102, [])
    store.add_measurements(none, [Measurement("r", "h", "o", 0, 0.0)])
    found = read_accuracy(store)
    assert found.rows == ()
    assert found.left_out == {
        "only warm-up iterations": 1,
        "the plan has no prediction": 1,
        "an iteration time of 0 ms": 1,
    }
    assert found.unmeasured_plans == 1


def test_memory_is_compared_at_the_fullest_gpu(store: Store) -> None:
    plan = straight_plan(cluster_of(("gh200", 4, 2)))
    plan_id = store.add_plan(predicted(plan, 100.0, memory_gib=5.0))
    store.add_measurements(plan_id, iterations([100.0], peak=int(4 * GIB)))
    (row,) = read_accuracy(store).rows
    assert row.predicted_peak_bytes == pytest.approx(5 * GIB)
    assert row.memory_error == pytest.approx(0.25)
    assert row.where == "across machines"


def test_only_gpus_that_the_plan_holds_are_counted() -> None:
    plan = straight_plan(cluster_of(("rtx-3090", 8, 1), ("titan-rtx", 8, 2)))
    assert plan.cluster.gpus == 24
    assert gpus_held(plan) == (("rtx-3090", 1), ("titan-rtx", 2))


def test_a_layout_is_said_in_a_few_words() -> None:
    plan = straight_plan(cluster_of(("gh200", 4, 4)), replicas=2, micro_batch=4)
    assert layout_label(plan) == "2 × (2 stages, tp 1, b 4)"


def test_errors_are_grouped_by_source_and_hardware_and_never_mixed_silently(store: Store) -> None:
    add(store, 110, [100.0])  # +10 %
    add(store, 96, [100.0])  # -4 %
    add(store, 150, [100.0], sources=["estimated"])  # +50 %
    rows = read_accuracy(store).rows
    measured, estimated = by_source(rows)
    assert (measured.source, measured.runs) == ("measured", 2)
    assert measured.mean_percent == pytest.approx(7.0)
    assert measured.median_percent == pytest.approx(7.0)
    assert measured.bias_percent == pytest.approx(3.0)
    assert measured.worst_percent == pytest.approx(10.0)
    assert measured.within_25_percent == 100.0
    assert estimated.within_25_percent == 0.0
    whole = overall(rows)
    assert whole is not None
    assert whole.source == MIXED
    assert whole.median_percent == pytest.approx(10.0)
    assert [(g.source, g.hardware) for g in by_source_and_hardware(rows)] == [
        ("measured", "gh200"),
        ("estimated", "gh200"),
    ]


def test_no_rows_give_no_summary() -> None:
    assert (by_source(()), by_source_and_hardware(()), overall(())) == ([], [], None)


def test_one_source_is_not_called_mixed(store: Store) -> None:
    add(store, 110, [100.0])
    whole = overall(read_accuracy(store).rows)
    assert whole is not None
    assert whole.source == "measured"
