"""What ranks report of an iteration, and the iteration put together from all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from specs.layout import ranks_of
from specs.measurement import RunTrace, StageTimes, StageTrack
from specs.plan import Plan

COMPUTE = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class RankStep:
    """One iteration on one rank.

    elapsed_ms: from its start, behind a barrier of all ranks, to its end. loss: this rank's part of
    the loss per token of the global batch. started_s: wall clock. reference_ms: the reference
    work before and after. actions: (kind, micro-batch, start ms, end ms) since the start. comm_ms:
    collectives inside layers, forward and backward of each micro-batch; empty where not timed.
    """

    iteration: int
    warm_up: bool
    rank: int
    elapsed_ms: float
    loss: float
    peak_bytes: int
    started_s: float
    reference_ms: tuple[float, float]
    actions: tuple[tuple[str, int, float, float], ...]
    comm_ms: tuple[float, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The step as plain values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_json(cls, message: Mapping[str, Any]) -> RankStep:
        """The step of plain values."""
        values = dict(message)
        values["reference_ms"] = tuple(message["reference_ms"])
        values["actions"] = tuple(tuple(action) for action in message["actions"])
        values["comm_ms"] = tuple(message["comm_ms"])
        return cls(**values)

    def total_ms(self, *kinds: str) -> float:
        """Time in actions of these kinds, in ms."""
        return sum(end - start for kind, _, start, end in self.actions if kind in kinds)

    def each_ms(self, kind: str) -> list[float]:
        """Time of each action of a kind, in ms, in order."""
        return [end - start for k, _, start, end in self.actions if k == kind]


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration of a plan; steps by rank."""

    number: int
    warm_up: bool
    steps: tuple[RankStep, ...]

    @property
    def ms(self) -> float:
        """Wall clock of the optimizer step: that of the slowest rank."""
        return max(step.elapsed_ms for step in self.steps)

    @property
    def loss(self) -> float:
        """Loss per token of the whole global batch."""
        return sum(step.loss for step in self.steps)

    @property
    def reference_ms(self) -> tuple[float, float]:
        """The reference work before and after the iteration, median over the ranks."""
        before = median(step.reference_ms[0] for step in self.steps)
        return before, median(step.reference_ms[1] for step in self.steps)

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """Highest memory of each rank."""
        return tuple(step.peak_bytes for step in self.steps)


class Assembly:
    """Puts the steps of `world` ranks together as they come in, in whatever order."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._steps: dict[int, dict[int, RankStep]] = {}

    def add(self, step: RankStep) -> Iterator[Iteration]:
        """The iteration, where this was its last step."""
        steps = self._steps.setdefault(step.iteration, {})
        steps[step.rank] = step
        if len(steps) == self._world:
            del self._steps[step.iteration]
            ordered = tuple(steps[rank] for rank in sorted(steps))
            yield Iteration(step.iteration, step.warm_up, ordered)


def drift_of(iterations: Sequence[Iteration]) -> float:
    """How much slower the machine is after a run than before it, as a share."""
    return iterations[-1].reference_ms[1] / iterations[0].reference_ms[0] - 1


def stage_times(plan: Plan, iterations: Sequence[Iteration]) -> tuple[StageTimes, ...]:
    """The times of every stage, over its replicas, ranks and the iterations given (no warm-up).

    Full micro-batches only: a short last one is faster, and is priced as a full one.
    """
    found = []
    places = ranks_of(plan)
    for k, template in enumerate(plan.templates):
        for s in range(template.depth):
            own = [p for p in places if (p.template, p.stage) == (k, s)]
            steps = [i.steps[p.rank] for i in iterations for p in own]
            full = [(i.steps[p.rank], _full(plan, k, p.replica)) for i in iterations for p in own]
            forward = [ms for step, n in full for ms in step.each_ms("forward")[:n]]
            backward = [ms for step, n in full for ms in step.each_ms("backward")[:n]]
            comm = [ms for step, n in full for ms in step.comm_ms[:n]]
            send, receive, sync, update = (
                median(step.total_ms(kind) for step in steps)
                for kind in ("send", "receive", "sync", "update")
            )
            found.append(
                StageTimes(
                    *(k, s, median(forward), median(backward), send, receive, sync, update),
                    median(comm) if comm else None,
                )
            )
    return tuple(found)


def _full(plan: Plan, template: int, replica: int) -> int:
    """Full micro-batches of a replica; of one that has only a short one, that one."""
    share = plan.templates[template].replicas[replica]
    short = share.last_micro_batch < plan.templates[template].micro_batch
    return max(1, share.micro_batches - short)


def run_trace(plan: Plan, run: str, iterations: Sequence[Iteration]) -> RunTrace | None:
    """The trace of the iteration whose time is nearest the median of those that count.

    Of every template the first replica, of every stage its first rank. None where none counts.
    """
    counted = [iteration for iteration in iterations if not iteration.warm_up]
    if not counted:
        return None
    middle = median(iteration.ms for iteration in counted)
    chosen = min(counted, key=lambda iteration: abs(iteration.ms - middle))
    begun_s = min(step.started_s for step in chosen.steps)
    tracks = []
    for place in ranks_of(plan):
        if place.replica == 0 and place.tp_rank == 0:
            step = chosen.steps[place.rank]
            late_ms = (step.started_s - begun_s) * 1e3
            actions = tuple(
                (kind, m, start + late_ms, end + late_ms) for kind, m, start, end in step.actions
            )
            tracks.append(StageTrack(place.template, place.stage, actions))
    return RunTrace(run, chosen.number, chosen.ms, tuple(tracks))
