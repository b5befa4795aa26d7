"""Comparisons, search curves, reconfigurations and policies."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from db.records import (
    ComparisonRow,
    CurvePoint,
    NewComparison,
    NewPolicy,
    NewReconfiguration,
    SearchCurve,
)
from db.store import Store
from specs.errors import StoreError
from tests.db.samples import CLUSTER, MODEL, WORKLOAD, plan

QUESTION = NewComparison(
    "tiny on two hosts",
    MODEL,
    WORKLOAD,
    CLUSTER,
    suite="paper",
    origin="arachne-plan compare",
    options={"budget_s": 10.0, "seed": 0},
)


def test_a_comparison_comes_back_with_its_rows_in_order(store: Store) -> None:
    plan_id = store.add_plan(plan())
    comparison = store.add_comparison(QUESTION)
    rows = (
        ComparisonRow("sailor", plan_id, "ok", "", 12.5, 1.5, 2**33, {"memory": 4}),
        ComparisonRow("metis", None, "no plan", "no tp fits", search_s=0.5, rejected={"tp": 9}),
        ComparisonRow("amp", None, "unsupported", "one GPU type only"),
    )
    for row in rows:
        store.add_comparison_row(comparison, row)
    found = store.comparison(comparison)
    assert found.comparison == QUESTION
    assert found.rows == rows
    assert store.comparisons() == [found]


def test_a_planner_asked_again_replaces_its_row(store: Store) -> None:
    comparison = store.add_comparison(QUESTION)
    store.add_comparison_row(comparison, ComparisonRow("sailor", None, "budget", "10 s"))
    store.add_comparison_row(comparison, ComparisonRow("metis", None, "no plan"))
    store.add_comparison_row(comparison, ComparisonRow("sailor", None, "ok", iteration_ms=9.0))
    found = store.comparison(comparison).rows
    assert [(row.planner, row.status, row.iteration_ms) for row in found] == [
        ("sailor", "ok", 9.0),
        ("metis", "no plan", None),
    ]


def test_a_comparison_to_go_on_with_is_found_by_its_question(store: Store) -> None:
    store.add_comparison(QUESTION)
    newest = store.add_comparison(QUESTION)
    store.add_comparison(replace(QUESTION, options={"budget_s": 600.0, "seed": 0}))
    store.add_comparison(replace(QUESTION, workload=replace(WORKLOAD, global_batch=64)))
    store.add_comparison(replace(QUESTION, cluster=replace(CLUSTER, name="other")))
    found = store.find_comparison(replace(QUESTION, origin="another command"))
    assert found is not None
    assert found.id == newest
    assert store.find_comparison(replace(QUESTION, title="another")) is None
    assert [c.id for c in store.comparisons(suite="paper")] == [1, 2, 3, 4, 5]
    assert store.comparisons(suite="") == []


def test_rows_that_cannot_be_are_refused(store: Store) -> None:
    comparison = store.add_comparison(QUESTION)
    for row, said in (
        (ComparisonRow("sailor", None, "perhaps"), "status is 'perhaps', expected ok, no plan"),
        (ComparisonRow("sailor", 42, "ok"), "no plan 42 in the store"),
        (ComparisonRow("sailor", None, "ok", iteration_ms=math.nan), "iteration_ms is nan"),
        (ComparisonRow("sailor", None, "ok", search_s=-1.0), "search_s is -1.0"),
        (ComparisonRow("sailor", None, "ok", evaluations=-1), "evaluations is -1"),
    ):
        with pytest.raises(StoreError, match=said):
            store.add_comparison_row(comparison, row)
    with pytest.raises(StoreError, match="no comparison 99"):
        store.add_comparison_row(99, ComparisonRow("sailor", None, "ok"))
    with pytest.raises(StoreError, match="no comparison 99"):
        store.comparison(99)
    assert store.comparison(comparison).rows == ()


def test_search_curves_come_back_by_planner_phase_and_seed(store: Store) -> None:
    comparison = store.add_comparison(QUESTION)
    curves = [
        SearchCurve("arachne", (CurvePoint(32, 20.0, 0.5),), phase="learning"),
        SearchCurve("arachne", (CurvePoint(1, None, 0.0), CurvePoint(64, 15.0, 1.0))),
        SearchCurve("random", tuple(CurvePoint(2**i, 30.0 - i) for i in range(9)), seed=0),
        SearchCurve("random", (CurvePoint(5, 1.0),), seed=3),
    ]
    for curve in reversed(curves):
        store.add_search_curve(comparison, curve)
    assert [stored.curve for stored in store.search_curves(comparison)] == curves
    shorter = replace(curves[2], points=(CurvePoint(7, 8.0),))
    store.add_search_curve(comparison, shorter)
    assert [stored.curve for stored in store.search_curves()][2] == shorter
    assert store.search_curves(99) == []
    with pytest.raises(StoreError, match="no comparison 99"):
        store.add_search_curve(99, curves[0])
    with pytest.raises(StoreError, match="best_iteration_ms is nan"):
        store.add_search_curve(comparison, SearchCurve("x", (CurvePoint(1, math.nan),)))


def test_reconfigurations_keep_each_phase(store: Store) -> None:
    old, new = store.add_plan(plan()), store.add_plan(plan(split=3))
    event = NewReconfiguration(
        "join",
        old,
        new,
        {"plan": 2.16, "release": 0.5, "transfer": 4.0},
        bytes_per_rank=(2**40, 0),
        repeat=2,
        run="run-1",
        host="host-1",
        origin="arachne-run elastic",
    )
    key = store.add_reconfiguration(event)
    failed = NewReconfiguration("lost worker", old, None, {}, status="failed", reason="no GPU left")
    store.add_reconfiguration(failed)
    found = store.reconfigurations()
    assert found[0].id == key
    assert [stored.reconfiguration for stored in found] == [event, failed]
    assert found[0].reconfiguration.total_ms == 6.66
    with pytest.raises(StoreError, match="no plan 99"):
        store.add_reconfiguration(replace(event, new_plan_id=99))
    with pytest.raises(StoreError, match=r"transfer is -4.0"):
        store.add_reconfiguration(replace(event, phases_ms={"transfer": -4.0}))


def test_policies_keep_their_training_record(store: Store) -> None:
    policy = NewPolicy(
        "run-2026-11",
        "default",
        ("llama-3-8b", "qwen3-32b"),
        {"best": 0.97, "seeds": [1, 2]},
        "ab" * 32,
        file="planner/policy/weights.safetensors",
        origin="arachne-plan train",
        host="host-1",
        seed=3,
        steps=2**35,
        training_s=1500.0,
    )
    key = store.add_policy(policy)
    store.add_policy(policy)  # trained twice with one command: two records
    found = store.policies()
    assert [stored.policy for stored in found] == [policy, policy]
    assert found[0].id == key
    with pytest.raises(StoreError, match="metrics has no JSON form"):
        store.add_policy(replace(policy, metrics={"best": math.nan}))
