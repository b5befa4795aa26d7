"""A rank that torchrun or srun started: which rank it is, and how rank 0 hears of the others."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from runtime.records import Assembly, Iteration, RankStep
from specs.errors import HostError
from specs.layout import RankPlace, ranks_of
from specs.plan import Plan

_SLURM = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS", "LOCAL_RANK": "SLURM_LOCALID"}


def launched(environment: Mapping[str, str]) -> dict[str, str]:
    """RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT of torchrun, or from Slurm's own.

    Raises HostError naming what is not set.
    """
    found = {}
    for name, slurm in _SLURM.items():
        value = environment.get(name) or environment.get(slurm)
        if value is None:
            raise HostError(
                f"neither {name} nor {slurm} is set: `arachne-run worker` is started by torchrun "
                "or srun, a process for each device of the plan; on one host use `arachne-run PLAN`"
            )
        found[name] = value
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name not in environment:
            raise HostError(
                f"{name} is not set: with srun export MASTER_ADDR (the host of task 0) and "
                "MASTER_PORT (a free port there)"
            )
        found[name] = environment[name]
    return found


def place_of(plan: Plan, host: str, local_rank: int, world: int) -> RankPlace:
    """Which rank of the plan the process number `local_rank` of a host is.

    The devices of the plan's nodes on that host count in plan order, so each launcher starts as
    many processes on a host as the plan uses devices there. A cluster that names no hosts is one
    host. Raises HostError where numbers of processes and devices differ.
    """
    places = ranks_of(plan)
    if world != len(places):
        raise HostError(f"{world} processes were started, the plan has {len(places)} devices")
    hosts = {plan.cluster.node(place.node).host for place in places}
    if hosts == {""}:
        here = list(places)
    else:
        here = [p for p in places if _same(plan.cluster.node(p.node).host, host)]
    if not here:
        raise HostError(
            f"no node of the plan is on host {host!r}, expected one of: "
            f"{', '.join(sorted(hosts))}; say --host NAME where this host has another name"
        )
    if local_rank >= len(here):
        raise HostError(
            f"process {local_rank} of host {host!r} has no device: the plan uses {len(here)} there"
        )
    return here[local_rank]


def _same(named: str, host: str) -> bool:
    """Whether two names are of one host: equal, or one is the other's first part."""
    return bool(named) and (named == host or named.split(".")[0] == host.split(".")[0])


def meet(environment: Mapping[str, str], timeout_s: float) -> Store:
    """The store at MASTER_ADDR:MASTER_PORT: torchrun's own, else one that task 0 serves."""
    os.environ.update(environment)
    store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=timeout_s)))
    return PrefixStore("arachne-run", store)


class Collector:
    """Rank 0's ear: every rank leaves its steps in the store, rank 0 puts iterations together."""

    def __init__(
        self, store: Store, rank: int, world: int, hear: Callable[[Iteration], None]
    ) -> None:
        self._store = PrefixStore("steps", store)
        self._rank = rank
        self._world = world
        self._hear = hear
        self._assembly = Assembly(world)

    def tell(self, message: Mapping[str, Any]) -> None:
        """Leave a step; rank 0 waits for those of all others."""
        step = message["step"]
        if self._rank != 0:
            self._store.set(f"{step['iteration']}/{self._rank}", json.dumps(step))
            return
        found = [step]
        for rank in range(1, self._world):
            key = f"{step['iteration']}/{rank}"
            found.append(json.loads(self._store.get(key)))
            self._store.delete_key(key)
        for one in found:
            for iteration in self._assembly.add(RankStep.from_json(one)):
                self._hear(iteration)


def this_host() -> str:
    """The name of this host, as clusters name it."""
    return socket.gethostname()
