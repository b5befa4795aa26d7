from __future__ import annotations

from pathlib import Path

import pytest

from runtime.elastic.endpoint import RemoveNode
from runtime.process import is_running
from tests.runtime.elastic.alone import compare
from tests.runtime.elastic.live import Live, cluster_of, orphans, pipeline


def test_two_three_four_two_processes_train_as_one_that_is_never_moved(tmp_path: Path) -> None:
    with Live(tmp_path, pipeline(cluster_of(2), 50_000.0)) as live:
        live.changes(1)
        live.iterations(3)
        first = live.workers()
        for number in (2, 3):
            offer = {"name": f"cpu-{number}", "gpu": "cpu", "gpus": 1}
            assert live.ask("POST", "/nodes", offer)[0] == 202
            live.changes(number)
            live.iterations(3)
        full = live.workers()
        for number, name in enumerate(("cpu-1", "cpu-3")):
            assert live.ask("DELETE", f"/nodes/{name}")[0] == 202
            live.changes(4 + number)
        live.iterations(3)
        last = live.workers()
    assert sorted(full) == ["cpu-0", "cpu-1", "cpu-2", "cpu-3"]
    assert sorted(last) == ["cpu-0", "cpu-2"]
    # Nobody who stayed was started anew.
    assert {full[name] for name in first} == set(first.values())
    assert last == {name: full[name] for name in last}
    assert not any(is_running(pid) for pid in full.values())
    assert orphans() == []
    changes = live.notes.changes
    assert [change.origin for change in changes] == ["seed"] + ["memory"] * 4
    assert all(change.phases_ms["transfer"] > 0 for change in changes[1:])
    # When cpu-1 leaves, each of the three others holds all that it is to have; then the half of
    # cpu-3 is nowhere but there.
    assert [sum(change.received_bytes) > 0 for change in changes[1:]] == [True, True, False, True]
    assert {2, 3, 4} == set(live.notes.devices)
    assert sorted(live.notes.losses) == list(range(live.notes.done))
    compare(live.notes.losses, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_two_three_four_two_processes_four_times_over(tmp_path: Path) -> None:
    with Live(tmp_path, pipeline(cluster_of(2), 50_000.0)) as live:
        live.changes(1)
        live.iterations(2)
        stay = live.workers()
        for _ in range(4):
            for number in (2, 3):
                count = len(live.notes.changes)
                live.ask("POST", "/nodes", {"name": f"cpu-{number}"})
                live.changes(count + 1)
                live.iterations(2)
            # Both at once: the next plan is without the two.
            for number in (2, 3):
                live.controller.events.put(RemoveNode(f"cpu-{number}"))
            live.until(lambda: live.notes.changes[-1].new.gpus_used == 2)
            live.iterations(2)
            live.until(lambda: sorted(live.agents()) == ["cpu-0", "cpu-1"])
            assert live.workers() == stay
    steps = [(c.old.gpus_used, c.new.gpus_used) for c in live.notes.changes if c.old is not None]
    assert steps.count((2, 3)) == steps.count((3, 4)) == 4
    # The two may be taken out one after the other where planning has begun between the words.
    assert steps.count((4, 2)) + steps.count((3, 2)) == 4
    assert {c.origin for c in live.notes.changes[1:]} == {"memory"}
    assert orphans() == []
    assert sorted(live.notes.losses) == list(range(live.notes.done))
    compare(live.notes.losses, tmp_path)
