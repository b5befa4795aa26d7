"""What the controller of an elastic run hears: of nodes, of workers, of people who ask."""

from __future__ import annotations

import signal
import time
from abc import abstractmethod
from collections import deque
from pathlib import Path
from typing import Any

from runtime.elastic.endpoint import (
    AddNode,
    AgentCame,
    AgentLost,
    AgentSaid,
    Event,
    Halt,
    RemoveNode,
)
from runtime.elastic.fleet import Fleet, WorkerRecord
from runtime.elastic.journal import Journal, TrainedIteration
from runtime.elastic.messages import (
    Exited,
    Failed,
    Leaving,
    Moved,
    NodeOffer,
    Paused,
    Ready,
    Saved,
    Started,
    StepDone,
)
from runtime.elastic.reshaping import Coordinator, who
from runtime.elastic.stragglers import Straggler, StragglerWatch
from runtime.records import COMPUTE, Iteration, RankStep, stage_times
from runtime.training import Options
from specs.errors import ArachneError, HostError
from specs.plan import Plan

PACE_WINDOW = 10  # iterations


class Hearing(Coordinator):
    """Takes events down: who is there, how training goes, what is wanted. It decides nothing."""

    def __init__(
        self,
        fleet: Fleet,
        journal: Journal,
        options: Options,
        plan: Plan,
        straggler_factor: float,
    ) -> None:
        super().__init__(fleet, journal, options, plan)
        self.straggler_factor = straggler_factor
        self.iteration = 0
        self.excluded: set[str] = set()
        self._leaving: set[str] = set()
        self._expected: set[str] = set()  # nodes that are there from the start
        self._failures = 0
        self._stopping = False
        self._own_errors: list[str] = []
        self._steps: dict[tuple[int, int], dict[int, StepDone]] = {}
        self._pace: deque[float] = deque(maxlen=PACE_WINDOW)
        self._watch = StragglerWatch(plan, straggler_factor)
        self._slow: Straggler | None = None
        self._want: str | None = None  # why to plan anew

    @abstractmethod
    def start_agent(self, offer: NodeOffer) -> None:
        """Start the agent of a node on this host."""

    @abstractmethod
    def show(self) -> None:
        """Have those who ask for the status see how things stand now."""

    def apply(self, event: Event) -> None:
        """Take an event in: what it means for the run is decided by the loop."""
        if isinstance(event, AgentSaid):
            if isinstance(event.message, Exited):
                self._exited(event.message)
            elif isinstance(event.message, Leaving):
                self._leave(event.link.registration.node.name)
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
        self.show()

    def _agent_came(self, event: AgentCame) -> None:
        name = event.link.registration.node.name
        try:
            new = self.fleet.came(event.link)
        except ArachneError as error:
            event.answer.set_exception(error)
            return
        event.answer.set_result("welcome")
        if not new:
            return
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
            self.start_agent(event.offer)
        except ArachneError as error:
            event.answer.set_exception(error)
            return
        event.answer.set_result(f"node {name} is starting")

    def _remove(self, event: RemoveNode) -> None:
        try:
            self._is_to_leave(event.name)
        except ArachneError as error:
            event.answer.set_exception(error)
            return
        event.answer.set_result(f"node {event.name} is leaving")

    def _leave(self, name: str) -> None:
        """An agent itself was asked to end."""
        try:
            self._is_to_leave(name)
        except ArachneError as error:
            self.journal.say(f"node {name} stays: {error}")

    def _is_to_leave(self, name: str) -> None:
        if name not in self.fleet.links:
            raise HostError(f"no node {name}, there are: {', '.join(self.fleet.links)}")
        if len(set(self.fleet.links) - self._leaving - self.excluded - {name}) == 0:
            raise HostError(f"node {name} is the last one")
        self._leaving.add(name)
        self._want = "node left"
        self.journal.say(f"node {name} is to leave")

    def _exited(self, message: Exited) -> None:
        worker = self.fleet.workers.pop(message.worker, None)
        if worker is None or worker.quitting:
            return
        how = f"ended with exit code {message.code}"
        if message.code < 0:
            names = {number.value: number.name for number in signal.Signals}
            how = f"was killed by {names.get(-message.code, f'signal {-message.code}')}"
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
        plan = self.plans.get(str(step.generation))
        if plan is None or step.rank >= plan.gpus_used:
            return
        self.trained_at = time.monotonic()
        self._failures = 0
        steps = self._steps.setdefault((step.generation, step.iteration), {})
        steps[step.rank] = step
        if len(steps) == plan.gpus_used:
            self._trained(plan, self._steps.pop((step.generation, step.iteration)))

    def flush(self) -> None:
        """Iterations that not all ranks have reported: those that did were lost, or stopped."""
        for (generation, _), steps in sorted(self._steps.items()):
            plan = self.plans.get(str(generation))
            if plan is not None:
                self._trained(plan, steps)
        self._steps.clear()

    def _trained(self, plan: Plan, steps: dict[int, StepDone]) -> None:
        ranks = tuple(_rank_step(steps[rank]) for rank in sorted(steps))
        iteration = Iteration(ranks[0].iteration, False, ranks)
        whole = len(ranks) == plan.gpus_used
        self.iteration = iteration.number + 1
        self.journal.trained(
            plan,
            TrainedIteration(
                iteration.number,
                iteration.ms,
                ranks[0].loss,  # all ranks have agreed on that of the batch
                iteration.peak_bytes,
                stage_times(plan, [iteration]) if whole else (),
            ),
        )
        if plan is self.plan:
            self._pace.append(iteration.ms)
            if self.straggler_factor:
                own = {step.rank: step.total_ms(*COMPUTE) - sum(step.comm_ms) for step in ranks}
                self._slow = self._watch.add(own) or self._slow


def _rank_step(said: StepDone) -> RankStep:
    return RankStep(
        iteration=said.iteration,
        warm_up=False,  # the journal knows
        rank=said.rank,
        elapsed_ms=said.elapsed_ms,
        loss=said.loss,
        peak_bytes=said.peak_bytes,
        started_s=said.started_s,
        reference_ms=(0.0, 0.0),  # reference work would lengthen every pause
        actions=said.actions,
        comm_ms=said.comm_ms,
    )
