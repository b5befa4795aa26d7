from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from db.store import open_store
from runtime.cli import main
from specs.plan_file import plan_to_document
from tests.runtime.elastic.live import cluster_of, model, orphans, pipeline

RUN = [sys.executable, "-c", "from runtime.cli import main; main()", "elastic"]


def _start(folder: Path, plan: Path, *more: str) -> subprocess.Popen[str]:
    words = ["start", str(plan), "--store", str(folder / "a.db"), "--json", *more]
    words += ["--session", str(folder / "session.json"), "--timeout-s", "60"]
    return subprocess.Popen(
        [*RUN, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _ask(folder: Path, *words: str) -> Any:
    return CliRunner().invoke(main, ["elastic", *words, "--session", str(folder / "session.json")])


def _until(folder: Path, so: Any) -> dict[str, Any]:
    """Wait until the status is as wanted."""
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline:
        done = _ask(folder, "status", "--json")
        if done.exit_code == 0 and done.stdout.strip() != "{}":
            status: dict[str, Any] = json.loads(done.stdout)
            if so(status):
                return status
        time.sleep(0.1)
    raise AssertionError(f"not within 150 s: {done.output}")


def test_a_run_is_started_asked_and_ends_with_its_document(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(plan_to_document(pipeline(cluster_of(1)))))
    process = _start(tmp_path, plan, "--iterations", "600", "--warm-up", "2")
    _until(tmp_path, lambda s: s["iteration"] > 1)
    mode = (tmp_path / "session.json").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    shown = _ask(tmp_path, "status")
    assert "of 602" in shown.stdout
    assert "training" in shown.stdout
    second = _start(tmp_path, plan)
    assert second.wait(timeout=60) == 1
    assert second.stderr is not None
    assert "its run goes on" in second.stderr.read()
    refused = _ask(tmp_path, "remove", "cpu-7")
    assert (refused.exit_code, refused.stderr) == (
        1,
        "Error: no node cpu-7, there are: cpu-0\n",
    )
    taken = _ask(tmp_path, "take-over")
    assert taken.exit_code == 1
    assert "its controller still runs" in taken.stderr
    out, said = process.communicate(timeout=150)
    assert process.returncode == 0, said
    document = json.loads(out)
    assert [row["iteration"] for row in document["iterations"]] == list(range(602))
    assert [row["warm_up"] for row in document["iterations"][:3]] == [True, True, False]
    with open_store(tmp_path / "a.db") as store:
        rows = [stored.measurement for stored in store.measurements()]
    assert [row.loss for row in rows] == [row["loss"] for row in document["iterations"]]
    assert {row.run for row in rows} == {document["run"]}
    for row in rows:
        (stage,) = row.stages
        assert 0 < stage.forward_ms < row.iteration_ms
        assert 0 < stage.backward_ms < row.iteration_ms
        assert 0 < stage.update_ms < row.iteration_ms
        assert stage.comm_ms == 0
        assert (len(row.peak_bytes), row.peak_bytes[0] > 0) == (1, True)
    assert not (tmp_path / "session.json").exists()
    gone = _ask(tmp_path, "status")
    assert gone.exit_code == 1
    assert "arachne-run elastic start PLAN" in gone.stderr
    assert orphans() == []


@pytest.mark.long
def test_profile_plan_grow_and_shrink_with_the_real_planner(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(dict(model().config)))
    cluster = tmp_path / "one.yaml"
    cluster.write_text(
        "name: home\ninter_node: {bandwidth_gb_per_s: 1}\nnodes:\n  - {gpu: cpu, gpus: 1}\n"
    )
    environment = os.environ | {"ARACHNE_STORE": str(tmp_path / "a.db")}
    asked = ["--model", str(config), "--seq-len", "48", "--dtype", "fp32"]
    for door, words in (
        ("profiler", ["run", "--gpu", "cpu", *asked, "--tp", "1", "--micro-batch", "1,2"]),
        ("planner", ["plan", *asked, "--global-batch", "16", "--cluster", str(cluster)]),
    ):
        words += ["--allow-busy"] if door == "profiler" else ["-o", str(tmp_path / "plan.json")]
        code = f"from {door}.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code, *words], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    process = _start(tmp_path, tmp_path / "plan.json", "--iterations", "3000", "--min-gain", "0")
    _until(tmp_path, lambda s: s["iteration"] > 1)
    assert _ask(tmp_path, "add", "cpu-1").stdout == "node cpu-1 is starting\n"
    _until(tmp_path, lambda s: len(s["workers"]) == 2)
    assert _ask(tmp_path, "remove", "cpu-0").stdout == "node cpu-0 is leaving\n"
    _until(tmp_path, lambda s: [w["node"] for w in s["workers"]] == ["cpu-1"])
    process.send_signal(2)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert orphans() == []
    with open_store(tmp_path / "a.db") as store:
        changes = [stored.reconfiguration for stored in store.reconfigurations()]
        plans = {stored.id: stored.plan for stored in store.plans()}
    assert [change.event for change in changes] == [
        "node joined, 1 to 2 devices",
        "node left, 2 to 1 devices",
    ]
    for change in changes:
        assert set(change.phases_ms) == {"plan", "release", "rebuild", "transfer", "build"}
        assert change.reason.endswith("state from memory")
        assert change.new_plan_id is not None
        assert plans[change.new_plan_id].prediction is not None
    assert sum(changes[0].bytes_per_rank) > 0
