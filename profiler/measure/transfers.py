"""The transfers whose time over message size makes a link profile, ready to be repeated."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from profiler.measure.stopwatch import Stopwatch
from specs.profile import Operation

Transfer = Callable[[], None]


class Link:
    """One operation of one size over one group, with its buffers.

    nbytes: as LinkProfile counts: the full buffer, or what one rank sends in an all_to_all. The
    elements are of the precision that training moves: fp32 on a CPU, bf16 on a GPU.
    """

    def __init__(
        self,
        operation: Operation,
        group: dist.ProcessGroup | None,
        nbytes: int,
        device: torch.device,
    ) -> None:
        self.device = device
        self.operation = operation
        self.group = group
        self._ranks = dist.get_world_size(group)
        self._rank = dist.get_rank(group)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        elements = nbytes // dtype.itemsize
        share = elements // self._ranks
        self._whole = torch.zeros(elements, dtype=dtype, device=device)
        self._share = torch.zeros(share, dtype=dtype, device=device)
        self._other = torch.zeros(elements, dtype=dtype, device=device)
        transfers: dict[Operation, Transfer] = {
            Operation.P2P: self._there_and_back,
            Operation.ALL_REDUCE: lambda: dist.all_reduce(self._whole, group=group),
            Operation.ALL_GATHER: self._all_gather,
            Operation.REDUCE_SCATTER: self._reduce_scatter,
            Operation.ALL_TO_ALL: self._all_to_all,
        }
        self._transfer = transfers[operation]

    def timed(self, count: int) -> list[float]:
        """Run the transfer `count` times, back to back; ms of each.

        A p2p transfer goes there and back: its time is half of that, so that both ends agree.
        """
        watches = []
        for _ in range(count):
            watch = Stopwatch(self.device)
            watch.mark()
            self._transfer()
            watch.mark()
            watches.append(watch)
        halves = 2 if self.operation is Operation.P2P else 1
        return [watch.intervals_ms()[0] / halves for watch in watches]

    def _there_and_back(self) -> None:
        peer = dist.get_global_rank(_group(self.group), 1 - self._rank)
        if self._rank == 0:
            dist.send(self._whole, peer, group=self.group)
            dist.recv(self._other, peer, group=self.group)
        else:
            dist.recv(self._other, peer, group=self.group)
            dist.send(self._whole, peer, group=self.group)

    def _all_gather(self) -> None:
        dist.all_gather_into_tensor(self._whole, self._share, group=self.group)

    def _reduce_scatter(self) -> None:
        dist.reduce_scatter_tensor(self._share, self._whole, group=self.group)

    def _all_to_all(self) -> None:
        dist.all_to_all_single(self._other, self._whole, group=self.group)


def _group(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    return group if group is not None else dist.group.WORLD  # type: ignore[return-value]
