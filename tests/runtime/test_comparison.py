from __future__ import annotations

from dataclasses import replace

import pytest

from runtime.comparison import compare
from runtime.records import Iteration, RankStep, run_trace, stage_times
from runtime.trace import chrome_trace
from specs.plan import Plan
from specs.prediction import Prediction, StageMemory, StagePrediction
from tests.runtime.plans import Pipe, make_plan
from tests.runtime.tiny import tiny_model

MEMORY = StageMemory(1, 1, 2, 3, 1, 10, 100)


def _plan() -> Plan:
    plan = make_plan(tiny_model("llama"), [Pipe(2, [(1, 1), (1, 1)], [(3, 1)])])
    stage = StagePrediction(5.0, 1.0, 0.5, 0.1, 2.0, 3.0, MEMORY)
    prediction = Prediction(90.0, (80.0,), (3,), ((stage, stage),), (4,), ("measured",))
    return plan.with_prediction(prediction)


def _iteration(number: int, ms: float, reference: tuple[float, float]) -> Iteration:
    def step(rank: int) -> RankStep:
        actions = []
        for m, (forward, backward) in enumerate(((2.0, 4.0), (2.2, 4.4), (1.0, 2.0))):
            actions += [("forward", m, 0.0, forward), ("backward", m, 10.0, 10.0 + backward)]
        actions += [("send", 0, 20.0, 20.5), ("receive", 0, 21.0, 22.0)]
        actions += [("sync", -1, 30.0, 31.5), ("update", -1, 31.5, 34.0)]
        return RankStep(
            iteration=number,
            warm_up=number == 0,
            rank=rank,
            elapsed_ms=ms - rank,
            loss=3.0 if rank else 0.0,
            peak_bytes=100 + number + rank,
            started_s=50.0 + number,
            reference_ms=reference,
            actions=tuple(actions),
            comm_ms=(0.3 + rank, 0.5 + rank, 9.0),
        )

    return Iteration(number, number == 0, (step(0), step(1)))


def _run() -> list[Iteration]:
    return [
        _iteration(0, 500.0, (7.0, 7.0)),
        _iteration(1, 100.0, (7.0, 7.2)),
        _iteration(2, 102.0, (7.2, 7.4)),
        _iteration(3, 150.0, (7.4, 14.0)),
    ]


def test_the_measured_time_is_the_median_after_the_warm_up() -> None:
    result = compare(_plan(), _run(), None)
    # 100, 102, 150: median 102, deviations 2, 0, 48.
    assert (result.measured.ms, result.measured.mad_ms, result.measured.count) == (102, 2, 3)
    assert result.error == pytest.approx(90 / 102 - 1)
    assert result.drift == pytest.approx(1.0)
    assert result.slowdown is None


def test_iterations_on_a_slower_machine_do_not_count_as_steady() -> None:
    result = compare(_plan(), _run(), None)
    assert result.steady is not None
    assert (result.steady.ms, result.steady.count) == (101, 2)
    assert result.steady_error == pytest.approx(90 / 101 - 1)
    slow = compare(_plan(), _run(), profile_reference_ms=5.0)
    assert slow.steady is None
    # Of 7.0 7.2 7.2 7.4 7.4 14.0 the median is 7.3.
    assert slow.slowdown == pytest.approx(7.3 / 5 - 1)
    assert slow.scaled_ms == pytest.approx(90 * 7.3 / 5)
    assert slow.scaled_error == pytest.approx(90 * 7.3 / 5 / 102 - 1)


def test_a_short_last_micro_batch_is_left_out_of_the_stage_times() -> None:
    first = stage_times(_plan(), _run()[1:])[0]
    assert first.forward_ms == pytest.approx(2.1)
    assert first.backward_ms == pytest.approx(4.2)
    assert first.sync_ms == pytest.approx(1.5)
    assert first.update_ms == pytest.approx(2.5)
    assert (first.send_ms, first.receive_ms) == (pytest.approx(0.5), pytest.approx(1.0))
    assert first.comm_ms == pytest.approx(0.4)


def test_collectives_that_nobody_timed_are_not_zero() -> None:
    run = [
        replace(i, steps=tuple(replace(step, comm_ms=()) for step in i.steps)) for i in _run()[1:]
    ]
    assert [times.comm_ms for times in stage_times(_plan(), run)] == [None, None]


def test_stages_stand_beside_their_prediction() -> None:
    row = compare(_plan(), _run(), None).stages[1]
    assert row.predicted_ms == 6.0
    assert row.error == pytest.approx(6 / 6.3 - 1)
    assert row.peak_bytes == 104


def test_without_a_prediction_there_is_no_error() -> None:
    result = compare(replace(_plan(), prediction=None), _run(), None)
    document = result.to_json()
    assert document["error"] is None
    assert document["stages"][0]["predicted_compute_ms"] is None


def test_a_record_survives_its_way_as_json() -> None:
    step = _run()[2].steps[1]
    assert RankStep.from_json(step.to_json()) == step


def test_a_trace_has_a_row_per_rank_and_a_slice_per_action() -> None:
    document = chrome_trace(_plan(), _run())
    slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == 4 * 2 * 10
    second = next(e for e in slices if e["args"]["iteration"] == 1 and e["name"] == "sync")
    # One second after the first iteration, plus 30 ms; 1.5 ms long.
    assert second["ts"] == pytest.approx(1_030_000)
    assert second["dur"] == pytest.approx(1_500)
    assert chrome_trace(_plan(), []) == {"traceEvents": []}


def test_the_trace_is_of_the_iteration_nearest_the_median() -> None:
    """100, 102 and 150 ms count; rank 1 began 2 ms after rank 0."""
    run = [
        replace(i, steps=(i.steps[0], replace(i.steps[1], started_s=i.steps[1].started_s + 0.002)))
        for i in _run()
    ]
    trace = run_trace(_plan(), "run-1", run)
    assert trace is not None
    assert (trace.run, trace.iteration, trace.iteration_ms) == ("run-1", 2, 102.0)
    assert [(track.template, track.stage) for track in trace.tracks] == [(0, 0), (0, 1)]
    first, second = trace.tracks
    assert first.actions[0] == ("forward", 0, 0.0, 2.0)
    assert second.actions[0][2:] == pytest.approx((2.0, 4.0), abs=1e-3)
    assert [action[0] for action in first.actions[-2:]] == ["sync", "update"]


def test_a_run_of_warm_ups_has_no_trace() -> None:
    assert run_trace(_plan(), "run-1", _run()[:1]) is None


def test_of_several_replicas_the_first_is_traced() -> None:
    pipes = [Pipe(2, [(1, 2)], [(1, 2), (1, 2)]), Pipe(2, [(2, 2)], [(1, 2)])]
    plan = make_plan(tiny_model("llama"), pipes)
    step = _iteration(1, 100.0, (7.0, 7.0)).steps[0]
    iteration = Iteration(1, False, tuple(replace(step, rank=rank) for rank in range(4)))
    trace = run_trace(plan, "run-1", [iteration])
    assert trace is not None
    assert [(track.template, track.stage) for track in trace.tracks] == [(0, 0), (1, 0)]
