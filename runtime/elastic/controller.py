"""The controller of an elastic run: hears of nodes and workers, plans anew, decides, reshapes."""

from __future__ import annotations

import math
import os
import secrets
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from runtime.checkpoint import newest_checkpoint, progress_of
from runtime.elastic.endpoint import (
    AddNode,
    AgentCame,
    AgentLost,
    AgentSaid,
    Endpoint,
    Event,
    Halt,
    RemoveNode,
    Tick,
)
from runtime.elastic.fleet import Fleet, WorkerRecord
from runtime.elastic.journal import Journal, TrainedIteration
from runtime.elastic.messages import (
    Exited,
    Failed,
    Moved,
    NodeOffer,
    Paused,
    Ready,
    Saved,
    Started,
    StepDone,
)
from runtime.elastic.reshaping import START_TIMEOUT_S, Coordinator, Trouble, who
from runtime.elastic.session import SessionFile, write_session
from runtime.elastic.stragglers import Straggler, StragglerWatch
from runtime.elastic.weighing import Verdict, weigh
from runtime.progress import Progress
from runtime.training import Options
from specs.cluster import Cluster
from specs.errors import ArachneError, HostError, RunError
from specs.plan import Plan
from specs.plan_file import plan_from_document, plan_to_document

ADOPT_S = 20.0  # for agents to find a controller that has come back
MAX_FAILURES = 8  # attempts in a row without one iteration trained
PACE_WINDOW = 10  # iterations

# The plan for a cluster as it is now, priced; raises ArachneError where there is none.
Replan = Callable[[Cluster, Plan], Plan]


@dataclass(frozen=True)
class Settings:
    """How an elastic run decides.

    min_gain: least share of an iteration that a new plan must save. straggler_factor: a rank that
    computes so many times slower than the others is dropped where that pays; 0: never. away_s: how
    long agents wait for another controller. session: where to write how this run is reached.
    door: what the command keeps there.
    """

    session: Path
    min_gain: float = 0.02
    straggler_factor: float = 1.5
    away_s: float = 30.0
    address: str = "127.0.0.1"
    port: int = 0
    door: Mapping[str, Any] | None = None


class Controller(Coordinator):
    """Runs training of a model to its end, whatever joins, leaves or is lost on the way."""

    def __init__(
        self, plan: Plan, options: Options, replan: Replan, journal: Journal, settings: Settings
    ) -> None:
        super().__init__(Fleet(plan.cluster, settings.away_s), journal, options, plan)
        self.settings = settings
        self.replan = replan
        self.token = secrets.token_urlsafe(32)
        self.iteration = 0
        self.excluded: set[str] = set()
        self._leaving: set[str] = set()
        self._expected: set[str] = set()  # nodes that are there from the start
        self._failures = 0
        self._stopping = False
        self._own_errors: list[str] = []
        self._steps: dict[tuple[int, int], dict[int, StepDone]] = {}
        self._pace: deque[float] = deque(maxlen=PACE_WINDOW)
        self._watch = StragglerWatch(plan, settings.straggler_factor)
        self._slow: Straggler | None = None
        self._want: str | None = None  # why to plan anew
        self._planning: tuple[str, Straggler | None, float, Future[Plan]] | None = None
        self._status: dict[str, Any] = {}
        self._endpoint: Endpoint | None = None

    # -- the run ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Start everything on this host and train to the end."""
        try:
            self._listen(self.settings.port)
            for node in self.plan.cluster.nodes:
                offer = NodeOffer(name=node.name, gpu=node.gpu, gpus=node.gpus)
                self._expected.add(node.name)
                self._start_agent(offer)
            if not self.wait(lambda: self._expected <= set(self.fleet.links), START_TIMEOUT_S):
                missing = sorted(self._expected - set(self.fleet.links))
                raise RunError(f"the agents of {', '.join(missing)} have not registered")
            if self.options.resume and self.options.checkpoint is not None:
                self.checkpoint = newest_checkpoint(self.options.checkpoint)
                self.iteration = progress_of(self.checkpoint, self.plan.model).iteration
            self.end = self.iteration + self.options.warm_up + self.options.iterations
            ready, start_ms = self.staff(self.plan)
            if not ready:
                raise RunError(f"a worker has not started: {self._first_error()}")
            self.change(self.plan, "started", "", plan_ms=0.0, start_ms=start_ms)
            self._loop()
        except Trouble as trouble:
            self._recover(str(trouble), "worker lost")
            self._loop()
        finally:
            self._close()

    def take_over(self, session: SessionFile) -> None:
        """Go on with the run of a controller that is gone, and train to the end."""
        try:
            self.token = session.token
            self.plans = {k: plan_from_document(p, f"plan {k}") for k, p in session.plans.items()}
            self.generation, self.end, self.key = session.generation, session.end, session.plan
            self.excluded = set(session.excluded)
            kept = self.settings.door or {}
            self.checkpoint = Path(kept["checkpoint"]) if kept.get("checkpoint") else None
            self.base = Progress(*kept.get("base", (0, 0)))
            self._new_plan()
            self._expected = {node.name for node in session.nodes}
            self._listen(session.port)
            self.wait(lambda: self._expected <= set(self.fleet.links), ADOPT_S)
            if not self.fleet.links:
                raise RunError(
                    f"no agent has come back within {ADOPT_S:.0f} s: the run is lost, start it "
                    "anew with --resume"
                )
            for name in sorted(self._expected - set(self.fleet.links)):
                self.journal.say(f"node {name} has not come back")
            self._recover("the controller was restarted", "controller restarted", graceful=True)
            self._loop()
        finally:
            self._close()

    def halt(self) -> None:
        """End the run as Ctrl-C does; from any thread. KeyboardInterrupt comes out of run."""
        self.events.put(Halt())

    def _loop(self) -> None:
        while not self._finished():
            try:
                self.wait(lambda: True, 0.0)
                self.pump(0.5)
                self._check_silence()
                self._consider()
            except Trouble as trouble:
                self._recover(str(trouble), "worker lost")
        self._flush()

    def _finished(self) -> bool:
        return bool(self.members) and all(
            w.paused is not None and w.paused.finished for w in self.members
        )

    def _check_silence(self) -> None:
        silent_s = time.monotonic() - self.trained_at
        if silent_s > self.options.timeout_s and not self._finished():
            raise Trouble(f"no rank has trained for {silent_s:.0f} s")

    def _listen(self, port: int) -> None:
        address = self.settings.address
        self._endpoint = Endpoint(self.token, self.events.put, self.status, address, port)

    def _close(self) -> None:
        self.fleet.close()
        if self._endpoint is not None:
            self._endpoint.close()
            self.settings.session.unlink(missing_ok=True)

    def _start_agent(self, offer: NodeOffer) -> None:
        assert self._endpoint is not None
        self.fleet.start_agent(offer, self._endpoint.url, self.token)

    def save(self) -> None:
        """Write the session file."""
        assert self._endpoint is not None
        door = dict(self.settings.door or {}) | {
            "checkpoint": str(self.checkpoint) if self.checkpoint else "",
            "base": [self.base.iteration, self.base.samples],
        }
        write_session(
            self.settings.session,
            {
                "address": self._endpoint.address,
                "port": self._endpoint.port,
                "token": self.token,
                "pid": os.getpid(),
                "generation": self.generation,
                "end": self.end,
                "plan": self.key,
                "plans": {k: plan_to_document(p) for k, p in self.plans.items()},
                "nodes": [link.registration.node.model_dump() for link in self._links()],
                "excluded": sorted(self.excluded),
                "options": self.options.to_json(),
                "door": door,
            },
        )

    def _links(self) -> list[Any]:
        return [self.fleet.links[name] for name in self.fleet.order if name in self.fleet.links]

    # -- what comes in ---------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Take an event in: what it means for the run is decided by the loop."""
        if isinstance(event, AgentSaid):
            if isinstance(event.message, Exited):
                self._exited(event.message)
            else:
                self._worker_said(event.message.worker, event.message.message)
        elif isinstance(event, AgentCame):
            self._agent_came(event)
        elif isinstance(event, AgentLost):
            self._agent_lost(event)
        elif isinstance(event, AddNode):
            self._add(event)
        elif isinstance(event, RemoveNode):
            self._remove(event)
        elif isinstance(event, Halt):
            raise KeyboardInterrupt
        self._show()

    def _agent_came(self, event: AgentCame) -> None:
        name = event.link.registration.node.name
        try:
            self.fleet.came(event.link)
        except ArachneError as error:
            event.answer.set_exception(error)
            return
        event.answer.set_result("welcome")
        self.excluded.discard(name)
        self._leaving.discard(name)
        if name not in self._expected:
            self.journal.say(f"node {name} has joined")
            self._want = "node joined"
        self._expected.discard(name)

    def _agent_lost(self, event: AgentLost) -> None:
        name = event.link.registration.node.name
        members = {worker.id for worker in self.members}
        gone = self.fleet.left(event.link)
        if name in self._leaving:
            self._leaving.discard(name)
        elif event.link.registration.node.name not in self.fleet.links:
            self.journal.say(f"the agent of node {name} is lost: {event.why}")
        for worker in gone:
            if worker.id in members and not worker.quitting:
                self._dead(f"the agent of node {name} is lost, and its workers with it")

    def _dead(self, why: str) -> None:
        self.deaths += 1
        self.trouble = self.trouble or why

    def _add(self, event: AddNode) -> None:
        name = event.offer.name
        try:
            if name in self.fleet.links:
                raise HostError(f"node {name} is there already")
            self.fleet.node(event.offer)
            self._start_agent(event.offer)
        except ArachneError as error:
            event.answer.set_exception(error)
            return
        event.answer.set_result(f"node {name} is starting")

    def _remove(self, event: RemoveNode) -> None:
        if event.name not in self.fleet.links:
            known = ", ".join(self.fleet.links)
            event.answer.set_exception(HostError(f"no node {event.name}, there are: {known}"))
            return
        if len(set(self.fleet.links) - self._leaving - self.excluded - {event.name}) == 0:
            event.answer.set_exception(HostError(f"node {event.name} is the last one"))
            return
        self._leaving.add(event.name)
        self._want = "node left"
        self.journal.say(f"node {event.name} is to leave")
        event.answer.set_result(f"node {event.name} is leaving")

    def _exited(self, message: Exited) -> None:
        worker = self.fleet.workers.pop(message.worker, None)
        if worker is None or worker.quitting:
            return
        how = f"ended with exit code {message.code}"
        if message.code < 0:
            how = f"was killed by {signal.Signals(-message.code).name}"
        said = worker.error or message.said
        text = f"{who(worker)} {how}" + (f": {said}" if said else "")
        if worker in self.members:
            self._dead(text)
        else:
            self.journal.say(text)
        if worker.error:
            self._own_errors.append(worker.error)

    def _worker_said(self, name: str, said: Any) -> None:
        worker = self.fleet.workers.get(name)
        if worker is None:
            return
        if isinstance(said, StepDone):
            self._step(said)
        elif isinstance(said, Ready):
            worker.stands(said)
            worker.pid = said.pid
        elif isinstance(said, Paused):
            worker.stands(said)
            self._paused(worker, said)
        elif isinstance(said, Moved):
            worker.moved, worker.received_bytes = said.generation, said.received_bytes
        elif isinstance(said, Started):
            worker.starts(said)
        elif isinstance(said, Saved):
            self.checkpoint = Path(said.path)
            self.save()
        elif isinstance(said, Failed):
            worker.error = said.error

    def _paused(self, worker: WorkerRecord, said: Paused) -> None:
        current = worker in self.members and said.generation == self.generation
        if not current or self.gathered:
            return
        if said.error is not None:
            if not said.peer:
                self._own_errors.append(said.error)
            self.trouble = self.trouble or f"{who(worker)} lost the others: {said.error}"
        elif not said.finished and not self._stopping:
            self.trouble = self.trouble or f"{who(worker)} has paused"

    def _step(self, step: StepDone) -> None:
        self.trained_at = time.monotonic()
        self._failures = 0
        steps = self._steps.setdefault((step.generation, step.iteration), {})
        steps[step.rank] = step
        plan = self.plans.get(str(step.generation))
        if plan is not None and len(steps) == plan.gpus_used:
            self._trained(plan, self._steps.pop((step.generation, step.iteration)))

    def _flush(self) -> None:
        """Iterations that not all ranks have reported: those that did were lost, or stopped."""
        for (generation, _), steps in sorted(self._steps.items()):
            plan = self.plans.get(str(generation))
            if plan is not None:
                self._trained(plan, steps)
        self._steps.clear()

    def _trained(self, plan: Plan, steps: dict[int, StepDone]) -> None:
        first = next(iter(steps.values()))
        ms = max(step.elapsed_ms for step in steps.values())
        compute = {rank: step.compute_ms for rank, step in steps.items()}
        peaks = tuple(steps[rank].peak_bytes for rank in sorted(steps))
        self.iteration = first.iteration + 1
        self.journal.trained(
            plan, TrainedIteration(first.iteration, ms, first.loss, peaks, compute)
        )
        if plan is self.plan:
            self._pace.append(ms)
            if self.settings.straggler_factor:
                self._slow = self._watch.add(compute) or self._slow

    # -- decisions -------------------------------------------------------------------------------

    def _consider(self) -> None:
        """Plan where something has changed, and move where a plan is worth it."""
        if self._planning is not None:
            why, straggler, began, future = self._planning
            if future.done():
                self._planning = None
                self._decide(why, straggler, (time.perf_counter() - began) * 1e3, future)
            return
        slow, self._slow = self._slow, None
        event, self._want = self._want, None
        without = self.excluded | self._leaving
        if event is not None:
            slow = None
        elif slow is not None:
            event = "straggler"
            self.journal.say(
                f"node {slow.node} device {slow.gpu} (rank {slow.rank}) is a straggler: it "
                f"computes {slow.factor:.1f} times slower than its work explains"
            )
            self._watch = StragglerWatch(self.plan, math.inf)  # named once for each plan
            without = without | {slow.node}
        cluster = self.fleet.cluster(without) if event is not None else None
        if event is not None and cluster is not None:
            self._planning = (event, slow, time.perf_counter(), self._search(cluster))

    def _search(self, cluster: Cluster) -> Future[Plan]:
        future: Future[Plan] = Future()
        old = self.plan

        def search() -> None:
            try:
                found = self.replan(cluster, old)
                if found.workload != old.workload or found.model != old.model:
                    raise RunError("the new plan is of another model or workload")
                future.set_result(found)
            except BaseException as error:
                future.set_exception(error)

        future.add_done_callback(lambda _: self.events.put(Tick()))
        threading.Thread(target=search, daemon=True).start()
        return future

    def _decide(
        self, event: str, slow: Straggler | None, plan_ms: float, future: Future[Plan]
    ) -> None:
        try:
            found = future.result()
        except ArachneError as error:
            self.journal.say(f"{event}: no other plan: {error}")
            return
        if not self.fleet.has_devices(found):
            self._want = event  # a node is gone since
            return
        gone = {place.node for _, _, _, place in self.plan.places()} & self._leaving
        pace = median(self._pace) if self._pace else None
        left = max(0, self.end - self.iteration)
        if gone:
            verdict = Verdict(True, f"node {', '.join(sorted(gone))} leaves")
        else:
            verdict = weigh(
                self.plan,
                found,
                left,
                pace,
                self.pauses,
                self.settings.min_gain,
                slow.factor if slow else 1.0,
            )
        if not verdict.move:
            self.journal.say(f"{event}: the plan stays: {verdict.reason}")
            self.journal.declined(event, self.plan, found, verdict.reason)
        else:
            if slow is not None:
                self.excluded.add(slow.node)
                self.journal.say(f"node {slow.node} is dropped")
            self.journal.say(f"{event}: another plan is taken: {verdict.reason}")
            self._reshape(found, event, verdict.reason, plan_ms)
        for name in sorted(self._leaving):
            if all(place.node != name for _, _, _, place in self.plan.places()):
                self.fleet.quit(name)

    def _reshape(self, plan: Plan, event: str, reason: str, plan_ms: float) -> None:
        self._want = self._want or event  # should a member be lost meanwhile
        ready, _ = self.staff(plan)  # training goes on meanwhile
        if not ready:
            self.journal.say(f"{event}: not done, a worker has not started: {self._first_error()}")
            self.excluded |= {
                place.node
                for _, _, _, place in plan.places()
                if any(self.fleet.at((place.node, gpu)) is None for gpu in place.gpus)
            }
            self._want = None
            return
        self._stopping = True
        try:
            for worker in self.members:
                self.fleet.tell(worker, {"type": "stop"})
            if not self.wait(
                lambda: all(w.paused is not None for w in self.members), self.options.timeout_s
            ):
                raise Trouble(f"not all ranks stopped within {self.options.timeout_s:.0f} s")
            self._flush()
            if self._finished():
                return
            self.change(plan, event, reason, plan_ms=plan_ms)
        finally:
            self._stopping = False
        if self._want == event:
            self._want = None
        self._new_plan()

    def _new_plan(self) -> None:
        self.plan = self.plans[self.key]
        self._pace.clear()
        self._slow = None
        self._watch = StragglerWatch(self.plan, self.settings.straggler_factor)

    # -- when something is lost ------------------------------------------------------------------

    def _recover(self, cause: str, event: str, *, graceful: bool = False) -> None:
        """Go on with those that are left; raises RunError where that cannot be done."""
        while True:
            self.journal.say(cause)
            self._failures += 1
            if self._failures > MAX_FAILURES:
                raise RunError(f"{MAX_FAILURES} attempts to go on have failed, the last: {cause}")
            try:
                self.gather(graceful=graceful)
                self._flush()
                if self.deaths == 0 and self._own_errors:
                    raise RunError(f"the run ended: {self._own_errors[0]}")
                self._own_errors.clear()
                plan, plan_ms = self._plan_for_now()
                ready, start_ms = self.staff(plan)
                if not ready:
                    raise Trouble(f"a worker has not started: {self._first_error()}")
                name = event if plan.templates == self.plan.templates else "node lost"
                self.change(plan, name, cause, plan_ms=plan_ms, start_ms=start_ms)
                self._new_plan()
                return
            except Trouble as again:
                cause, graceful = str(again), False

    def _plan_for_now(self) -> tuple[Plan, float]:
        """The plan of before where its devices are still there, else a new one; ms it took."""
        used = {place.node for _, _, _, place in self.plan.places()}
        if self.fleet.has_devices(self.plan) and not used & self.excluded:
            return self.plan, 0.0
        began = time.perf_counter()
        cluster = self.fleet.cluster(self.excluded | self._leaving) or self.fleet.cluster(set())
        if cluster is None:
            raise RunError(f"no node is left{self._where_to_resume()}")
        future = self._search(cluster)
        self.wait(future.done, math.inf)
        try:
            return future.result(), (time.perf_counter() - began) * 1e3
        except ArachneError as error:
            raise RunError(
                f"no plan for the nodes that are left: {error}{self._where_to_resume()}"
            ) from None

    def _where_to_resume(self) -> str:
        if self.checkpoint is None:
            return ", and no checkpoint was written (--checkpoint DIR)"
        return f"; the last checkpoint is {self.checkpoint} (--resume)"

    def _first_error(self) -> str:
        return self._own_errors[0] if self._own_errors else "see above"

    # -- for people ------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """How things stand, for the endpoint; called from its threads."""
        return self._status

    def _show(self) -> None:
        used = {place.node for _, _, _, place in self.plan.places()}
        prediction = self.plan.prediction
        self._status = {
            "generation": self.generation,
            "iteration": self.iteration,
            "end": self.end,
            "iteration_ms": median(self._pace) if self._pace else None,
            "predicted_ms": prediction.iteration_ms if prediction else None,
            "checkpoint": str(self.checkpoint) if self.checkpoint else None,
            "nodes": [
                {
                    **link.registration.node.model_dump(),
                    "agent_pid": link.registration.pid,
                    "state": self._state_of(link.registration.node.name, used),
                }
                for link in self._links()
            ],
            "workers": [
                {"node": w.device[0], "gpu": w.device[1], "pid": w.pid, "rank": rank}
                for rank, w in enumerate(self.members)
            ],
        }

    def _state_of(self, name: str, used: set[str]) -> str:
        if name in self._leaving:
            return "leaving"
        if name in self.excluded:
            return "dropped"
        return "training" if name in used else "idle"
