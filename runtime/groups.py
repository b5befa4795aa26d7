"""The process groups of a plan: tensor parallel, experts, owners of gradients, directed edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch.distributed as dist

from runtime.collectives import Group
from runtime.lanes import edges_of
from runtime.owners import Ownership
from specs.layout import expert_slice, ranks_of
from specs.plan import Plan


@dataclass
class Groups:
    """The groups that one rank is in; None for a group of one.

    owners: by owner set. edges: by (sender, receiver), a communicator for each direction: two
    ranks that both send first on one NCCL communicator wait for each other forever.
    """

    tp: Group = None
    ep: Group = None
    etp: Group = None
    owners: dict[tuple[int, ...], Group] = field(default_factory=dict)
    edges: dict[tuple[int, int], Group] = field(default_factory=dict)


def make_groups(plan: Plan, rank: int, ownership: Ownership) -> Groups:
    """Form the groups of a rank; every rank of the plan calls this, after init_process_group.

    Every rank goes through all groups of the plan in one order, as torch wants it: groups that only
    their members form are named by how many groups the member knows, which differs between ranks
    of a ragged plan. It costs those who are not in a group next to nothing.
    """
    made: dict[tuple[int, ...], Group] = {}

    def form(members: Sequence[int]) -> None:
        key = tuple(members)
        if len(key) > 1 and key not in made:
            made[key] = _new_group(key, rank)

    stages = stage_devices(plan)
    for (k, s), replicas in stages.items():
        for members in replicas:
            form(members)
        stage = plan.templates[k].stages[s]
        devices = [device for members in replicas for device in members]
        for number in range(len(devices) if stage.ep * stage.etp > 1 else 0):
            tile = expert_slice(stage, number // stage.tp, number % stage.tp)
            form([devices[d] for d in tile.etp_peers])
            form([devices[d] for d in tile.ep_peers])
    for owners in ownership.sets:
        form(owners)
    edges = {edge: _new_group(edge, rank) for edge in sorted(edges_of(plan))}

    me = ranks_of(plan)[rank]
    stage = plan.templates[me.template].stages[me.stage]
    replicas = stages[me.template, me.stage]
    devices = [device for members in replicas for device in members]
    mine = expert_slice(stage, me.replica, me.tp_rank)
    return Groups(
        tp=made.get(tuple(replicas[me.replica])),
        ep=made.get(tuple(devices[d] for d in mine.ep_peers)),
        etp=made.get(tuple(devices[d] for d in mine.etp_peers)),
        owners={owners: made[owners] for owners in ownership.sets if rank in owners},
        edges={edge: group for edge, group in edges.items() if rank in edge},
    )


def form_groups(plan: Plan, rank: int) -> tuple[Ownership, Groups]:
    """The owner sets of a plan and the groups of a rank; every rank of the plan calls this."""
    ownership = Ownership(plan)
    return ownership, make_groups(plan, rank, ownership)


def _new_group(members: tuple[int, ...], rank: int) -> Group:
    group = dist.new_group(list(members))
    return group if rank in members else None


def stage_devices(plan: Plan) -> dict[tuple[int, int], list[list[int]]]:
    """(template, stage) -> the ranks of each replica, by tensor-parallel rank."""
    found: dict[tuple[int, int], list[list[int]]] = {}
    for place in ranks_of(plan):
        replicas = found.setdefault((place.template, place.stage), [])
        if len(replicas) == place.replica:
            replicas.append([])
        replicas[place.replica].append(place.rank)
    return found
