from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.simulate import (
    Action,
    StageTimes,
    closed_form_ms,
    excess_bound_ms,
    least_makespan_ms,
    one_f_one_b_order,
    simulate_1f1b,
)
from specs.errors import PlanError


def stages(forward, ratio=2.0):
    return [StageTimes(f, ratio * f) for f in forward]


@pytest.mark.parametrize(
    ("forward", "micro_batches", "simulated", "closed_form"),
    [
        ([1, 2, 1], 4, 28, 30),
        ([2, 1, 1], 4, 26, 30),
        ([1, 1, 2], 4, 30, 30),
        ([1, 1, 1, 1], 8, 33, 33),
        ([1], 5, 15, 15),
    ],
)
def test_worked_examples_of_the_design(forward, micro_batches, simulated, closed_form):
    assert simulate_1f1b(stages(forward), micro_batches).makespan_ms == simulated
    assert closed_form_ms(stages(forward), micro_batches) == closed_form


FORWARD = [1.7979658914728682, 1.9608355179704016, 0.6576776913227617]


def test_the_published_espresso_plan_takes_exactly_what_its_authors_print():
    comm = [0.98304, 0.98304, 2.4576]
    pipeline = [StageTimes(f + 0.8 * 2 * c, 3 * f) for f, c in zip(FORWARD, comm, strict=True)]
    assert simulate_1f1b(pipeline, 4).makespan_ms == pytest.approx(50.13908731211839, rel=1e-14)


def test_the_published_espresso_plan_without_transfers():
    # The printed figure comes from forwards rounded to four decimals: 4 f0 + 15 f1 + 4 f2.
    pipeline = [StageTimes(round(f, 4), 3 * round(f, 4)) for f in FORWARD]
    assert simulate_1f1b(pipeline, 4).makespan_ms == pytest.approx(39.2348, rel=1e-12)


def test_two_stages_and_two_micro_batches_event_by_event():
    events = simulate_1f1b([StageTimes(1, 2), StageTimes(3, 4)], 2).events
    found = [(e.stage, e.action.value[0], e.micro_batch, e.start_ms, e.end_ms) for e in events]
    assert sorted(found) == [
        (0, "b", 0, 8, 10),
        (0, "b", 1, 15, 17),
        (0, "f", 0, 0, 1),
        (0, "f", 1, 1, 2),
        (1, "b", 0, 4, 8),
        (1, "b", 1, 11, 15),
        (1, "f", 0, 1, 4),
        (1, "f", 1, 8, 11),
    ]


def test_the_order_of_a_stage_fills_the_stages_behind_it_first():
    forward, backward = Action.FORWARD, Action.BACKWARD
    assert one_f_one_b_order(1, 3, 3) == [
        (forward, 0), (forward, 1), (backward, 0), (forward, 2), (backward, 1), (backward, 2),
    ]  # fmt: skip


def test_the_closed_form_is_not_an_upper_bound_where_passes_are_out_of_proportion():
    pipeline = [StageTimes(0, 1), StageTimes(1, 0), StageTimes(0, 0)]
    assert simulate_1f1b(pipeline, 2).makespan_ms == 4
    assert closed_form_ms(pipeline, 2) == 3
    assert excess_bound_ms(pipeline, 2) == 1


def test_a_balanced_pipeline_has_no_excess():
    assert excess_bound_ms(stages([1, 1.5, 2.9, 1]), 16) == 0


@pytest.mark.parametrize(("depth", "micro_batches"), [(0, 1), (1, 0)])
def test_an_empty_pipeline_is_refused(depth, micro_batches):
    with pytest.raises(PlanError, match="a stage and a micro-batch"):
        simulate_1f1b([StageTimes(1, 1)] * depth, micro_batches)


def test_a_negative_time_is_refused():
    with pytest.raises(PlanError, match="at least 0"):
        StageTimes(-1, 1)


milliseconds = st.one_of(st.sampled_from([0.0, 1.0, 2.0]), st.floats(0.001, 10))
pipelines = st.lists(st.builds(StageTimes, milliseconds, milliseconds), min_size=1, max_size=7)
counts = st.integers(1, 12)
SLACK = 1e-9


@settings(max_examples=300, deadline=None)
@given(pipelines, counts)
def test_the_simulation_lies_between_its_bounds(pipeline, micro_batches):
    makespan = simulate_1f1b(pipeline, micro_batches).makespan_ms
    assert makespan >= least_makespan_ms(pipeline, micro_batches) - SLACK
    upper = closed_form_ms(pipeline, micro_batches) + excess_bound_ms(pipeline, micro_batches)
    assert makespan <= upper + SLACK


@settings(max_examples=300, deadline=None)
@given(st.lists(milliseconds, min_size=1, max_size=7), st.floats(0, 4), counts)
def test_the_closed_form_is_an_upper_bound_where_passes_are_in_proportion(
    forward, ratio, micro_batches
):
    pipeline = stages(forward, ratio)
    makespan = simulate_1f1b(pipeline, micro_batches).makespan_ms
    assert makespan <= closed_form_ms(pipeline, micro_batches) + SLACK


@settings(max_examples=200, deadline=None)
@given(st.lists(milliseconds, min_size=1, max_size=7), st.floats(0, 4), counts)
def test_the_closed_form_is_exact_where_the_last_stage_is_the_slowest(
    forward, ratio, micro_batches
):
    pipeline = stages([*forward, max(forward)], ratio)
    makespan = simulate_1f1b(pipeline, micro_batches).makespan_ms
    assert makespan == pytest.approx(closed_form_ms(pipeline, micro_batches), abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(milliseconds, milliseconds, st.integers(1, 7), counts)
def test_the_closed_form_is_exact_where_all_stages_are_equal(f, b, depth, micro_batches):
    pipeline = [StageTimes(f, b)] * depth
    makespan = simulate_1f1b(pipeline, micro_batches).makespan_ms
    assert makespan == pytest.approx(closed_form_ms(pipeline, micro_batches), abs=1e-9)


@settings(max_examples=150, deadline=None)
@given(pipelines, counts)
def test_no_pass_starts_before_its_input_and_no_stage_does_two_things_at_once(
    pipeline, micro_batches
):
    depth = len(pipeline)
    events = simulate_1f1b(pipeline, micro_batches).events
    assert len(events) == 2 * depth * micro_batches
    by_key = {(e.stage, e.action, e.micro_batch): e for e in events}
    assert len(by_key) == len(events)
    for (s, action, m), event in by_key.items():
        times = pipeline[s]
        length = times.forward_ms if action is Action.FORWARD else times.backward_ms
        assert event.end_ms == event.start_ms + length
        if action is Action.FORWARD and s > 0:
            assert event.start_ms >= by_key[s - 1, action, m].end_ms
        if action is Action.BACKWARD:
            needs = (s, Action.FORWARD, m) if s == depth - 1 else (s + 1, action, m)
            assert event.start_ms >= by_key[needs].end_ms
            assert event.start_ms >= by_key[s, Action.FORWARD, m].end_ms
    for s in range(depth):
        mine = sorted((e for e in events if e.stage == s), key=lambda e: (e.start_ms, e.end_ms))
        for before, after in pairwise(mine):
            assert before.end_ms <= after.start_ms
