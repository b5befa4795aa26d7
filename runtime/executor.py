"""One training step of a plan on one rank: 1F1B, gradient sums between replicas, optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from runtime import lanes
from runtime.collectives import CollectiveClock
from runtime.data import Samples, batch
from runtime.gradients import GradientBuffers
from runtime.groups import Groups, form_groups
from runtime.lanes import Boundary, boundary, stage_ranks
from runtime.optimizer import LEARNING_RATE, TORCH_DTYPE, Update, build_optimizer
from runtime.owners import Ownership
from runtime.progress import Progress
from runtime.schedule import Pass, one_f_one_b
from runtime.stage import StageModel, build_stage
from runtime.timeline import Action, Kind, Timeline
from specs.errors import RunError
from specs.layout import RankPlace, ranks_of
from specs.plan import Plan, Replica


@dataclass(frozen=True)
class Step:
    """What one iteration did on one rank.

    comm_ms: in collectives inside layers, forward and backward of each micro-batch.
    loss: this replica's part of the loss per token of the global batch, on the first rank of its
    last stage; 0 on all others, so that the sum over all ranks is the loss of the batch.
    """

    elapsed_ms: float
    loss: float
    actions: tuple[Action, ...]
    comm_ms: tuple[float, ...] = ()


@dataclass
class _InFlight:
    """A micro-batch between its forward and its backward."""

    x: Tensor | None
    y: Tensor


class Executor:
    """Trains one rank's part of a plan. Every rank of the plan makes one, and steps together."""

    def __init__(
        self,
        plan: Plan,
        rank: int,
        *,
        device: torch.device,
        samples: Samples,
        seed: int | None = 0,
        learning_rate: float = LEARNING_RATE,
        clip_norm: float | None = None,
        formed: tuple[Ownership, Groups] | None = None,
    ) -> None:
        self.plan = plan
        self.place = ranks_of(plan)[rank]
        self.device = device
        self.samples = samples
        self.clip_norm = clip_norm
        self.template = plan.templates[self.place.template]
        self.replica: Replica = self.template.replicas[self.place.replica]
        _check_expert_steps(plan)
        self.first_sample = _first_sample(plan, self.place.template, self.place.replica)
        ownership, groups = formed or form_groups(plan, rank)
        self.ownership: Ownership = ownership
        self.groups: Groups = groups
        self.model: StageModel = build_stage(plan, self.place, self.groups, device, seed)
        held = self.model.held()
        self.gradients = GradientBuffers(held, ownership.buckets(rank))
        self.optimizer: Update = build_optimizer(
            [parameter for parameter, _ in held.values()],
            plan.workload.optimizer,
            plan.workload.dtype,
            learning_rate=learning_rate,
        )
        stages = stage_ranks(plan, self.place.template, self.place.replica)
        s = self.place.stage
        self.is_first, self.is_last = s == 0, s == self.template.depth - 1
        self._from_before, self._to_before = _way(stages, s - 1, s), _way(stages, s, s - 1)
        self._from_after, self._to_after = _way(stages, s + 1, s), _way(stages, s, s + 1)
        self._sending: list[tuple[dist.Work, Tensor]] = []
        self._flying: dict[int, _InFlight] = {}
        self._clocks: list[CollectiveClock] = []  # of each micro-batch
        self._ready: tuple[int, list[tuple[Tensor, Tensor]]] = (-1, [])
        self._start = (0, 0)

    def start_at(self, iteration: int, sample: int) -> None:
        """Have iteration number `iteration` begin at sample number `sample`."""
        self._start = (iteration, sample)

    def prepare(self, iteration: int) -> None:
        """Make the samples of an iteration, so that no clock counts it: a loader would be ahead."""
        if self._ready[0] == iteration or not (self.is_first or self.is_last):
            return
        workload, size = self.plan.workload, self.template.micro_batch
        number, sample = self._start
        first = sample + (iteration - number) * workload.global_batch + self.first_sample
        batches = []
        for m in range(self.replica.micro_batches):
            pair = batch(self.samples, first + m * size, self._rows(m), workload.seq_len)
            batches.append((pair[0].to(self.device), pair[1].to(self.device)))
        self._ready = (iteration, batches)

    def progress(self, iteration: int) -> Progress:
        """Where training stands when iteration number `iteration` comes next."""
        number, sample = self._start
        return Progress(iteration, sample + (iteration - number) * self.plan.workload.global_batch)

    def step(self, iteration: int, agree: Callable[[float], None] | None = None) -> Step:
        """Run iteration number `iteration`: its samples follow from the number alone.

        agree: called with this rank's part of the loss when only the optimizer step is left, which
        needs no other rank; where it raises, the state is still that before the iteration.
        """
        timeline = Timeline(self.device)
        loss = self.accumulate(iteration, timeline)
        with timeline.during(Kind.SYNC):
            self.gradients.synchronise(self.groups.owners)
        if self.clip_norm is not None:
            with timeline.during(Kind.UPDATE):
                self.gradients.clip(self.clip_norm, dist.group.WORLD)
        counts = self.is_last and self.place.tp_rank == 0
        if agree is not None:
            agree(float(loss) if counts else 0.0)
        with timeline.during(Kind.UPDATE):
            self.optimizer.step()
            self.gradients.zero()
        elapsed_ms = timeline.elapsed_ms()
        return Step(
            elapsed_ms,
            float(loss) if counts else 0.0,
            tuple(timeline.actions()),
            tuple(clock.ms for clock in self._clocks),
        )

    def accumulate(self, iteration: int, timeline: Timeline) -> Tensor:
        """Forward and backward of all micro-batches; the replica's loss (0 before the last stage).

        Leaves this rank's gradients, not yet summed over replicas, of the loss per token of the
        whole global batch.
        """
        self.prepare(iteration)
        self._clocks = [CollectiveClock() for _ in range(self.replica.micro_batches)]
        total = torch.zeros((), device=self.device)
        for way, m in one_f_one_b(
            self.place.stage, self.template.depth, self.replica.micro_batches
        ):
            if way is Pass.FORWARD:
                loss = self._forward(m, timeline)
                if loss is not None:
                    total += loss
            else:
                self._backward(m, timeline)
        with timeline.during(Kind.SEND):
            for work, _ in self._sending:
                work.wait()
        self._sending.clear()
        return total

    def _forward(self, m: int, timeline: Timeline) -> Tensor | None:
        x: Tensor | None = None
        if not self.is_first:
            with timeline.during(Kind.RECEIVE, m):
                x = self._receive(self._from_before, self._rows(m)).requires_grad_()
        with timeline.during(Kind.FORWARD, m), self._clocks[m]:
            source = self._ready[1][m][0] if x is None else x
            y: Tensor = self.model(source, self._ready[1][m][1] if self.is_last else None)
            if self.is_last:
                # Per token of the whole global batch: gradients then add up over any shares.
                workload = self.plan.workload
                y = y / (workload.global_batch * workload.seq_len)
        self._flying[m] = _InFlight(x, y)
        if self.is_last:
            return y.detach()
        with timeline.during(Kind.SEND, m):
            self._send(y.detach(), self._to_after)
        return None

    def _backward(self, m: int, timeline: Timeline) -> None:
        flying = self._flying.pop(m)
        grad: Tensor | None = None
        if not self.is_last:
            with timeline.during(Kind.RECEIVE, m):
                grad = self._receive(self._from_after, self._rows(m))
        with timeline.during(Kind.BACKWARD, m), self._clocks[m]:
            torch.autograd.backward(flying.y, grad)
        if flying.x is not None:
            with timeline.during(Kind.SEND, m):
                assert flying.x.grad is not None
                self._send(flying.x.grad, self._to_before)

    def _rows(self, m: int) -> int:
        last = m == self.replica.micro_batches - 1
        return self.replica.last_micro_batch if last else self.template.micro_batch

    def _receive(self, way: Boundary | None, rows: int) -> Tensor:
        assert way is not None
        lane = way.received_by(self.place.rank)
        assert lane is not None
        workload = self.plan.workload
        return lanes.receive(
            (rows, workload.seq_len, self.plan.model.hidden),
            TORCH_DTYPE[workload.dtype],
            self.device,
            lane,
            self.groups.edges[lane.sender, lane.receiver],
            self.groups.tp,
        )

    def _send(self, x: Tensor, way: Boundary | None) -> None:
        assert way is not None
        # What is not yet received is still read: it must neither be freed nor used again.
        self._sending = [sent for sent in self._sending if not sent[0].is_completed()]
        for lane in way.sent_by(self.place.rank):
            edge = self.groups.edges[lane.sender, lane.receiver]
            self._sending.append(lanes.send(x, lane, edge))


def _way(stages: list[list[RankPlace]], sender: int, receiver: int) -> Boundary | None:
    """The lanes from one stage to another, None at the ends of the pipeline."""
    if not (0 <= sender < len(stages) and 0 <= receiver < len(stages)):
        return None
    return boundary(stages[sender], stages[receiver])


def _first_sample(plan: Plan, template: int, replica: int) -> int:
    """Where a replica's share of each global batch begins: shares stand in plan order."""
    first = 0
    for k, t in enumerate(plan.templates):
        for r, share in enumerate(t.replicas):
            if (k, r) == (template, replica):
                return first
            first += t.samples(share)
    raise IndexError(f"the plan has no replica {replica} of template {template}")


def _check_expert_steps(plan: Plan) -> None:
    """Replicas that exchange tokens must run as many micro-batches as each other, or they hang."""
    for k, template in enumerate(plan.templates):
        counts = {replica.micro_batches for replica in template.replicas}
        for s, stage in enumerate(template.stages):
            if stage.tp % (stage.ep * stage.etp) and len(counts) > 1:
                raise RunError(
                    f"template {k} stage {s}: ep={stage.ep} etp={stage.etp} spans replicas, which "
                    f"run {sorted(counts)} micro-batches; expected the same number on each"
                )
