"""Training state between two plans: what a worker keeps, sends, receives and puts in place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from runtime.executor import Executor
from runtime.optimizer import TORCH_DTYPE
from runtime.state import WEIGHT, state_of
from specs.errors import RunError
from specs.plan import Plan
from specs.transfer import Layout, Move, Transfer, layout_of, transfer_between
from specs.workload import DType, Optimizer, Workload


@dataclass
class Holding:
    """The state of one rank of a plan before iteration `iteration`, without any process group.

    parts: by kind of state and tensor, each in the shape of the rank's box. update: set where this
    iteration's gradients are summed and agreed on, and only its optimizer step is left to do.
    """

    plan: Plan
    rank: int
    iteration: int
    parts: dict[tuple[str, str], Tensor]
    update: Callable[[], None] | None = field(default=None, repr=False)

    @property
    def layout(self) -> Layout:
        """The placement of every tensor."""
        return layout_of(self.plan, self.rank)

    def advance_to(self, iteration: int) -> None:
        """Take the step that is left to do, where others have taken it.

        Raises RunError where the state cannot get there: it would not be that of the others.
        """
        if iteration == self.iteration + 1 and self.update is not None:
            self.update()
            self.iteration = iteration
        if iteration != self.iteration:
            raise RunError(
                f"rank {self.rank} holds the state before iteration {self.iteration}, "
                f"expected {iteration}"
            )
        self.update = None


def holding_of(executor: Executor, iteration: int, *, agreed: bool = False) -> Holding:
    """What an executor holds; views of its tensors, which outlive its process groups.

    agreed: whether the gradients of this iteration are summed, on every rank.
    """
    executor.optimizer.ensure()
    parts = {(part.kind, part.tensor): part.values for part in state_of(executor)}
    # Bound to the optimizer, not to the executor: that one holds process groups.
    update = executor.optimizer.step if agreed else None
    return Holding(executor.plan, executor.place.rank, iteration, parts, update)


def kinds_of(workload: Workload) -> dict[str, torch.dtype]:
    """The kinds of state of a parameter and their precisions."""
    kinds = {WEIGHT: TORCH_DTYPE[workload.dtype]}
    if workload.optimizer is Optimizer.SGD:
        return kinds
    if workload.dtype is not DType.FP32 and workload.optimizer is Optimizer.ADAMW:
        kinds["master"] = torch.float32
    return kinds | {"exp_avg": torch.float32, "exp_avg_sq": torch.float32}


@dataclass(frozen=True)
class Seat:
    """A member of the change: the rank it holds state of, and the rank it is to be; None: none."""

    source: tuple[Plan, int] | None
    target: tuple[Plan, int] | None


def transfer_of(seats: Sequence[Seat]) -> Transfer:
    """The moves between the members of a change."""
    before, after = (
        [layout_of(*end) if end else None for end in ends]
        for ends in ([seat.source for seat in seats], [seat.target for seat in seats])
    )
    return transfer_between(before, after)


def hand_over(
    seats: Sequence[Seat],
    me: int,
    held: Holding | None,
    iteration: int,
    device: torch.device,
) -> tuple[Holding | None, int]:
    """Send and receive state until every member has what it is to have; and the bytes received.

    Every member calls this in a default process group in which its rank is its index in seats. The
    old state is left as it is, so that it still stands if another member is lost meanwhile; a
    tensor of which a member has the same box before and after is the same memory in both.
    Raises RunError where no member holds a part, RuntimeError where another member is lost.
    """
    transfer = transfer_of(seats)
    if transfer.missing:
        name, box = transfer.missing[0]
        raise RunError(f"no process holds {name} {box.offset} + {box.size}")
    target = seats[me].target
    workload = _workload(seats)
    kinds = kinds_of(workload)
    new: dict[tuple[str, str], Tensor] = {}
    layout: Layout = {}
    old_layout = held.layout if held else {}
    old = held.parts if held else {}
    kept: set[str] = set()
    if target is not None:
        layout = layout_of(*target)
        kept = {
            name
            for name, placement in layout.items()
            if name in old_layout and old_layout[name].box == placement.box
        }
        for name, placement in layout.items():
            for kind, dtype in kinds.items():
                new[kind, name] = (
                    old[kind, name]
                    if name in kept
                    else torch.empty(placement.box.size, dtype=dtype, device=device)
                )
    pairs: dict[tuple[int, int], list[Move]] = defaultdict(list)
    for move in transfer.moves:
        stays = move.source == move.target == me and move.tensor in kept
        if me in (move.source, move.target) and not stays:
            pairs[move.source, move.target].append(move)
    operations: list[dist.P2POp] = []
    arrived: list[tuple[list[Tensor], Tensor]] = []
    received = 0
    with torch.no_grad():
        for (source, destination), moves in sorted(pairs.items()):
            here = _views(moves, kinds, old, old_layout) if source == me else {}
            there = _views(moves, kinds, new, layout) if destination == me else {}
            for dtype in sorted({*here, *there}, key=str):
                if source == destination:
                    for into, values in zip(there[dtype], here[dtype], strict=True):
                        into.copy_(values)
                elif source == me:
                    flat = torch.cat([values.reshape(-1) for values in here[dtype]])
                    operations.append(dist.P2POp(dist.isend, flat, destination))
                else:
                    size = sum(into.numel() for into in there[dtype])
                    flat = torch.empty(size, dtype=dtype, device=device)
                    operations.append(dist.P2POp(dist.irecv, flat, source))
                    arrived.append((there[dtype], flat))
                    received += flat.numel() * flat.element_size()
        if operations:
            for work in dist.batch_isend_irecv(operations):
                work.wait()
        for views, flat in arrived:
            parts = torch.split(flat, [into.numel() for into in views])
            for into, values in zip(views, parts, strict=True):
                into.copy_(values.view(into.shape))
    if target is None:
        return None, received
    return Holding(*target, iteration, new), received


def _workload(seats: Sequence[Seat]) -> Workload:
    return next(seat.target[0].workload for seat in seats if seat.target is not None)


def _views(
    moves: Sequence[Move],
    kinds: Mapping[str, torch.dtype],
    parts: Mapping[tuple[str, str], Tensor],
    layout: Layout,
) -> dict[torch.dtype, list[Tensor]]:
    """The boxes of moves in a member's tensors, by precision, in the order of the moves."""
    found: dict[torch.dtype, list[Tensor]] = defaultdict(list)
    for move in moves:
        inside = move.box.within(layout[move.tensor].box)
        for kind, dtype in kinds.items():
            found[dtype].append(parts[kind, move.tensor][inside])
    return found


def put_in_place(executor: Executor, held: Holding) -> None:
    """Give an executor the state of its rank, and take it from what is held, part by part."""
    executor.optimizer.prepare(held.iteration)
    with torch.no_grad():
        for part in state_of(executor):
            part.values.copy_(held.parts.pop((part.kind, part.tensor)))
