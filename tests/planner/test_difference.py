from __future__ import annotations

from dataclasses import replace

import pytest

from planner.difference import plan_difference
from specs.layout import rank_placements, ranks_of
from specs.plan import Plan
from tests.runtime.plans import Pipe, make_plan
from tests.runtime.tiny import tiny_model


def _plan(shares: list[tuple[int, int]]) -> Plan:
    return make_plan(tiny_model("llama"), [Pipe(2, [(1, 2)], shares)])


def test_a_second_replica_gets_the_whole_state_of_the_model() -> None:
    one, two = _plan([(2, 2)]), _plan([(1, 2), (1, 2)])
    parameters = sum(held.box.elements for _, _, held in rank_placements(one, ranks_of(one)[0]))
    found = plan_difference(one, two)
    # fp32 AdamW: weight and two moments, 12 bytes; 1 GB/s is 1e6 bytes/ms.
    assert found["bytes_to_move"] == found["most_bytes_of_a_gpu"] == parameters * 12
    assert found["predicted_pause_s"] == pytest.approx(1.5 + parameters * 12 / 1e9)
    back = plan_difference(two, one)
    assert back["bytes_to_move"] == 0
    assert back["predicted_pause_s"] == 1.5


def test_plans_of_different_work_move_nothing_from_one_to_the_other() -> None:
    one = _plan([(2, 2)])
    other = replace(one, workload=replace(one.workload, seq_len=16))
    assert plan_difference(one, other)["bytes_to_move"] is None
