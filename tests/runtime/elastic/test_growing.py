"""The job that grows: processes join one by one, and one of them is slow."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from runtime.elastic.stragglers import Straggler
from specs.cluster import Cluster
from specs.plan import Plan
from tests.runtime.elastic.alone import compare
from tests.runtime.elastic.live import Live, cluster_of, orphans, pipeline


def no_faster(cluster: Cluster, old: Plan) -> Plan:
    """More nodes save one part in a thousand."""
    return pipeline(cluster, 100.0 - 0.1 * len(cluster.nodes))


def test_a_join_that_does_not_pay_is_not_taken_and_said(tmp_path: Path) -> None:
    with Live(tmp_path, pipeline(cluster_of(1), 99.9), no_faster) as live:
        live.iterations(3)
        before = live.workers()
        assert live.ask("POST", "/nodes", {"name": "cpu-1"}) == (
            202,
            {"said": "node cpu-1 is starting"},
        )
        live.until(lambda: bool(live.notes.refused))
        live.iterations(3)
        assert live.workers() == before
        nodes = {n["name"]: n["state"] for n in live.ask("GET", "/status")[1]["nodes"]}
        assert nodes == {"cpu-0": "training", "cpu-1": "idle"}
        again = live.ask("POST", "/nodes", {"name": "cpu-1"})
        assert again == (409, {"error": "node cpu-1 is there already"})
        assert live.ask("DELETE", "/nodes/cpu-1")[0] == 202
        live.until(lambda: "cpu-1" not in live.agents())
        last = live.ask("DELETE", "/nodes/cpu-0")
        assert last == (409, {"error": "node cpu-0 is the last one"})
    assert live.notes.refused[0].startswith("node joined: +0.1% an iteration saves")
    assert len(live.notes.changes) == 1
    assert orphans() == []


class Brake:
    """Slows a process of this test down: it runs for a quarter of the time."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._brake, daemon=True)
        self._thread.start()

    def _brake(self) -> None:
        try:
            while not self._released.is_set():
                os.kill(self._pid, signal.SIGSTOP)
                time.sleep(0.03)
                os.kill(self._pid, signal.SIGCONT)
                time.sleep(0.01)
        except ProcessLookupError:
            pass

    def release(self) -> None:
        self._released.set()
        self._thread.join()


def growing(cluster: Cluster, old: Plan) -> Plan:
    """Each node more takes a tenth off an iteration."""
    return pipeline(cluster, 100.0 * 0.9 ** len(cluster.nodes))


@pytest.mark.long
def test_a_straggler_among_those_that_joined_is_named_and_dropped(tmp_path: Path) -> None:
    plan = pipeline(cluster_of(1), 90.0)
    settings = {"straggler_factor": 2.0}
    with Live(tmp_path, plan, growing, settings=settings, iterations=2000) as live:
        live.iterations(3)
        for number in (1, 2):
            live.ask("POST", "/nodes", {"name": f"cpu-{number}"})
            live.changes(1 + number)
            live.iterations(3)
        slow = live.workers()["cpu-1"]
        brake = Brake(slow)
        try:
            live.changes(4)
        finally:
            brake.release()
        live.iterations(5)
        workers = live.workers()
        nodes = {n["name"]: n["state"] for n in live.ask("GET", "/status")[1]["nodes"]}
    assert sorted(workers) == ["cpu-0", "cpu-2"]
    assert nodes["cpu-1"] == "dropped"
    said = " ".join(live.notes.said)
    assert "node cpu-1 device 0" in said
    assert "is a straggler" in said
    assert "node cpu-1 is dropped" in said
    assert [c.event for c in live.notes.changes] == [
        "started",
        "node joined",
        "node joined",
        "straggler",
    ]
    # The trace of the throughput has every size that the job had, in order.
    sizes = list(dict.fromkeys(live.notes.devices))
    assert sizes == [1, 2, 3]
    assert live.notes.devices[-1] == 2
    compare(live.notes.losses, tmp_path)


def test_a_straggler_that_does_not_pay_to_drop_stays_and_is_named(tmp_path: Path) -> None:
    plan = pipeline(cluster_of(2), 81.0)
    with Live(tmp_path, plan, growing) as live:
        live.iterations(3)
        live.controller._slow = Straggler(1, "cpu-1", 0, 1.05)
        live.until(lambda: bool(live.notes.refused))
        workers = live.workers()
    assert sorted(workers) == ["cpu-0", "cpu-1"]
    assert any("node cpu-1 device 0 (rank 1) is a straggler" in said for said in live.notes.said)
