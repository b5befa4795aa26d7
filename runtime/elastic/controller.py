"""The controller of an elastic run: plans anew, decides, reshapes, recovers."""

from __future__ import annotations

import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from runtime.addresses import LOOPBACK
from runtime.checkpoint import newest_checkpoint, progress_of
from runtime.elastic.endpoint import Endpoint, Halt, Tick
from runtime.elastic.fleet import Fleet
from runtime.elastic.hearing import Hearing
from runtime.elastic.journal import Journal
from runtime.elastic.messages import NodeOffer
from runtime.elastic.reshaping import START_TIMEOUT_S, Trouble
from runtime.elastic.session import SessionFile, write_session
from runtime.elastic.stragglers import Straggler, StragglerWatch
from runtime.elastic.weighing import Verdict, weigh
from runtime.progress import Progress
from runtime.training import Options
from specs.cluster import Cluster
from specs.errors import ArachneError, RunError
from specs.plan import Plan
from specs.plan_file import plan_from_document, plan_to_document

ADOPT_S = 20.0  # for agents to find a controller that has come back
MAX_FAILURES = 8  # attempts in a row without one iteration trained

# The plan for a cluster as it is now, priced; raises ArachneError where there is none.
Replan = Callable[[Cluster, Plan], Plan]


@dataclass(frozen=True)
class Settings:
    """How an elastic run decides.

    min_gain: least share of an iteration that a new plan must save. straggler_factor: a rank that
    computes so many times slower than the others is dropped where that pays; 0: never. away_s: how
    long agents wait for another controller. session: where to write how this run is reached.
    address, port: of the control endpoint, and the address at which workers of this host listen.
    token: that of the endpoint; "" for a new one. elsewhere: nodes whose agents are started on
    other hosts. door: what the command keeps in the session.
    """

    session: Path
    min_gain: float = 0.02
    straggler_factor: float = 1.5
    away_s: float = 30.0
    address: str = LOOPBACK
    port: int = 0
    token: str = ""
    elsewhere: frozenset[str] = frozenset()
    door: Mapping[str, Any] | None = None


class Controller(Hearing):
    """Runs training of a model to its end, whatever joins, leaves or is lost on the way."""

    def __init__(
        self, plan: Plan, options: Options, replan: Replan, journal: Journal, settings: Settings
    ) -> None:
        fleet = Fleet(plan.cluster, settings.away_s)
        super().__init__(fleet, journal, options, plan, settings.straggler_factor)
        self.settings = settings
        self.replan = replan
        self.token = settings.token or secrets.token_urlsafe(32)
        self._planning: tuple[str, Straggler | None, float, Future[Plan]] | None = None
        self._status: dict[str, Any] = {}
        self._endpoint: Endpoint | None = None

    # -- the run ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Start everything on this host and train to the end."""
        try:
            self._listen(self.settings.address, self.settings.port)
            self._start_agents()
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

    def _start_agents(self) -> None:
        used = {place.node for _, _, _, place in self.plan.places()}
        for node in self.plan.cluster.nodes:
            if node.name not in self.settings.elsewhere:
                self._expected.add(node.name)
                self.start_agent(NodeOffer(name=node.name, gpu=node.gpu, gpus=node.gpus))
        waited = sorted(used & self.settings.elsewhere)
        self._expected |= set(waited)
        if waited:
            assert self._endpoint is not None
            self.journal.say(
                f"waiting for the agents of {', '.join(waited)}: on the host of each "
                f"arachne-run agent --join {self._endpoint.address}:{self._endpoint.port} "
                "--name NODE --token-file FILE"
            )

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
            self._listen(session.address, session.port)
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
        self.flush()

    def _finished(self) -> bool:
        return bool(self.members) and all(
            w.paused is not None and w.paused.finished for w in self.members
        )

    def _check_silence(self) -> None:
        silent_s = time.monotonic() - self.trained_at
        if silent_s > self.options.timeout_s and not self._finished():
            raise Trouble(f"no rank has trained for {silent_s:.0f} s")

    def _listen(self, address: str, port: int) -> None:
        self._endpoint = Endpoint(self.token, self.events.put, self.status, address, port)

    def _close(self) -> None:
        self.fleet.close()
        if self._endpoint is not None:
            self._endpoint.close()
            self.settings.session.unlink(missing_ok=True)

    def start_agent(self, offer: NodeOffer) -> None:
        """Start the agent of a node on this host."""
        assert self._endpoint is not None
        self.fleet.start_agent(offer, self._endpoint.url, self.token, self._endpoint.address)

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
            self.flush()
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
                self.flush()
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

    def show(self) -> None:
        """Have those who ask for the status see how things stand now."""
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
                    "address": link.registration.address,
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
