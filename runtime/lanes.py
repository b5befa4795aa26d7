"""Activations and gradients between stages of any two tensor-parallel degrees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from runtime.collectives import Group
from specs.layout import RankPlace, ranks_of
from specs.plan import Plan


def feeders(senders: int, receivers: int) -> list[int]:
    """Which of `senders` ranks feeds each of `receivers` ranks: j is fed by floor(j * a / b).

    Activations are the same on all ranks of a tensor-parallel group, so one message a receiver is
    enough, and no broadcast follows.
    """
    return [j * senders // receivers for j in range(receivers)]


@dataclass(frozen=True, slots=True)
class Lane:
    """One message per micro-batch: the ranks at its ends, and which slice of the tensor it carries.

    slices 1: the whole tensor. Else the tensor crosses between nodes once, in `slices` equal
    parts of which this is number `part`; the receiver's tensor-parallel group puts them together.
    """

    sender: int
    receiver: int
    part: int = 0
    slices: int = 1


@dataclass(frozen=True)
class Boundary:
    """All lanes of one pass direction between two neighbouring stages of one replica."""

    lanes: tuple[Lane, ...]

    def sent_by(self, rank: int) -> list[Lane]:
        """The messages that a rank sends."""
        return [lane for lane in self.lanes if lane.sender == rank]

    def received_by(self, rank: int) -> Lane | None:
        """The one message that a rank receives, None for a rank of another stage."""
        return next((lane for lane in self.lanes if lane.receiver == rank), None)


def boundary(senders: Sequence[RankPlace], receivers: Sequence[RankPlace]) -> Boundary:
    """The lanes from one stage to another; in slices where they are on different nodes."""
    apart = senders[0].node != receivers[0].node
    slices = len(receivers) if apart else 1
    return Boundary(
        tuple(
            Lane(senders[i].rank, receivers[j].rank, j if apart else 0, slices)
            for j, i in enumerate(feeders(len(senders), len(receivers)))
        )
    )


def stage_ranks(plan: Plan, template: int, replica: int) -> list[list[RankPlace]]:
    """The ranks of each stage of a replica, by tensor-parallel rank."""
    stages: list[list[RankPlace]] = [[] for _ in plan.templates[template].stages]
    for place in ranks_of(plan):
        if (place.template, place.replica) == (template, replica):
            stages[place.stage].append(place)
    return stages


def edges_of(plan: Plan) -> set[tuple[int, int]]:
    """(sender, receiver) of every lane of a plan, both directions."""
    found: set[tuple[int, int]] = set()
    for k, template in enumerate(plan.templates):
        for r in range(len(template.replicas)):
            stages = stage_ranks(plan, k, r)
            for before, after in pairwise(stages):
                for way in (boundary(before, after), boundary(after, before)):
                    found |= {(lane.sender, lane.receiver) for lane in way.lanes}
    return found


def send(x: Tensor, lane: Lane, group: Group) -> tuple[dist.Work, Tensor]:
    """Post a message; keep what is returned until the work is done: it is read until then."""
    piece = x.contiguous()
    if lane.slices > 1:
        piece = _padded(piece.view(-1), lane.slices).chunk(lane.slices)[lane.part].contiguous()
    work = dist.isend(piece, dst=lane.receiver, group=group)
    assert work is not None
    return work, piece


def receive(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    lane: Lane,
    group: Group,
    tp_group: Group,
) -> Tensor:
    """Wait for a message; the whole tensor, put together where it came in slices."""
    if lane.slices == 1:
        x = torch.empty(shape, dtype=dtype, device=device)
        _wait(dist.irecv(x, src=lane.sender, group=group))
        return x
    elements = int(torch.Size(shape).numel())
    each = -(-elements // lane.slices)
    piece = torch.empty(each, dtype=dtype, device=device)
    _wait(dist.irecv(piece, src=lane.sender, group=group))
    whole = torch.empty(each * lane.slices, dtype=dtype, device=device)
    dist.all_gather_into_tensor(whole, piece, group=tp_group)
    return whole[:elements].view(shape)


def _wait(work: dist.Work | None) -> None:
    assert work is not None
    work.wait()


def _padded(flat: Tensor, parts: int) -> Tensor:
    return F.pad(flat, (0, -flat.numel() % parts))
