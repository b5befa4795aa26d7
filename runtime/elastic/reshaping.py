"""How an elastic run goes from one set of processes to the next without losing its state."""

from __future__ import annotations

import queue
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from runtime.checkpoint import progress_of
from runtime.elastic.endpoint import Event
from runtime.elastic.fleet import Fleet, WorkerRecord
from runtime.elastic.handover import Seat, transfer_of
from runtime.elastic.journal import Journal, Reshaped
from runtime.elastic.weighing import Pauses
from runtime.progress import Progress
from runtime.training import Options
from specs.layout import ranks_of
from specs.plan import Plan
from specs.plan_file import plan_to_document

START_TIMEOUT_S = 300.0  # importing torch and transformers with many processes on few cores
KILL_S = 15.0  # from the order to kill a worker to the word that it is gone
PHASES = ("release", "rebuild", "transfer", "build")
_PLANS_KEPT = 4


class Trouble(Exception):
    """A member of the generation is lost or has failed; what can be done depends on the others."""


class Coordinator(ABC):
    """Takes workers from plan to plan. What is told to whom, and in which order, is here.

    A generation is one attempt to have a set of workers train one plan. First every worker that
    has state pauses; then all that have or are to have state move it (`move`), each keeping its
    old one; only when all have everything are they told to `go`. So at any moment either the old
    state or the new one stands complete among those that live.
    """

    def __init__(self, fleet: Fleet, journal: Journal, options: Options, plan: Plan) -> None:
        self.fleet = fleet
        self.journal = journal
        self.options = options
        self.plan = plan
        self.key = ""
        self.plans: dict[str, Plan] = {}
        self.generation = 0
        self.end = 0
        self.base = Progress(0, 0)  # an iteration and its first sample; others follow from it
        self.checkpoint: Path | None = None
        self.members: list[WorkerRecord] = []
        self.trouble: str | None = None
        self.gathered = False  # all have paused, and a second word of it is no news
        self.deaths = 0  # since the last change that went well
        self.trained_at = time.monotonic()  # when a step was last heard of
        self.pauses = Pauses()
        self.events: queue.Queue[Event] = queue.Queue()

    @abstractmethod
    def apply(self, event: Event) -> None:
        """Take an event in."""

    @abstractmethod
    def save(self) -> None:
        """Write down what another controller would have to know."""

    def pump(self, seconds: float) -> None:
        """Take in what has come, waiting up to so long for something."""
        try:
            self.apply(self.events.get(timeout=max(0.0, seconds)))
            while True:
                self.apply(self.events.get_nowait())
        except queue.Empty:
            pass

    def wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Take events in until something is so, or for so long; whether it is.

        Raises Trouble where a member is lost meanwhile.
        """
        deadline = time.monotonic() + seconds
        while True:
            if self.trouble is not None:
                raise Trouble(self.trouble)
            if done():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self.pump(min(left, 1.0))

    def staff(self, plan: Plan) -> tuple[bool, float]:
        """Have a worker ready on every device of a plan: whether all are, and ms that it took."""
        began = time.perf_counter()
        document = plan_to_document(plan) | {"prediction": None}
        self.fleet.ensure(plan, self.options.to_json(), document)
        devices = [(place.node, place.gpu) for place in ranks_of(plan)]

        def settled() -> bool:
            found = [self.fleet.at(device) for device in devices]
            return any(w is None for w in found) or all(w is not None and w.ready for w in found)

        self.wait(settled, START_TIMEOUT_S)
        ready = all(
            worker is not None and worker.ready
            for worker in (self.fleet.at(device) for device in devices)
        )
        return ready, (time.perf_counter() - began) * 1e3

    def gather(self, *, graceful: bool) -> None:
        """Have every worker pause and say where it stands; those that do not answer are killed.

        graceful: at the next border between iterations; else their connections are cut.
        """
        # Who is lost now is missed below; it is no reason to begin anew.
        self.members, self.trouble, self.gathered = [], None, True
        asked = [w for w in self.fleet.workers.values() if w.ready and not w.quitting]
        for worker in asked:
            worker.answered = False
            if not graceful:
                self._abort(worker)
            self.fleet.tell(worker, {"type": "stop"})

        def silent() -> list[WorkerRecord]:
            return [w for w in asked if w.id in self.fleet.workers and not w.answered]

        if graceful and not self.wait(lambda: not silent(), self.options.timeout_s):
            for worker in silent():
                self._abort(worker)
        self.wait(lambda: not silent(), self.options.timeout_s)
        for worker in silent():
            self.journal.say(f"{who(worker)} does not answer and is killed")
            self.fleet.kill(worker)
        self.wait(lambda: not silent(), KILL_S)
        for worker in silent():
            self.fleet.workers.pop(worker.id)
        self.members = [w for w in asked if w.id in self.fleet.workers]

    def _abort(self, worker: WorkerRecord) -> None:
        self.fleet.tell(worker, {"type": "abort", "generation": self.generation})

    def change(
        self, plan: Plan, event: str, reason: str, *, plan_ms: float, start_ms: float = 0.0
    ) -> None:
        """From where all workers have paused to where the workers of a plan train.

        Goes on from memory if the workers hold all state together, else from the last checkpoint,
        else from the seed. Raises Trouble where a member is lost meanwhile.
        """
        places = ranks_of(plan)
        targets = [self.fleet.at((place.node, place.gpu)) for place in places]
        ranks = [worker for worker in targets if worker is not None and worker.ready]
        if len(ranks) < len(places):
            raise Trouble("a worker that was to train is gone")
        old = self.plan if self.key else None
        found = self._sources(plan, ranks)
        self.generation += 1
        self.gathered = False
        key = str(self.generation)
        self.plans[key] = plan
        meeting = {
            "generation": self.generation,
            "address": ranks[0].link.registration.address,
            "port": ranks[0].port,
            "plan": key,
        }
        origin, checkpoint = "memory", ""
        if found is not None:
            iteration, holders = found
            self._move(meeting, ranks, holders, iteration)
        elif self.checkpoint is not None:
            self.base = progress_of(self.checkpoint, plan.model)
            origin, checkpoint, iteration = "checkpoint", str(self.checkpoint), self.base.iteration
        else:
            origin, iteration = "seed", 0
            self.base = Progress(0, 0)
        self._say_origin(old, origin, iteration)
        self.plan, self.key, self.members = plan, key, ranks
        self._forget_plans()
        self.save()
        samples = (iteration - self.base.iteration) * plan.workload.global_batch
        go = meeting | {
            "type": "go",
            "plans": {key: plan_to_document(plan) | {"prediction": None}},
            "origin": origin,
            "checkpoint": checkpoint,
            "iteration": iteration,
            "samples": self.base.samples + samples,
            "end": self.end,
        }
        for rank, worker in enumerate(ranks):
            worker.paused = None
            self.fleet.tell(worker, go | {"rank": rank})
        self._await(ranks, lambda w: w.started == self.generation, "has not begun to train")
        pause_ms = (time.monotonic() - self.trained_at) * 1e3
        self.trained_at = time.monotonic()
        self.deaths = 0
        for worker in list(self.fleet.workers.values()):
            if worker not in ranks and not worker.quitting:
                self.fleet.dismiss(worker)  # only now: until here its state might be needed
        phases = {name: max(worker.times_ms.get(name, 0.0) for worker in ranks) for name in PHASES}
        received = tuple(w.received_bytes if w.moved == self.generation else 0 for w in ranks)
        if old is not None:
            self.pauses.add(phases, received)
        self.journal.reshaped(
            Reshaped(
                event=event,
                old=old,
                new=plan,
                phases_ms={"plan": plan_ms, "start": start_ms, **phases},
                pause_ms=pause_ms if old is not None else 0.0,
                received_bytes=received,
                origin=origin,
                iteration=iteration,
                reason=reason,
            )
        )

    def _move(
        self,
        meeting: dict[str, Any],
        ranks: Sequence[WorkerRecord],
        holders: Sequence[WorkerRecord],
        iteration: int,
    ) -> None:
        union = [*ranks, *(worker for worker in holders if worker not in ranks)]
        self.members = union
        self.save()
        seats = []
        used = {str(meeting["plan"])}
        for index, worker in enumerate(union):
            holds = worker.holds if worker in holders else None
            if holds is not None:
                used.add(holds.plan)
            seats.append(
                {
                    "source": [holds.plan, holds.rank] if holds is not None else None,
                    "target": index if index < len(ranks) else None,
                }
            )
        documents = {
            key: plan_to_document(self.plans[key]) | {"prediction": None} for key in sorted(used)
        }
        move = meeting | {
            "type": "move",
            "plans": documents,
            "members": seats,
            "iteration": iteration,
        }
        for index, worker in enumerate(union):
            self.fleet.tell(worker, move | {"index": index})
        self._await(union, lambda w: w.moved == self.generation, "has not got its state")

    def _await(
        self, workers: Sequence[WorkerRecord], done: Callable[[WorkerRecord], bool], what: str
    ) -> None:
        if not self.wait(lambda: all(map(done, workers)), self.options.timeout_s):
            late = next(worker for worker in workers if not done(worker))
            raise Trouble(f"{who(late)} {what} within {self.options.timeout_s:.0f} s")

    def _sources(
        self, plan: Plan, ranks: Sequence[WorkerRecord]
    ) -> tuple[int, list[WorkerRecord]] | None:
        """The furthest iteration of which the workers hold the whole state, and who holds it.

        A worker whose gradients of an iteration are agreed on can take the step that another has
        taken already.
        """
        holding = [
            (worker, worker.holds)
            for worker in self.fleet.workers.values()
            if worker.holds is not None and worker.holds.plan in self.plans and not worker.quitting
        ]
        for iteration in sorted({holds.iteration for _, holds in holding}, reverse=True):
            holders = [
                (worker, holds)
                for worker, holds in holding
                if iteration == holds.iteration + (holds.agreed and iteration > holds.iteration)
            ]
            source = {w.id: (self.plans[h.plan], h.rank) for w, h in holders}
            seats = [Seat(source.get(w.id), (plan, rank)) for rank, w in enumerate(ranks)]
            seats += [Seat(source[w.id], None) for w, _ in holders if w not in ranks]
            if not transfer_of(seats).missing:
                return iteration, [worker for worker, _ in holders]
        return None

    def _say_origin(self, old: Plan | None, origin: str, iteration: int) -> None:
        if old is None and origin == "seed":
            return
        said = {
            "memory": "from memory",
            "checkpoint": f"from the checkpoint {self.checkpoint}",
            "seed": "from the beginning: nobody holds all state, and there is no checkpoint",
        }
        self.journal.say(f"training goes on at iteration {iteration} {said[origin]}")

    def _forget_plans(self) -> None:
        held = {w.holds.plan for w in self.fleet.workers.values() if w.holds is not None}
        newest = sorted(self.plans, key=int)[-_PLANS_KEPT:]
        self.plans = {k: p for k, p in self.plans.items() if k in held or k in newest}


def who(worker: WorkerRecord) -> str:
    """A worker in words."""
    return f"the worker of node {worker.device[0]} device {worker.device[1]} (pid {worker.pid})"
