"""An elastic run inside a test: the real controller in a thread, real agents and workers."""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from runtime.elastic.controller import Controller, Replan, Settings
from runtime.elastic.journal import Reshaped, TrainedIteration
from runtime.elastic.session import read_session
from runtime.process import is_running
from runtime.training import Options
from specs.cluster import Cluster, Node
from specs.model import Model
from specs.plan import Place, Plan, Replica, Stage, Template
from specs.prediction import Prediction
from specs.topology import Topology
from specs.workload import DType, Workload
from tests.runtime.tiny import tiny_model

BATCH = 8
SEQ_LEN = 48  # an iteration takes tens of ms
LEARNING_RATE = 1e-3  # AdamW makes much of little: at larger steps rounding shows after hundreds
DEADLINE_S = 150.0


def model() -> Model:
    return tiny_model("llama", num_hidden_layers=4)


def cluster_of(count: int) -> Cluster:
    """Nodes cpu-0, cpu-1 ... of one device each."""
    return Cluster("test", tuple(node_of(n) for n in range(count)))


def node_of(number: int) -> Node:
    return Node(f"cpu-{number}", "cpu", 1, Topology.HOST, 1.0, 10.0)


def pipeline(cluster: Cluster, iteration_ms: float | None = None) -> Plan:
    """Up to four nodes as one pipeline of stages of one device each, four as two pipelines."""
    whole = model()
    nodes = [node.name for node in cluster.nodes][:4]
    rows = [nodes[:2], nodes[2:]] if len(nodes) == 4 else [nodes]
    templates = []
    for row in rows:
        # Blocks as even as can be; the embedding is with the first, the head with the last.
        borders = [0, *(1 + whole.blocks * (s + 1) // len(row) for s in range(len(row) - 1))]
        borders.append(len(whole.layers))
        stages = tuple(Stage("cpu", 1, range(a, b)) for a, b in pairwise(borders))
        share = BATCH // len(rows)
        places = tuple(Place(name, (0,)) for name in row)
        templates.append(Template(2, stages, (Replica(share // 2, 2, places),)))
    plan = Plan("test", whole, Workload(BATCH, SEQ_LEN, DType.FP32), cluster, tuple(templates))
    return plan if iteration_ms is None else plan.with_prediction(_prediction(plan, iteration_ms))


def _prediction(plan: Plan, iteration_ms: float) -> Prediction:
    from specs.prediction import StageMemory, StagePrediction

    memory = StageMemory(1, 1, 1, 1, 1, 1, 100)
    stages = tuple(
        tuple(StagePrediction(float(len(s.layers)), 0, 0, 0, 0, 0, memory) for s in t.stages)
        for t in plan.templates
    )
    pipes = tuple(iteration_ms for _ in plan.templates)
    return Prediction(iteration_ms, pipes, tuple(2 for _ in pipes), stages, (), ())


def always_faster(cluster: Cluster, old: Plan) -> Plan:
    """Every plan on more nodes is predicted to be that much faster: each is moved to."""
    return pipeline(cluster, 100_000.0 / len(cluster.nodes))


@dataclass
class Notes:
    """A journal that remembers."""

    losses: dict[int, float] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    changes: list[Reshaped] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    devices: list[int] = field(default_factory=list)
    done: int = 0

    def say(self, text: str) -> None:
        self.said.append(text)

    def trained(self, plan: Plan, iteration: TrainedIteration) -> None:
        self.losses[iteration.number] = iteration.loss
        self.devices.append(plan.gpus_used)
        self.done = iteration.number + 1

    def reshaped(self, change: Reshaped) -> None:
        self.changes.append(change)

    def declined(self, event: str, old: Plan, new: Plan, reason: str) -> None:
        self.refused.append(f"{event}: {reason}")


class Live:
    """A run in a thread; leaves no process behind, which `leave` makes sure of."""

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        replan: Replan = always_faster,
        *,
        settings: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.notes = Notes()
        self.session = folder / "session.json"
        chosen = {"iterations": 100_000, "warm_up": 0, "seed": 3, "learning_rate": LEARNING_RATE}
        chosen |= {"timeout_s": 30.0} | options
        self.options = Options(**chosen)
        base = Settings(self.session, straggler_factor=0.0)
        self.settings = replace(base, **(settings or {}))
        self.controller = Controller(plan, self.options, replan, self.notes, self.settings)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.controller.run()
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Live:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def finish(self) -> None:
        """End now, whatever it does."""
        self.controller.halt()
        self._thread.join(60)
        assert not self._thread.is_alive(), self.notes.said

    def join(self) -> None:
        """Wait until training is at its end; raises what the run ended with."""
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), self.notes.said
        if self.error is not None:
            raise self.error

    def until(self, so: Callable[[], bool]) -> None:
        """Wait until something is so, while the run goes on."""
        deadline = time.monotonic() + DEADLINE_S
        while not so():
            if not self._thread.is_alive():
                raise AssertionError(f"the run ended: {self.error!r} {self.notes.said}")
            assert time.monotonic() < deadline, self.notes.said
            time.sleep(0.02)

    def iterations(self, more: int) -> None:
        """Wait until so many more iterations are done."""
        goal = self.notes.done + more
        self.until(lambda: self.notes.done >= goal)

    def changes(self, count: int) -> None:
        """Wait until the plan has changed so many times in all."""
        self.until(lambda: len(self.notes.changes) >= count)

    def ask(self, method: str, path: str, body: Any = None, token: str | None = None) -> Any:
        """A request to the control endpoint: (status, document)."""
        session = read_session(self.session)
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body)
        request = urllib.request.Request(
            session.url + path,
            data=data.encode() if isinstance(data, str) else data,
            headers={"Authorization": f"Bearer {session.token if token is None else token}"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=40) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def workers(self) -> dict[str, int]:
        """Process ids of the workers that train, by node."""
        return {w["node"]: w["pid"] for w in self.ask("GET", "/status")[1]["workers"]}

    def agents(self) -> dict[str, int]:
        """Process ids of the agents, by node."""
        return {n["name"]: n["agent_pid"] for n in self.ask("GET", "/status")[1]["nodes"]}


def orphans() -> list[int]:
    """Workers and agents of this test process's runs that are still there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                environment = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            elastic = any(word.startswith(b"runtime.elastic.") for word in words)
            if elastic and f"ARACHNE_TEST_RUN={os.getpid()}".encode() in environment:
                found.append(int(entry.name))
    return [pid for pid in found if is_running(pid)]


os.environ["ARACHNE_TEST_RUN"] = str(os.getpid())  # how orphans() knows its own
