from __future__ import annotations

from itertools import pairwise

import pytest

from planner.simulate import StageTimes, simulate_1f1b
from planner.trace import Once, Track
from reports.timeline import bars_of, end_of, measured_bars, measured_figure, timeline_figure
from specs.measurement import StageTrack
from tests.reports.stores import cluster_of, straight_plan, trace_of


def track(micro_batches: int, stages: int = 2) -> Track:
    timeline = simulate_1f1b([StageTimes(1.0, 2.0)] * stages, micro_batches)
    once = tuple((Once("gradient sync", timeline.makespan_ms, 5.0),) for _ in range(stages))
    return Track("template 0", tuple(f"stage {s}" for s in range(stages)), timeline, once)


def test_every_pass_is_a_bar_and_bars_of_a_stage_do_not_overlap() -> None:
    bars, skipped = bars_of(track(4), "", 1000)
    assert skipped == 0
    assert len(bars) == 2 * 2 * 4 + 2
    for row in ("stage 0", "stage 1"):
        mine = sorted((b for b in bars if b.row == row), key=lambda b: b.start_ms)
        assert all(a.end_ms <= b.start_ms + 1e-9 for a, b in pairwise(mine))


def test_the_steady_middle_of_a_long_iteration_is_left_out_and_said() -> None:
    bars, skipped = bars_of(track(100), "", 40)
    # 200 passes a stage, of which 10 first and 10 last stay
    assert skipped == 2 * 180
    gaps = [bar for bar in bars if bar.kind == "left out"]
    assert [gap.label for gap in gaps] == ["180 passes", "180 passes"]
    assert len(bars) == 2 * (20 + 1 + 1)


def test_the_figure_ends_where_the_iteration_does() -> None:
    figure = timeline_figure([track(3)])
    ends = [row[4] for row in figure.table.rows]
    # (3 - 1) * 3 + 2 * 3 for the pipe, then 5 for the synchronisation
    assert max(float(end) for end in ends if end is not None) == pytest.approx(17.0)
    assert [trace["name"] for trace in figure.traces] == ["forward", "backward", "gradient sync"]


def test_a_measured_iteration_has_a_bar_for_every_action() -> None:
    plan = straight_plan(cluster_of(("h100", 1, 2)))
    trace = trace_of(plan, "run-7", 5)
    figure = measured_figure(trace, 20.0)
    assert figure.name == "measured"
    assert "Iteration 5 of run run-7" in figure.caption
    assert len(figure.table.rows) == sum(len(track.actions) for track in trace.tracks)
    assert [row[:3] for row in figure.table.rows if row[0] == "stage 1"][:3] == [
        ("stage 1", "receive or wait", "R0"),
        ("stage 1", "forward", "F0"),
        ("stage 1", "send", "S0"),
    ]
    assert {row[1] for row in figure.table.rows} == {trace["name"] for trace in figure.traces}


def test_simulated_and_measured_are_drawn_to_one_scale() -> None:
    plan = straight_plan(cluster_of(("h100", 1, 2)))
    simulated, trace = track(3), trace_of(plan)
    end = end_of([simulated], trace)
    assert end == pytest.approx(18.0)  # the second stage begins 2 ms late and takes 16
    assert end_of([simulated], None) == pytest.approx(17.0)
    ranges = [
        figure.layout["xaxis"]["range"]
        for figure in (timeline_figure([simulated], end), measured_figure(trace, end))
    ]
    assert ranges[0] == ranges[1] == [0, pytest.approx(18.18)]


def test_the_middle_of_a_long_measured_iteration_is_left_out() -> None:
    actions = tuple(("forward", m, float(m), m + 1.0) for m in range(100))
    bars, skipped = measured_bars(StageTrack(0, 0, actions), "stage 0", 40)
    assert skipped == 60
    assert len(bars) == 41
    assert (bars[20].kind, bars[20].start_ms, bars[20].end_ms) == ("left out", 20.0, 80.0)
