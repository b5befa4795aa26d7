"""Who is there: agents that come, come back and are mistaken for others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runtime.elastic.endpoint import AgentLink
from runtime.elastic.fleet import Fleet
from runtime.elastic.messages import Registration
from specs.errors import HostError
from tests.runtime.elastic.live import cluster_of, pipeline


def _link(name: str, pid: int, machine: str = "here", gpus: int = 1) -> tuple[AgentLink, list[Any]]:
    said: list[Any] = []
    registration = Registration.model_validate(
        {
            "node": {"name": name, "gpus": gpus},
            "address": "127.0.0.1",
            "machine": machine,
            "pid": pid,
            "workers": [],
        }
    )
    return AgentLink(registration, lambda line: said.append(json.loads(line))), said


def test_an_agent_whose_connection_broke_is_the_same_and_keeps_its_workers() -> None:
    fleet = Fleet(cluster_of(1), 1.0)
    first, _ = _link("cpu-0", 7)
    assert fleet.came(first)
    fleet.ensure(pipeline(cluster_of(1)), {}, {})
    (worker,) = fleet.workers.values()
    second, said = _link("cpu-0", 7)
    assert not fleet.came(second)
    fleet.tell(worker, {"type": "stop"})
    assert said == [{"do": "tell", "worker": worker.id, "message": {"type": "stop"}}]
    # The end of the old connection is heard of later, and is no loss.
    assert fleet.left(first) == []
    assert list(fleet.workers.values()) == [worker]
    assert fleet.left(second) == [worker]


@pytest.mark.parametrize(("pid", "machine"), [(8, "here"), (7, "there")])
def test_another_agent_of_the_same_name_is_refused(pid: int, machine: str) -> None:
    fleet = Fleet(cluster_of(1), 1.0)
    fleet.came(_link("cpu-0", 7)[0])
    with pytest.raises(HostError, match="has an agent already"):
        fleet.came(_link("cpu-0", pid, machine)[0])


def test_cores_are_counted_on_each_machine_by_itself() -> None:
    fleet = Fleet(cluster_of(1), 1.0)
    heard = {}
    for number, machine in enumerate(["here", "there", "here"]):
        link, heard[f"cpu-{number}"] = _link(f"cpu-{number}", number + 1, machine)
        fleet.came(link)
    fleet.ensure(pipeline(cluster_of(3)), {}, {})
    assert {name: said[0]["core"] for name, said in heard.items()} == {
        "cpu-0": 0,
        "cpu-1": 0,
        "cpu-2": 1,
    }


def test_nodes_stand_in_the_order_of_the_cluster_however_their_agents_come() -> None:
    fleet = Fleet(cluster_of(2), 1.0)
    for pid, name in enumerate(["cpu-3", "cpu-1", "cpu-2", "cpu-0"], 1):
        fleet.came(_link(name, pid)[0])
    found = fleet.cluster(set())
    assert found is not None
    assert [node.name for node in found.nodes] == ["cpu-0", "cpu-1", "cpu-3", "cpu-2"]
