from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from db.store import open_store
from runtime.cli import main
from specs.plan import Plan
from specs.plan_file import plan_to_document
from tests.runtime.plans import Pipe, make_plan
from tests.runtime.tiny import tiny_model


@pytest.fixture
def plan() -> Plan:
    return make_plan(tiny_model("llama"), [Pipe(2, [(1, 1), (1, 1)], [(2, 1)])])


@pytest.fixture
def files(plan: Plan, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "plan.json").write_text(json.dumps(plan_to_document(plan)))
    (tmp_path / "times.csv").write_text("iteration,iteration_ms\n0,250\n1,200\n")
    return {
        "plan": str(tmp_path / "plan.json"),
        "times": str(tmp_path / "times.csv"),
        "store": str(tmp_path / "store.db"),
    }


def test_a_run_is_written_beside_the_plan_and_reported(files: dict[str, str]) -> None:
    trace = files["store"] + ".trace.json"
    words = [files["plan"], "--iterations", "3", "--warm-up", "1", "--store", files["store"]]
    done = CliRunner().invoke(main, [*words, "--json", "--trace", trace])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["predicted_ms"] is None
    assert [row["warm_up"] for row in document["iterations"]] == [True, False, False, False]
    assert document["counted"] == 3
    assert len(document["stages"]) == 2
    # Nothing is profiled in this store: that is said, and is no reason not to run.
    assert "the plan has no prediction" in done.stderr
    assert json.loads(Path(trace).read_text())["traceEvents"]
    with open_store(files["store"]) as store:
        rows = [row.measurement for row in store.measurements(document["plan_id"])]
        (stored,) = store.traces(document["plan_id"])
    assert [row.iteration for row in rows] == [0, 1, 2, 3]
    assert [row.iteration_ms for row in rows] == [
        row["iteration_ms"] for row in document["iterations"]
    ]
    assert {row.run for row in rows} == {document["run"]}
    assert all(row.drift == document["drift"] for row in rows)
    assert all(len(row.peak_bytes) == 2 for row in rows)
    # What each stage took, iteration by iteration, and one iteration action by action.
    assert [[(s.template, s.stage) for s in row.stages] for row in rows] == [[(0, 0), (0, 1)]] * 4
    for row in rows:
        for stage in row.stages:
            assert 0 < stage.forward_ms < row.iteration_ms
            assert 0 < stage.backward_ms < row.iteration_ms
            once = stage.receive_ms + stage.send_ms + stage.sync_ms + stage.update_ms
            assert stage.compute_ms + once <= row.iteration_ms
    assert stored.trace.run == document["run"]
    assert stored.trace.iteration_ms == sorted(row.iteration_ms for row in rows[1:])[1]
    kinds = [Counter(kind for kind, *_ in track.actions) for track in stored.trace.tracks]
    assert [(k["forward"], k["backward"], k["receive"], k["sync"]) for k in kinds] == [
        (2, 2, 2, 1)
    ] * 2


def test_times_of_another_launcher_are_logged_once_however_often(files: dict[str, str]) -> None:
    words = ["log", files["plan"], files["times"], "--store", files["store"]]
    for _ in range(2):
        done = CliRunner().invoke(main, [*words, "--host", "lab", "--origin", "mine", "--json"])
        assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["iterations"] == 2
    assert document["mean_ms"] == 225
    with open_store(files["store"]) as store:
        assert [row.measurement.iteration_ms for row in store.measurements()] == [250, 200]


def test_times_come_from_stdin_too(files: dict[str, str]) -> None:
    words = ["log", files["plan"], "-", "--store", files["store"], "--run", "r7"]
    done = CliRunner().invoke(
        main,
        [*words, "--host", "lab", "--origin", "mine"],
        input='[{"iteration": 0, "iteration_ms": 12.5, "samples": 4}]',
    )
    assert done.exit_code == 0, done.output
    assert "1 iterations logged, mean 12.5 ms, no prediction" in done.stdout
    with open_store(files["store"]) as store:
        assert [row.measurement.run for row in store.measurements()] == ["r7"]


def test_a_mistake_is_one_line_and_exit_1(files: dict[str, str]) -> None:
    done = CliRunner().invoke(main, ["no-such-plan.json", "--store", files["store"]])
    assert done.exit_code == 1
    assert done.stderr == "Error: no-such-plan.json: no such file\n"
    done = CliRunner().invoke(main, ["log", files["plan"], files["times"]])
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1
    assert "add --host TEXT" in done.stderr


def test_a_wrong_option_is_exit_2(files: dict[str, str]) -> None:
    assert CliRunner().invoke(main, [files["plan"], "--iterations", "0"]).exit_code == 2
    assert CliRunner().invoke(main, ["--no-such-option"]).exit_code == 2
    # Said before any process starts.
    missing = CliRunner().invoke(main, [files["plan"], "--data", "no-such-tokens.npy"])
    assert missing.exit_code == 2
    assert "no-such-tokens.npy" in missing.stderr
