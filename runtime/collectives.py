"""The collectives of tensor parallelism, differentiable, and a clock that times them."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, ClassVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None


class CollectiveClock:
    """While entered, sums the time that this process spends in collectives of layers.

    ms: wall clock of the calls on CPU, device time between events on CUDA (synchronises when read).
    count: number of calls. Clocks nest; every entered clock counts.
    """

    _entered: ClassVar[list[CollectiveClock]] = []

    def __init__(self) -> None:
        self.count = 0
        self._ms = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def __enter__(self) -> CollectiveClock:
        # A plain list, not a context variable: on CUDA the backward runs in other threads.
        CollectiveClock._entered.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        CollectiveClock._entered.remove(self)

    @property
    def ms(self) -> float:
        """Time in collectives so far, in ms."""
        if self._events:
            self._events[-1][1].synchronize()
            self._ms += sum(start.elapsed_time(end) for start, end in self._events)
            self._events.clear()
        return self._ms


def _timed(call: Any, device: torch.device) -> None:
    """Run a collective; entered clocks add its time."""
    clocks = CollectiveClock._entered
    if not clocks:
        call()
    elif device.type == "cuda":
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        call()
        end.record()
        for clock in clocks:
            clock.count += 1
            clock._events.append((start, end))
    else:
        begun = time.perf_counter()
        call()
        took = (time.perf_counter() - begun) * 1e3
        for clock in clocks:
            clock.count += 1
            clock._ms += took


def all_reduce(x: Tensor, group: Group, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> None:
    """Reduce a contiguous tensor in place over the group; no group, nothing to do."""
    if group is not None:
        _timed(lambda: dist.all_reduce(x, op=op, group=group), x.device)


class _CopyToGroup(torch.autograd.Function):
    """Forward: identity. Backward: all-reduce of the gradient (Megatron's f)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        # In place where it can be: the gradient of a linear layer's input is a fresh tensor, and
        # a copy would be a hidden cost that no profile of the collective contains.
        grad = grads[0].contiguous()
        all_reduce(grad, ctx.group)
        return grad, None


class _ReduceFromGroup(torch.autograd.Function):
    """Forward: all-reduce of partial outputs. Backward: identity (Megatron's g)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        if x.is_contiguous():
            ctx.mark_dirty(x)
        else:
            x = x.contiguous()
        all_reduce(x, group)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def copy_to_group(x: Tensor, group: Group) -> Tensor:
    """The input of column-parallel layers: x itself; its gradient is summed over the group."""
    if group is None:
        return x
    return cast(Tensor, _CopyToGroup.apply(x, group))  # type: ignore[no-untyped-call]


def reduce_from_group(x: Tensor, group: Group) -> Tensor:
    """The output of row-parallel layers: the sum of x over the group, in place."""
    if group is None:
        return x
    return cast(Tensor, _ReduceFromGroup.apply(x, group))  # type: ignore[no-untyped-call]


def group_size(group: Group) -> int:
    """Ranks of a group; None is a group of this rank alone."""
    return 1 if group is None else dist.get_world_size(group)


def group_rank(group: Group) -> int:
    """This process's rank inside a group."""
    return 0 if group is None else dist.get_rank(group)


def _gathered(x: Tensor, group: Group) -> Tensor:
    """x of every rank, one behind the other; the same shape on all."""
    x = x.contiguous()
    out = x.new_empty((group_size(group) * x.shape[0], *x.shape[1:]))
    _timed(lambda: dist.all_gather_into_tensor(out, x, group=group), x.device)
    return out


def _reduced_slice(x: Tensor, group: Group) -> Tensor:
    """This rank's slice of the sum of x over the group; rows divide by the group's size."""
    x = x.contiguous()
    out = x.new_empty((x.shape[0] // group_size(group), *x.shape[1:]))
    _timed(lambda: dist.reduce_scatter_tensor(out, x, group=group), x.device)
    return out


def _exchanged(x: Tensor, out_rows: list[int], in_rows: list[int], group: Group) -> Tensor:
    x = x.contiguous()
    out = x.new_empty((sum(out_rows), *x.shape[1:]))
    _timed(lambda: dist.all_to_all_single(out, x, out_rows, in_rows, group=group), x.device)
    return out


class _ScatterSlices(torch.autograd.Function):
    """Forward: this rank's slice of rows that every rank has. Backward: all-gather."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.chunk(group_size(group))[group_rank(group)].contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _gathered(grads[0], ctx.group), None


class _GatherSlices(torch.autograd.Function):
    """Forward: all-gather. Backward: this rank's slice; what follows is the same on all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _gathered(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].chunk(group_size(ctx.group))[group_rank(ctx.group)].contiguous(), None


class _GatherRows(torch.autograd.Function):
    """Forward: all-gather. Backward: reduce-scatter, for what follows differs from rank to rank."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _gathered(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _reduced_slice(grads[0], ctx.group), None


class _ReduceScatterRows(torch.autograd.Function):
    """Forward: reduce-scatter. Backward: all-gather."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _reduced_slice(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _gathered(grads[0], ctx.group), None


class _AllToAll(torch.autograd.Function):
    """Forward: rows to the ranks they are meant for. Backward: their gradients back."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, out_rows: list[int], in_rows: list[int], group: Group
    ) -> Tensor:
        ctx.rows, ctx.group = (in_rows, out_rows), group
        return _exchanged(x, out_rows, in_rows, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        out_rows, in_rows = ctx.rows
        return _exchanged(grads[0], out_rows, in_rows, ctx.group), None, None, None


def scatter_slices(x: Tensor, group: Group) -> Tensor:
    """This rank's slice of rows that all ranks have; their number divides by the group's size."""
    return cast(Tensor, _ScatterSlices.apply(x, group))  # type: ignore[no-untyped-call]


def gather_slices(x: Tensor, group: Group) -> Tensor:
    """All rows on all ranks, from each one's slice; what follows is the same on every rank."""
    return cast(Tensor, _GatherSlices.apply(x, group))  # type: ignore[no-untyped-call]


def gather_rows(x: Tensor, group: Group) -> Tensor:
    """All rows on all ranks, each of which then does other work with them."""
    return cast(Tensor, _GatherRows.apply(x, group))  # type: ignore[no-untyped-call]


def reduce_scatter_rows(x: Tensor, group: Group) -> Tensor:
    """This rank's slice of the sum of x over the group."""
    return cast(Tensor, _ReduceScatterRows.apply(x, group))  # type: ignore[no-untyped-call]


def all_to_all(x: Tensor, out_rows: list[int], in_rows: list[int], group: Group) -> Tensor:
    """in_rows[i] consecutive rows to rank i, out_rows[i] rows from rank i."""
    found = _AllToAll.apply(x, out_rows, in_rows, group)  # type: ignore[no-untyped-call]
    return cast(Tensor, found)


def exchange_counts(counts: Tensor, group: Group) -> Tensor:
    """Row i of an int64 matrix to rank i; row i of the answer is from rank i. Without gradient."""
    out = torch.empty_like(counts)
    _timed(lambda: dist.all_to_all_single(out, counts, group=group), counts.device)
    return out


def gather_counts(counts: Tensor, group: Group) -> Tensor:
    """int64 vectors of all ranks, one a row. Without gradient."""
    return _gathered(counts[None], group)
