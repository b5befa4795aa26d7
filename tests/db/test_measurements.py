"""Measured iterations, their stages, and traces, on both backends."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from db.store import Store
from specs.errors import StoreError
from specs.measurement import RunTrace, StageTimes, StageTrack
from tests.db.samples import measurement, plan

STAGES = (
    StageTimes(0, 0, 1 / 3, 2 / 3, 0.1, 0.2, 0.3, 0.4),
    StageTimes(0, 1, 1.0, 2.0, 0, 0, 0, 1e-9, comm_ms=2 / 7),
)


def test_stages_come_back_with_their_iteration_to_the_last_digit(store: Store) -> None:
    first, second = store.add_plan(plan()), store.add_plan(plan(split=3))
    rows = [
        measurement(0),
        measurement(1, stages=STAGES),
        measurement(1, "run-2", stages=STAGES[:1]),
    ]
    store.add_measurements(first, rows)
    store.add_measurements(second, [measurement(1, stages=STAGES[1:])])
    assert [stored.measurement for stored in store.measurements(first)] == rows
    assert [len(stored.measurement.stages) for stored in store.measurements()] == [0, 2, 1, 1]


def test_an_iteration_written_again_has_the_stages_of_the_last_time(store: Store) -> None:
    plan_id = store.add_plan(plan())
    store.add_measurements(plan_id, [measurement(0, stages=STAGES), measurement(1, stages=STAGES)])
    store.add_measurements(plan_id, [measurement(0, stages=STAGES[:1]), measurement(2)])
    found = {s.measurement.iteration: s.measurement.stages for s in store.measurements()}
    assert found == {0: STAGES[:1], 1: STAGES, 2: ()}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sync_ms", -0.1),
        ("forward_ms", math.nan),
        ("stage", -1),
        ("comm_ms", -1e-9),
        ("update_ms", None),
    ],
)
def test_stages_that_cannot_be_are_refused_and_nothing_is_written(
    store: Store, field: str, value: float
) -> None:
    plan_id = store.add_plan(plan())
    bad = replace(STAGES[0], **{field: value})  # type: ignore[arg-type]
    with pytest.raises(StoreError, match=rf"iteration 1 template 0 stage -?\d: {field} is"):
        store.add_measurements(plan_id, [measurement(0), measurement(1, stages=(bad,))])
    assert store.measurements() == []


def test_names_of_runs_that_no_backend_holds_keep_their_stages(store: Store) -> None:
    plan_id = store.add_plan(plan())
    store.add_measurements(plan_id, [measurement(0, "a\x00b\udcff", stages=STAGES)])
    (found,) = store.measurements(plan_id)
    assert found.measurement.stages == STAGES


TRACE = RunTrace(
    "run-1",
    3,
    12.5,
    (
        StageTrack(0, 0, (("forward", 0, 0.0, 1 / 3), ("send", 0, 1 / 3, 0.5))),
        StageTrack(0, 1, (("receive", 0, 0.0, 0.5), ("sync", -1, 0.5, 0.75))),
    ),
)


def test_a_run_has_one_trace_the_newest(store: Store) -> None:
    first, second = store.add_plan(plan()), store.add_plan(plan(split=3))
    store.add_trace(first, replace(TRACE, iteration=2))
    store.add_trace(first, replace(TRACE, run="run-2"))
    store.add_trace(first, TRACE)
    store.add_trace(second, TRACE)
    found = {s.trace.run: s.trace for s in store.traces(first)}
    assert found == {"run-1": TRACE, "run-2": replace(TRACE, run="run-2")}
    assert [s.plan_id for s in store.traces(second)] == [second]
    assert store.traces(99) == []


def test_traces_that_cannot_be_are_refused(store: Store) -> None:
    plan_id = store.add_plan(plan())
    backwards = StageTrack(0, 0, (("forward", 0, 2.0, 1.0),))
    with pytest.raises(StoreError, match=r"forward is from 2.0 to 1.0 ms, expected start <= end"):
        store.add_trace(plan_id, replace(TRACE, tracks=(backwards,)))
    with pytest.raises(StoreError, match="iteration_ms is nan"):
        store.add_trace(plan_id, replace(TRACE, iteration_ms=math.nan))
    with pytest.raises(StoreError, match="no plan 9 in the store"):
        store.add_trace(9, TRACE)
    assert store.traces(plan_id) == []


def test_measurements_come_back_in_order(store: Store) -> None:
    first, second = store.add_plan(plan()), store.add_plan(plan(split=3))
    rows = [measurement(i) for i in range(3)]
    store.add_measurements(second, rows)
    store.add_measurements(first, [measurement(0, "other", loss=None, drift=None, peak_bytes=())])
    found = store.measurements(second)
    assert [stored.measurement for stored in found] == rows
    assert {stored.plan_id for stored in found} == {second}
    assert [stored.plan_id for stored in store.measurements()] == [first, second, second, second]
    assert store.measurements(first)[0].measurement.loss is None
    assert store.measurements(99) == []


def test_the_same_iteration_of_a_run_is_replaced(store: Store) -> None:
    plan_id = store.add_plan(plan())
    store.add_measurements(plan_id, [measurement(0), measurement(1)])
    store.add_measurements(plan_id, [measurement(1, iteration_ms=99.0), measurement(1, "run-2")])
    found = [stored.measurement for stored in store.measurements(plan_id)]
    assert [(row.run, row.iteration, row.iteration_ms) for row in found] == [
        ("run-1", 0, 12.0),
        ("run-1", 1, 99.0),
        ("run-2", 1, 13.0),
    ]


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_diverged_loss_is_kept_as_none_beside_its_time(store: Store, loss: float) -> None:
    plan_id = store.add_plan(plan())
    store.add_measurements(plan_id, [measurement(0, loss=loss)])
    (found,) = store.measurements(plan_id)
    assert (found.measurement.loss, found.measurement.iteration_ms) == (None, 12.0)


def test_measurements_that_cannot_be_are_refused_and_none_is_written(store: Store) -> None:
    plan_id = store.add_plan(plan())
    for fields, said in (
        ({"iteration_ms": -1.0}, "iteration_ms is -1.0"),
        ({"iteration_ms": math.nan}, "iteration_ms is nan"),
        ({"samples": 0}, "samples is 0"),
        ({"peak_bytes": (1, -1)}, "peak_bytes is -1"),
        ({"drift": -1.5}, "drift is -1.5"),
    ):
        with pytest.raises(StoreError, match=said):
            store.add_measurements(plan_id, [measurement(0), measurement(1, **fields)])
    with pytest.raises(StoreError, match="iteration is -1"):
        store.add_measurements(plan_id, [measurement(-1)])
    assert store.measurements() == []
    store.add_measurements(plan_id, [measurement(0, drift=-0.25)])  # a machine may get faster
