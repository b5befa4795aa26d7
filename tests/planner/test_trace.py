import json
from itertools import pairwise

from planner.simulate import StageTimes, simulate_1f1b
from planner.trace import Once, Track, chrome_trace


def _document(depth: int = 2, micro_batches: int = 3) -> dict:
    timeline = simulate_1f1b([StageTimes(1.0, 2.0)] * depth, micro_batches)
    end = timeline.makespan_ms
    once = tuple(
        (Once("gradient sync", end, 4.0), Once("optimizer", end + 4.0, 1.0)) for _ in range(depth)
    )
    tracks = [
        Track(f"template 0, replica {r}", tuple(f"stage {s}" for s in range(depth)), timeline, once)
        for r in range(2)
    ]
    return json.loads(json.dumps(chrome_trace(tracks, {"plan": "0123"}), allow_nan=False))


def test_every_slice_has_what_the_trace_event_format_asks_for():
    document = _document()
    assert set(document) == {"traceEvents", "displayTimeUnit", "otherData"}
    for event in document["traceEvents"]:
        assert event["ph"] in ("X", "M")
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["ts"], (int, float))
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["ts"] >= 0
        else:
            assert event["args"]


def test_times_are_microseconds():
    first = next(e for e in _document()["traceEvents"] if e["name"] == "F0" and e["tid"] == 1)
    assert (first["ts"], first["dur"]) == (0, 1000)


def test_a_row_per_stage_of_every_replica_and_a_name_for_each():
    events = _document()["traceEvents"]
    slices = {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"}
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert slices == named == {(1, 1), (1, 2), (2, 1), (2, 2)}
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == [
        "template 0, replica 0",
        "template 0, replica 1",
    ]


def test_every_pass_of_every_micro_batch_is_there_and_slices_of_a_row_do_not_overlap():
    events = [e for e in _document(3, 5)["traceEvents"] if e["ph"] == "X" and e["pid"] == 1]
    for row in (1, 2, 3):
        mine = sorted((e for e in events if e["tid"] == row), key=lambda e: (e["ts"], e["dur"]))
        names = {e["name"] for e in mine}
        assert names == {f"{a}{m}" for a in "FB" for m in range(5)} | {"gradient sync", "optimizer"}
        for before, after in pairwise(mine):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-6
