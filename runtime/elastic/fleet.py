"""The nodes that have an agent, and their workers: what each last said of itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from runtime.addresses import this_machine
from runtime.elastic.endpoint import AgentLink
from runtime.elastic.messages import Holds, NodeOffer, Paused, Ready, Started, WorkerFact
from runtime.process import is_running
from specs.cluster import Cluster, Node
from specs.errors import HostError
from specs.gpu import gpu_type
from specs.layout import ranks_of
from specs.plan import Plan
from specs.topology import Topology

Device = tuple[str, int]  # node, number of the device there

AGENT_QUIT_S = 15.0


@dataclass
class WorkerRecord:
    """A worker process, from the order to start it to its end."""

    id: str
    device: Device
    link: AgentLink
    pid: int = 0
    ready: bool = False
    answered: bool = False  # has said where it stands since it was last asked
    quitting: bool = False
    port: int = 0
    holds: Holds | None = None
    generation: int = 0
    moved: int = -1  # the last generation for which all its state has come
    started: int = -1  # the last generation in which it began to train
    received_bytes: int = 0
    times_ms: dict[str, float] = field(default_factory=dict)
    paused: Paused | None = None
    error: str = ""

    def stands(self, said: Ready | Paused) -> None:
        """Take down what it says of itself."""
        self.ready = self.answered = True
        self.port, self.generation = said.port, said.generation
        # A paused worker's word on its state is true until it is told something else.
        self.holds = said.holds
        self.paused = said if isinstance(said, Paused) else None

    def starts(self, said: Started) -> None:
        """Training begins."""
        self.started, self.times_ms = said.generation, said.times_ms
        self.paused = None


class Fleet:
    """All agents and workers; starts agents on this host, and ends what it started.

    cluster: where nodes that are in it get their links from; others get those of its first node.
    """

    def __init__(self, cluster: Cluster, away_s: float) -> None:
        self._cluster = cluster
        self._away_s = away_s
        self.links: dict[str, AgentLink] = {}
        self.workers: dict[str, WorkerRecord] = {}
        # Of nodes: those of the cluster as it has them, others by first appearance. By the order in
        # which agents happen to come, a plan for the same nodes would swap them and move state.
        self.order = [node.name for node in cluster.nodes]
        self._machine = this_machine()
        self._agents: list[subprocess.Popen[bytes]] = []
        self._count = 0

    def node(self, offer: NodeOffer) -> Node:
        """A node as plans know it. Raises HostError for an unknown GPU type or other devices."""
        known = self._cluster.node_by_name.get(offer.name)
        if known is not None and (known.gpu, known.gpus) == (offer.gpu, offer.gpus):
            return known
        first = self._cluster.nodes[0]
        gpu = gpu_type(offer.gpu)
        topology = Topology.HOST if gpu.is_cpu else gpu.default_topology
        return Node(
            offer.name,
            offer.gpu,
            offer.gpus,
            topology,
            first.bandwidth_gb_per_s,
            first.latency_us,
        )

    def cluster(self, without: set[str]) -> Cluster | None:
        """All nodes with an agent, less some; None where none is left."""
        nodes = tuple(
            self.node(self.links[name].registration.node)
            for name in self.order
            if name in self.links and name not in without
        )
        return Cluster(self._cluster.name, nodes) if nodes else None

    def start_agent(self, offer: NodeOffer, url: str, token: str, address: str) -> None:
        """Start an agent for a node on this host, whose workers listen at an address of it."""
        process = subprocess.Popen(
            [sys.executable, "-m", "runtime.elastic.agent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # it outlives this process: another may take over
        )
        self._agents.append(process)
        setup = {
            "url": url,
            "token": token,  # over a pipe: command lines are public
            "node": offer.model_dump(),
            "address": address,
            "away_s": self._away_s,
        }
        assert process.stdin is not None
        with contextlib.suppress(OSError), process.stdin:
            process.stdin.write(json.dumps(setup).encode() + b"\n")

    def came(self, link: AgentLink) -> bool:
        """An agent has registered; whether it is new, and not one whose connection broke.

        Raises HostError where its node has another one already.
        """
        offer = link.registration.node
        gpu_type(offer.gpu)
        before = self.links.get(offer.name)
        if before is not None:
            if _identity(before) != _identity(link):
                raise HostError(f"node {offer.name} has an agent already: give another --name")
            # Its end noticed first. What its workers said meanwhile it has kept for us.
            self.links[offer.name] = link
            for worker in self.workers.values():
                if worker.link is before:
                    worker.link = link
            return False
        self.links[offer.name] = link
        if offer.name not in self.order:
            self.order.append(offer.name)
        for fact in link.registration.workers:
            self._adopt(fact, link)
        return True

    def _adopt(self, fact: WorkerFact, link: AgentLink) -> None:
        device = (link.registration.node.name, fact.gpu)
        self.workers[fact.id] = WorkerRecord(fact.id, device, link, fact.pid, ready=True)

    def left(self, link: AgentLink) -> list[WorkerRecord]:
        """An agent is gone; its workers, which are gone too."""
        name = link.registration.node.name
        if self.links.get(name) is not link:
            return []
        del self.links[name]
        gone = [worker for worker in self.workers.values() if worker.link is link]
        for worker in gone:
            del self.workers[worker.id]
        return gone

    def at(self, device: Device) -> WorkerRecord | None:
        """The worker of a device that is to stay."""
        for worker in self.workers.values():
            if worker.device == device and not worker.quitting:
                return worker
        return None

    def has_devices(self, plan: Plan) -> bool:
        """Whether every device of a plan has an agent."""
        return all(
            place.node in self.links and place.gpu < self.links[place.node].registration.node.gpus
            for place in ranks_of(plan)
        )

    def ensure(self, plan: Plan, options: dict[str, Any], document: dict[str, Any]) -> list[str]:
        """Have a worker on every device of a plan; ids of those that were started now."""
        started = []
        for place in ranks_of(plan):
            device = (place.node, place.gpu)
            if self.at(device) is not None:
                continue
            self._count += 1
            link = self.links[place.node]
            worker = WorkerRecord(
                f"{place.node}/{place.gpu}#{os.getpid()}.{self._count}", device, link
            )
            self.workers[worker.id] = worker
            link.send(
                {
                    "do": "start",
                    "worker": worker.id,
                    "gpu": place.gpu,
                    "core": self._core(device),
                    "setup": {"options": options, "plan": document},
                }
            )
            started.append(worker.id)
        return started

    def _core(self, device: Device) -> int:
        """Number of a device among all devices of its host, which share the host's cores."""
        before = [self.links.get(name) for name in self.order[: self.order.index(device[0])]]
        machine = self.links[device[0]].registration.machine
        return device[1] + sum(
            link.registration.node.gpus
            for link in before
            if link is not None and link.registration.machine == machine
        )

    def tell(self, worker: WorkerRecord, message: dict[str, Any]) -> None:
        """Give a worker a message."""
        worker.link.send({"do": "tell", "worker": worker.id, "message": message})

    def kill(self, worker: WorkerRecord) -> None:
        """End a worker that does not answer."""
        worker.link.send({"do": "kill", "worker": worker.id})

    def dismiss(self, worker: WorkerRecord) -> None:
        """Have a worker end that no plan needs."""
        worker.quitting = True
        self.tell(worker, {"type": "quit"})

    def quit(self, name: str) -> None:
        """Have an agent end, and with it its workers."""
        if name in self.links:
            self.links[name].send({"do": "quit"})

    def close(self) -> None:
        """End every agent, and wait until they are gone; those that do not go are killed."""
        pids = {
            link.registration.pid
            for link in self.links.values()
            if link.registration.machine == self._machine
        }
        for link in self.links.values():
            link.send({"do": "quit"})
        deadline = time.monotonic() + AGENT_QUIT_S
        for process in self._agents:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
            if process.poll() is None:
                process.kill()  # the kernel ends its workers
                process.wait()
            pids.discard(process.pid)
        while pids and time.monotonic() < deadline:
            pids = {pid for pid in pids if is_running(pid)}
            time.sleep(0.05)
        for pid in pids:  # agents that a controller before this one has started
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _identity(link: AgentLink) -> tuple[str, int]:
    """Equal for two connections of one agent process."""
    return link.registration.machine, link.registration.pid
