"""Plans, predictions and measurements."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from db.store import Store
from specs.errors import StoreError
from specs.plan_file import plan_hash
from tests.db.samples import CLUSTER, measured_run, measurement, plan, prediction


def test_a_plan_comes_back_with_its_prediction_to_the_last_digit(store: Store) -> None:
    run = measured_run(store)
    asked = plan(run, iteration_ms=1 / 3)
    plan_id = store.add_plan(
        asked,
        planning_s=0.25,
        evaluations=2**40,
        rejected={"memory": 3},
        options={"seed": 0, "budget_s": None, "source": "measured"},
    )
    found = store.plan(plan_id)
    assert found.plan == asked
    assert found.plan_hash == plan_hash(asked)
    assert (found.planning_s, found.evaluations, found.rejected) == (0.25, 2**40, {"memory": 3})
    assert found.options == {"seed": 0, "budget_s": None, "source": "measured"}
    assert found.profile_runs == (run,)
    assert found.iteration_ms == 1 / 3
    assert (found.status, found.memory_bytes) == ("fits", 5e8)
    assert (datetime.now(UTC) - found.created).total_seconds() < 60


def test_a_plan_without_prediction_is_unpriced(store: Store) -> None:
    found = store.plan(store.add_plan(plan()))
    assert found.plan == plan()
    assert (found.status, found.iteration_ms, found.memory_bytes) == ("unpriced", None, None)
    assert found.profile_runs == ()


def test_a_plan_that_does_not_fit_says_so(store: Store) -> None:
    run = measured_run(store)
    assert store.plan(store.add_plan(plan(run, limit=1e8))).status == "does not fit"


def test_the_same_plan_has_the_same_id_and_the_newest_prediction(store: Store) -> None:
    run = measured_run(store)
    options = {"seed": 0, "top": 3}
    first = store.add_plan(plan(run), options=options, planning_s=1.0)
    again = store.add_plan(
        plan(run, iteration_ms=11.0), options={"top": 3, "seed": 0}, planning_s=2.0
    )
    assert again == first
    (found,) = store.plans()
    assert (found.iteration_ms, found.planning_s) == (11.0, 2.0)
    assert found.updated is not None
    assert found.updated >= found.created


def test_other_planner_options_runs_or_layout_make_another_plan(store: Store) -> None:
    one, two = measured_run(store), measured_run(store)
    ids = [
        store.add_plan(plan(one)),
        store.add_plan(plan(one, planner="random")),
        store.add_plan(plan(one), options={"seed": 1}),
        store.add_plan(plan(two)),
        store.add_plan(plan(one, two)),
        store.add_plan(plan(one, split=3)),
        store.add_plan(plan()),
    ]
    assert len(set(ids)) == 7
    assert [stored.id for stored in store.plans()] == ids
    alike = store.plans_like(plan_hash(plan(one)))
    assert [stored.id for stored in alike] == [ids[0], ids[2], ids[3], ids[4], ids[6]]
    assert alike[3].profile_runs == (one, two)


def test_model_workload_and_cluster_are_kept_once(store: Store) -> None:
    run = measured_run(store)
    store.add_plan(plan(run))
    store.add_plan(plan(run, split=3))
    with store.read() as connection:
        for table in ("models", "workloads", "clusters"):
            count = connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one()
            assert count == 1, table


def test_clusters_that_differ_in_any_node_are_two(store: Store) -> None:
    other = replace(CLUSTER, nodes=(CLUSTER.nodes[0], replace(CLUSTER.nodes[1], host="h1")))
    first, second = store.add_plan(plan()), store.add_plan(replace(plan(), cluster=other))
    assert first != second
    assert store.plan(second).plan.cluster == other


def test_a_prediction_from_a_run_that_is_not_there_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="names profile run 77, which is not in the store"):
        store.add_plan(plan(77))
    assert store.plans() == []
    assert store.models() == []  # nothing of the plan stays behind


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_prediction_that_is_no_number_is_refused(store: Store, bad: float) -> None:
    run = measured_run(store)
    with pytest.raises(StoreError, match=r"JSON form|iteration_ms"):
        store.add_plan(plan(run, iteration_ms=bad))
    with pytest.raises(StoreError, match="planning_s"):
        store.add_plan(plan(run), planning_s=bad)
    with pytest.raises(StoreError, match="options of the plan has no JSON form"):
        store.add_plan(plan(run), options={"budget_s": bad})
    assert store.plans() == []


def test_a_plan_that_is_not_there_is_named(store: Store) -> None:
    with pytest.raises(StoreError, match="no plan 5 in the store; arachne-plan list"):
        store.plan(5)
    with pytest.raises(StoreError, match="no plan 5 in the store"):
        store.add_measurements(5, [measurement(0)])
    assert store.plans_like("0" * 16) == []


def test_a_prediction_does_not_change_the_layout(store: Store) -> None:
    run = measured_run(store)
    unpriced = store.add_plan(plan())
    priced = store.add_plan(plan().with_prediction(prediction(run)))
    assert store.plan(unpriced).plan_hash == store.plan(priced).plan_hash
    assert unpriced != priced
