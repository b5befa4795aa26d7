"""What is killed, when, and how training goes on: from memory where survivors hold all state."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from runtime.elastic.session import read_session
from runtime.process import is_running
from specs.cluster import Cluster
from specs.errors import RunError
from specs.plan import Place, Plan, Replica, Stage, Template
from specs.workload import DType, Workload
from tests.runtime.elastic.alone import compare
from tests.runtime.elastic.live import (
    BATCH,
    SEQ_LEN,
    Live,
    cluster_of,
    model,
    orphans,
    pipeline,
)


def replicas(cluster: Cluster, old: Plan | None = None) -> Plan:
    """Every node trains a whole copy of the model."""
    whole = model()
    count = len(cluster.nodes)
    shares = [BATCH * (n + 1) // count - BATCH * n // count for n in range(count)]
    stages = (Stage("cpu", 1, range(len(whole.layers))),)
    held = tuple(
        Replica(share, 1, (Place(node.name, (0,)),))
        for node, share in zip(cluster.nodes, shares, strict=True)
    )
    workload = Workload(BATCH, SEQ_LEN, DType.FP32)
    return Plan("test", whole, workload, cluster, (Template(1, stages, held),))


def test_a_killed_replica_is_replaced_and_gets_its_state_from_the_others_memory(
    tmp_path: Path,
) -> None:
    with Live(tmp_path, replicas(cluster_of(2)), replicas) as live:
        live.iterations(5)
        before = live.workers()
        os.kill(before["cpu-1"], signal.SIGKILL)
        live.changes(2)
        live.iterations(5)
        after = live.workers()
    assert after["cpu-0"] == before["cpu-0"]
    assert after["cpu-1"] != before["cpu-1"]
    change = live.notes.changes[1]
    assert (change.event, change.origin) == ("worker lost", "memory")
    assert change.received_bytes[0] == 0
    assert change.received_bytes[1] > 0
    assert any("was killed by SIGKILL" in said for said in live.notes.said)
    assert any("from memory" in said for said in live.notes.said)
    assert orphans() == []
    compare(live.notes.losses, tmp_path)


@pytest.mark.long
def test_a_killed_stage_that_nobody_else_holds_comes_from_the_last_checkpoint(
    tmp_path: Path,
) -> None:
    folder = str(tmp_path / "checkpoints")
    plan = pipeline(cluster_of(2))
    with Live(tmp_path, plan, checkpoint=folder, checkpoint_every=20) as live:
        live.until(lambda: live.controller.checkpoint is not None)
        live.iterations(3)
        os.kill(live.workers()["cpu-0"], signal.SIGKILL)
        live.changes(2)
        live.iterations(3)
    change = live.notes.changes[1]
    assert change.origin == "checkpoint"
    assert change.iteration % 20 == 0
    assert change.iteration > 0
    assert any(f"from the checkpoint {folder}" in said for said in live.notes.said)
    compare(live.notes.losses, tmp_path)


@pytest.mark.long
def test_without_a_checkpoint_it_begins_anew_and_says_so(tmp_path: Path) -> None:
    with Live(tmp_path, pipeline(cluster_of(2))) as live:
        live.iterations(3)
        os.kill(live.workers()["cpu-1"], signal.SIGKILL)
        live.changes(2)
        live.iterations(3)
    assert live.notes.changes[1].origin == "seed"
    assert any("from the beginning" in said for said in live.notes.said)
    compare(live.notes.losses, tmp_path)


def test_a_lost_agent_takes_its_workers_along_and_the_others_go_on_without_the_node(
    tmp_path: Path,
) -> None:
    with Live(tmp_path, replicas(cluster_of(3)), replicas) as live:
        live.iterations(5)
        before = live.workers()
        os.kill(live.agents()["cpu-1"], signal.SIGKILL)
        live.changes(2)
        live.iterations(5)
        after = live.workers()
    assert after == {name: pid for name, pid in before.items() if name != "cpu-1"}
    assert not is_running(before["cpu-1"])
    change = live.notes.changes[1]
    assert (change.event, change.origin) == ("node lost", "memory")
    assert any("the agent of node cpu-1 is lost" in said for said in live.notes.said)
    assert orphans() == []
    compare(live.notes.losses, tmp_path)


@pytest.mark.long
def test_a_stopped_worker_is_killed_after_the_timeout_and_the_rest_goes_on(tmp_path: Path) -> None:
    with Live(tmp_path, replicas(cluster_of(2)), replicas, timeout_s=3.0) as live:
        live.iterations(5)
        stopped = live.workers()["cpu-0"]
        os.kill(stopped, signal.SIGSTOP)
        began = time.monotonic()
        live.changes(2)
        took = time.monotonic() - began
        live.iterations(5)
    assert not is_running(stopped)
    assert live.notes.changes[1].origin == "memory"
    assert took < 60
    assert any("does not answer and is killed" in said for said in live.notes.said)
    compare(live.notes.losses, tmp_path)


def test_an_error_of_a_worker_itself_ends_the_run_with_its_words(tmp_path: Path) -> None:
    with (
        Live(tmp_path, replicas(cluster_of(1)), replicas, data=str(tmp_path / "none.npy")) as live,
        pytest.raises(RunError, match=r"none\.npy: cannot be read as tokens"),
    ):
        live.join()
    assert orphans() == []


def _start(folder: Path, how: str) -> subprocess.Popen[bytes]:
    code = (
        "from pathlib import Path\n"
        "from tests.runtime.elastic.test_faults import control\n"
        f"control(Path({str(folder)!r}), {how!r})\n"
    )
    return subprocess.Popen([sys.executable, "-c", code])


def control(folder: Path, how: str) -> None:
    """A controller in a process of its own, which can be killed."""
    import json

    # On a busy host the second controller takes as long to load as agents wait by default.
    settings = {"away_s": 120.0}
    live = Live(folder, replicas(cluster_of(2)), replicas, settings=settings, iterations=300)
    if how == "anew":
        live.controller.run()
    else:
        live.controller.take_over(read_session(live.session))
    notes = live.notes
    found: dict[str, Any] = {
        "losses": notes.losses,
        "said": notes.said,
        "changes": [(c.event, c.origin, c.iteration) for c in notes.changes],
    }
    (folder / "notes.json").write_text(json.dumps(found))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_controller_that_is_killed_is_replaced_and_no_worker_is_started_anew(
    tmp_path: Path,
) -> None:
    import json

    first = _start(tmp_path, "anew")
    session = tmp_path / "session.json"
    probe = Live(tmp_path, replicas(cluster_of(2)), replicas)
    try:
        _wait(lambda: session.exists() and _iteration(probe) > 5)
        before = probe.workers()
        first.kill()
        first.wait()
        time.sleep(1.0)
        assert all(is_running(pid) for pid in before.values())
        second = _start(tmp_path, "take over")
        _wait(lambda: _workers(probe) == before)
        assert second.wait(timeout=600) == 0
    finally:
        first.kill()
    found = json.loads((tmp_path / "notes.json").read_text())
    event, origin, iteration = found["changes"][0]
    assert (event, origin) == ("controller restarted", "memory")
    assert iteration > 5
    assert max(map(int, found["losses"])) == 299
    assert not any(is_running(pid) for pid in before.values())
    assert not session.exists()
    compare({int(k): loss for k, loss in found["losses"].items()}, tmp_path)


@pytest.mark.long
def test_agents_end_with_their_workers_when_no_controller_comes_back(tmp_path: Path) -> None:
    live = Live(tmp_path, replicas(cluster_of(1)), replicas, settings={"away_s": 1.0})
    code = (
        "from pathlib import Path\n"
        "from tests.runtime.elastic.test_faults import cluster_of, replicas, Live\n"
        f"live = Live(Path({str(tmp_path)!r}), replicas(cluster_of(1)), replicas, "
        "settings={'away_s': 1.0})\n"
        "live.controller.run()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    _wait(lambda: live.session.exists() and _iteration(live) > 0)
    pids = [*live.workers().values(), *live.agents().values()]
    process.kill()
    process.wait()
    _wait(lambda: not any(is_running(pid) for pid in pids))


def _wait(so: Any) -> None:
    deadline = time.monotonic() + 240
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _iteration(live: Live) -> int:
    try:
        return int(live.ask("GET", "/status")[1].get("iteration", 0))
    except OSError:
        return 0


def _workers(live: Live) -> dict[str, int]:
    try:
        return live.workers()
    except (OSError, KeyError, RunError):
        return {}
