"""Links between hosts: this process is one rank of many that torchrun or srun started."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from profiler.host import Devices, HostFacts
from profiler.measure.links import LinkListener, LinkOutcome, Transfer, sizes
from profiler.measure.patience import Patience
from profiler.measure.timing import figure, repetitions, steady
from specs.errors import HostError
from specs.profile import LinkProfile, NewRun, Operation, RunStatus, Source
from specs.topology import Topology

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from db.store import Store

WINDOW_S = 0.25


@dataclass(frozen=True, slots=True)
class Spread:
    """Where this process stands among all: rank, place on its host, number of its host."""

    rank: int
    ranks: int
    local_rank: int
    local_ranks: int
    node: int

    @property
    def nodes(self) -> int:
        """Number of hosts; each runs the same number of processes."""
        return self.ranks // self.local_ranks


_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
_SLURM = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", "SLURM_NODEID")


def spread_of(environment: Mapping[str, str]) -> Spread | None:
    """What torchrun or srun says of this process, None where it was started by itself.

    Raises HostError where all processes are on one host, or hosts run different numbers of them.
    """
    for names in (_TORCHRUN, _SLURM):
        values = [environment.get(name, "") for name in names]
        if all(value.isdecimal() for value in values):
            spread = Spread(*map(int, values))
            break
    else:
        return None
    if spread.nodes * spread.local_ranks != spread.ranks:
        raise HostError(
            f"{spread.ranks} processes with {spread.local_ranks} on this host: every host has to "
            "run as many as the others"
        )
    if spread.nodes < 2:
        raise HostError(
            "all processes are on one host: start arachne-prof links without torchrun or srun, or "
            "on two hosts"
        )
    if not environment.get("MASTER_ADDR") or not environment.get("MASTER_PORT"):
        raise HostError(
            "MASTER_ADDR and MASTER_PORT are not set: torchrun sets them; with srun, export the "
            "first host's name and a free port"
        )
    return spread


def pair_counts(local_ranks: int) -> list[int]:
    """How many pairs send at the same time: 1, 2, 4, ... up to the processes of a host."""
    return [1 << i for i in range(local_ranks.bit_length())]


def spread_transfers(spread: Spread, largest: int) -> list[Transfer]:
    """Every point between hosts, small messages first.

    p2p over 2n ranks is n pairs that send at once, the bytes of all together; a collective runs
    over one process of each host, for every place on the host at the same time.
    """
    points = []
    for size in sizes(largest):
        for pairs in pair_counts(spread.local_ranks):
            points.append(Transfer(Operation.P2P, 2 * pairs, size // (4 * pairs) * (4 * pairs)))
        for operation in (o for o in Operation if o is not Operation.P2P):
            n = spread.nodes
            points.append(Transfer(operation, n, size // (4 * n) * (4 * n)))
    return points


def measure_spread(
    spread: Spread,
    devices: Devices,
    host: HostFacts,
    largest: int,
    open_store: Callable[[], Store],
    listener: LinkListener,
    patience: Patience,
) -> tuple[int, list[LinkOutcome]] | None:
    """Measure between hosts; run id and outcomes on rank 0, which alone writes, None elsewhere."""
    import torch
    import torch.distributed as dist

    from runtime.process import core_for

    torch.set_num_threads(1)
    if devices.is_cpu:
        os.sched_setaffinity(0, {core_for(spread.local_rank, list(devices.cores))})
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    else:
        device = torch.device("cuda", spread.local_rank)
        torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl")
    try:
        ranks = _Ranks(spread, device, devices.gpu)
        points = spread_transfers(spread, largest)
        if spread.rank:
            for point in points:
                ranks.measured(point, patience)
            return None
        with open_store() as store:
            return _written(ranks, points, store, host, listener, patience)
    finally:
        dist.destroy_process_group()


def _written(
    ranks: _Ranks,
    points: Sequence[Transfer],
    store: Store,
    host: HostFacts,
    listener: LinkListener,
    patience: Patience,
) -> tuple[int, list[LinkOutcome]]:
    import torch

    spread = ranks.spread
    run_id = store.start_run(
        NewRun(
            source=Source.MEASURED,
            origin=f"arachne-prof links --gpu {ranks.gpus[0]} between {spread.nodes} hosts of "
            f"{spread.local_ranks} processes",
            host=host.fingerprint,
            driver=host.gpu_report.driver,
            torch_version=torch.__version__,
        )
    )
    listener.links_started(run_id, len(points))
    outcomes = []
    for point in points:
        outcome = ranks.measured(point, patience)
        assert outcome is not None
        assert outcome.row is not None
        store.add_link_profiles(run_id, [outcome.row])
        outcomes.append(outcome)
        listener.link_finished(outcome)
    store.finish_run(run_id, RunStatus.COMPLETE)
    return run_id, outcomes


class _Ranks:
    """All ranks, which go through the same points in the same order; rank 0 hears all figures."""

    def __init__(self, spread: Spread, device: torch.device, gpu: str) -> None:
        import torch.distributed as dist

        self.spread = spread
        self.device = device
        # Gathered over all: the other end of a pair may be of another type.
        found: list[Any] = [None] * spread.ranks
        dist.all_gather_object(found, gpu)
        self.gpus: list[str] = found
        self.control = dist.new_group(backend="gloo")
        self.across: dist.ProcessGroup | None = None
        self.pair: dist.ProcessGroup | None = None
        self._pairs = 0
        width = spread.local_ranks
        for place in range(width):
            members = [node * width + place for node in range(spread.nodes)]
            group = dist.new_group(members)
            if place == spread.local_rank:
                self.across = group
        for node in range(0, spread.nodes - 1, 2):
            for place in range(width):
                members = [node * width + place, (node + 1) * width + place]
                group = dist.new_group(members)
                if spread.rank in members:
                    self.pair = group

    def measured(self, point: Transfer, patience: Patience) -> LinkOutcome | None:
        """Time one point on all ranks; the outcome on rank 0."""
        from profiler.measure.transfers import Link

        spread = self.spread
        p2p = point.operation is Operation.P2P
        pairs = point.ranks // 2 if p2p else 0
        group = self.pair if p2p else self.across
        busy = group is not None and (not p2p or spread.local_rank < pairs)
        nbytes = point.nbytes // pairs if p2p else point.nbytes
        link = Link(point.operation, group, nbytes, self.device) if busy else None
        if link is not None:
            link.timed(2)
        pass_ms = max(self._gathered(max(link.timed(3)) if link is not None else 0.0))
        count = repetitions(pass_ms, window_s=WINDOW_S)
        windows: list[list[float]] = []
        good = False
        while not good and len(windows) < patience.windows:
            samples, good = self._window(link, count)
            windows = [samples] if good else [*windows, samples]
        if spread.rank:
            return None
        result = figure([sample for window in windows for sample in window])
        other = self.gpus[spread.local_ranks]
        row = LinkProfile(
            gpu=self.gpus[0],
            topology=Topology.INTER,
            operation=point.operation,
            ranks=point.ranks,
            nbytes=point.nbytes,
            time_ms=result.ms,
            peer_gpu=other if p2p and other != self.gpus[0] else "",
            samples=result.samples,
            mad_ms=result.mad_ms,
        )
        return LinkOutcome(point, row, unsteady=not good)

    def _window(self, link: Any, count: int) -> tuple[list[float], bool]:
        """All ranks' samples, and whether the machines stood still; the same answer on each."""
        import torch.distributed as dist

        from runtime.drift import reference_ms

        before = reference_ms(self.device)
        dist.barrier(group=self.control)
        times = [] if link is None else link.timed(count)
        dist.barrier(group=self.control)
        answers = self._gathered((times, before, reference_ms(self.device)))
        good = all(steady(first, last) for _, first, last in answers)
        return [sample for times, _, _ in answers for sample in times], good

    def _gathered(self, value: Any) -> list[Any]:
        import torch.distributed as dist

        found: list[Any] = [None] * self.spread.ranks
        dist.all_gather_object(found, value, group=self.control)
        return found
