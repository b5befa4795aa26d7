from __future__ import annotations

from dataclasses import replace

import pytest

from db.store import Store
from reports.accuracy import accuracy_of, read_accuracy
from reports.accuracy_figures import accuracy_figures, every_run, stage_table
from reports.stage_errors import StageError, TermError, stage_errors
from specs.measurement import Measurement, StageTimes
from specs.profile import Source
from tests.reports.stores import (
    cluster_of,
    iterations,
    predicted,
    profile_run,
    stage_times_of,
    straight_plan,
)

PLAN = predicted(straight_plan(cluster_of(("h100", 1, 3)), micro_batch=4), 100.0)


def measured(*stages: StageTimes, iteration: int = 1, warm_up: bool = False) -> Measurement:
    return Measurement("r", "h", "o", iteration, 100.0, warm_up=warm_up, stages=stages)


def test_terms_are_those_of_a_whole_iteration() -> None:
    """8 micro-batches: predicted 2 ms computing, 0.4 in collectives and 0.2 sending each.

    Measured 3 ms forward and backward, half of one in collectives; 4 ms sending in all.
    """
    times = StageTimes(*(0, 1, 1.0, 2.0), *(4.0, 9.0, 2.0, 1.0), comm_ms=0.5)
    (stage,) = stage_errors(PLAN, [measured(times)], 100.0)
    assert (stage.template, stage.stage, stage.gpu, stage.role) == (0, 1, "h100", "middle stage")
    found = {term.term: (term.predicted_ms, term.measured_ms) for term in stage.terms}
    assert found["compute"] == pytest.approx((16.0, 20.0))
    assert found["communication"] == pytest.approx((4.8, 8.0))
    assert found["sync"] == (3.0, 2.0)
    assert found["update"] == (1.0, 1.0)
    compute, _, sync, _ = stage.terms
    assert compute.error == pytest.approx(16 / 20 - 1)
    assert stage.share(compute) == pytest.approx(-0.04)
    assert stage.share(sync) == pytest.approx(0.01)
    assert stage.split


def test_collectives_that_a_run_did_not_time_stay_with_its_computation() -> None:
    """Planned and measured term hold the same, under a name that says so."""
    old = StageTimes(0, 1, 1.0, 2.0, 4.0, 9.0, 2.0, 1.0)
    new = replace(old, comm_ms=0.5)
    (stage,) = stage_errors(PLAN, [measured(new), measured(old, iteration=2)], 100.0)
    found = {term.term: (term.predicted_ms, term.measured_ms) for term in stage.terms}
    assert found["compute with collectives"] == pytest.approx((19.2, 24.0))
    assert found["transfers"] == pytest.approx((1.6, 4.0))
    assert not stage.split
    assert PLAN.prediction is not None
    alone = replace(PLAN.prediction.stages[0][1], comm_ms=0.0)  # TP 1: no collective to time
    stages = ((alone, alone, alone),)
    plan = PLAN.with_prediction(replace(PLAN.prediction, stages=stages))
    (stage,) = stage_errors(plan, [measured(old)], 100.0)
    assert [term.term for term in stage.terms[:2]] == ["compute", "communication"]
    assert stage.terms[0].measured_ms == pytest.approx(24.0)
    assert stage.terms[1].measured_ms == pytest.approx(4.0)


def test_the_middle_of_the_iterations_counts_and_warm_ups_do_not() -> None:
    def at(forward_ms: float) -> StageTimes:
        return StageTimes(0, 0, forward_ms, 1.0, 0, 0, 0, 0, comm_ms=0.0)

    rows = [measured(at(500.0), warm_up=True)]
    rows += [measured(at(ms), iteration=i) for i, ms in enumerate((1.0, 2.0, 40.0))]
    (stage,) = stage_errors(PLAN, rows, 100.0)
    assert stage.terms[0].measured_ms == pytest.approx(8 * 3.0)
    assert stage.role == "first stage"


def test_a_run_without_stages_or_prediction_has_none() -> None:
    assert stage_errors(PLAN, [measured()], 100.0) == ()
    unpriced = replace(PLAN, prediction=None)
    assert stage_errors(unpriced, [measured(*stage_times_of(PLAN))], 100.0) == ()


def test_stages_that_the_plan_does_not_have_are_passed_over() -> None:
    beyond = StageTimes(0, 7, 1, 1, 0, 0, 0, 0)
    assert stage_errors(PLAN, [measured(beyond)], 100.0) == ()


def test_a_term_of_no_time_has_no_error_in_percent_of_itself() -> None:
    assert TermError("sync", 0.0, 0.0).error is None
    stage = StageError(0, 0, 1, "cpu", 50.0, (TermError("sync", 1.0, 0.0),))
    assert stage.role == "only stage"
    assert stage.to_json()["terms"] == [
        {
            "term": "sync",
            "predicted_ms": 1.0,
            "measured_ms": 0.0,
            "error_percent": None,
            "share_percent": 2.0,
        }
    ]


def test_the_report_holds_the_stages_of_runs_that_recorded_them(store: Store) -> None:
    run = profile_run(store, Source.MEASURED)
    plan = predicted(PLAN, 110.0, runs=[run])
    plan_id = store.add_plan(plan)
    rows = iterations([100.0, 102.0])
    store.add_measurements(
        plan_id, [replace(row, stages=stage_times_of(plan, 1.25)) for row in rows]
    )
    store.add_measurements(plan_id, iterations([90.0], run="run-2"))
    found = read_accuracy(store).rows
    assert [len(row.stages) for row in found] == [3, 0]
    document = found[0].to_json()
    assert [stage["role"] for stage in document["stages"]] == [
        "first stage",
        "middle stage",
        "last stage",
    ]
    errors = {term["error_percent"] for stage in document["stages"] for term in stage["terms"]}
    assert all(error == pytest.approx(-20.0) for error in errors)
    table = stage_table(found)
    assert len(table.rows) == 3 * 4
    assert {len(row) for row in table.rows} == {len(table.columns)}
    assert "stages" not in every_run(found).columns
    assert [f.name for f in accuracy_figures(found)][-1] == "terms"
    assert "terms" not in [f.name for f in accuracy_figures(found[1:])]
    assert accuracy_of(store.plans(), store.measurements()).rows == found
