"""Compiled gradient synchronisation: planner/sync.py on arrays.

Layers between two borders of stages have the same owners, so they are taken together: a segment
of blocks, the embedding, the head.
"""

from __future__ import annotations

import numpy as np

from planner.kernel.jit import in_place, inlined
from planner.kernel.state import (
    COPIES,
    DEPTH,
    EXPERT_CUTS,
    FIRST,
    KIND,
    REPLICAS,
    STAGE_AT,
    STAGE_CUTS,
    SYNC,
    TILING,
    TOUCHED,
    WIDTH_CUTS,
    Array,
    Laid,
    Room,
)
from planner.kernel.tables import BUS, DENSE, EP, ETP, EXPERTS, NIC, TP, Tables


@inlined
def _own(
    node: Array, s: int, depth: int, replicas: int, copies: Array, touched: Array, owners: int
) -> int:
    """Add the nodes of stage s of a template to the owners; how many nodes there are then."""
    for i in range(s, s + replicas * depth, depth):
        n = node[i]
        if copies[n] == 0:
            touched[owners] = n
            owners += 1
        copies[n] += 1
    return owners


@inlined
def _ring(
    node_real: Array,
    copies: Array,
    touched: Array,
    owners: int,
    nbytes: float,
    experts: bool,
    sync: Array,
) -> bool:
    """Charge one all-reduce to the owners, and forget them; False without a bus profile.

    experts: shards of routed experts cross between nodes at the network cards' speed alone.
    """
    if owners > 1:
        slowest = np.inf
        for i in range(owners):
            n = touched[i]
            bandwidth = node_real[NIC, n]
            if copies[n] > 1 and not experts:
                bus = node_real[BUS, n]
                # NaN if the bus has no profile, and so is the time then.
                bandwidth = bus if not bus > bandwidth else bandwidth
            slowest = bandwidth if not bandwidth >= slowest else slowest
        took = 2.0 * (owners - 1) / owners * nbytes / slowest
    else:
        n = touched[0]
        c = copies[n]
        took = 2.0 * (c - 1) / c * nbytes / node_real[BUS, n] if c > 1 else 0.0
    for i in range(owners):
        n = touched[i]
        sync[n] += took
        copies[n] = 0
    return not np.isnan(took)


@in_place
def _sorted_cuts(cuts: Array, count: int) -> int:
    """Sort the first `count` numbers and drop doubles; how many are left."""
    for i in range(1, count):
        value = cuts[i]
        j = i - 1
        while j >= 0 and cuts[j] > value:
            cuts[j + 1] = cuts[j]
            j -= 1
        cuts[j + 1] = value
    kept = 1
    for i in range(1, count):
        if cuts[i] != cuts[kept - 1]:
            cuts[kept] = cuts[i]
            kept += 1
    return kept


@inlined
def synchronise(tables: Tables, laid: Laid, count: int, room: Room) -> bool:
    """Write to node_real[SYNC] the ms of every node; False where a bus has no profile."""
    copies, touched = room.node_int[COPIES], room.node_int[TOUCHED]
    sync, node_real = room.node_real[SYNC], tables.node_real
    stage_at, cuts = room.template_int[STAGE_AT], room.cuts[STAGE_CUTS]
    sync[:] = 0.0
    known = True
    cut = 0
    for k in range(count):
        stage_at[k] = 0
        for s in range(laid.shape[DEPTH, k] + 1):
            cuts[cut] = laid.stage[FIRST, k, s]
            cut += 1
    if count > 1:
        cut = _sorted_cuts(cuts, cut)
    owners = 0
    for k in range(count):
        depth, replicas = laid.shape[DEPTH, k], laid.shape[REPLICAS, k]
        owners = _own(laid.node[k], 0, depth, replicas, copies, touched, owners)
        if tables.tied and depth > 1:
            owners = _own(laid.node[k], depth - 1, depth, replicas, copies, touched, owners)
    nbytes = tables.gradient_embedding
    known = _ring(node_real, copies, touched, owners, nbytes, False, sync)
    for i in range(cut - 1):
        low, high = cuts[i], cuts[i + 1]
        nbytes = expert_bytes = 0.0
        for kind in range(tables.before.shape[1]):
            held = tables.before[high, kind] - tables.before[low, kind]
            nbytes += held * tables.gradient[DENSE, kind]
            expert_bytes += held * tables.gradient[EXPERTS, kind]
        owners = 0
        for k in range(count):
            depth, replicas = laid.shape[DEPTH, k], laid.shape[REPLICAS, k]
            while laid.stage[FIRST, k, stage_at[k] + 1] <= low:
                stage_at[k] += 1
            owners = _own(laid.node[k], stage_at[k], depth, replicas, copies, touched, owners)
        known = _ring(node_real, copies, touched, owners, nbytes, False, sync) and known
        if expert_bytes > 0:
            known = _experts(tables, laid, count, room, expert_bytes) and known
    if tables.gradient_head > 0:
        owners = 0
        for k in range(count):
            depth, replicas = laid.shape[DEPTH, k], laid.shape[REPLICAS, k]
            owners = _own(laid.node[k], depth - 1, depth, replicas, copies, touched, owners)
        nbytes = tables.gradient_head
        known = _ring(node_real, copies, touched, owners, nbytes, False, sync) and known
    return known


@in_place
def _experts(tables: Tables, laid: Laid, count: int, room: Room, nbytes: float) -> bool:
    """Charge the routed experts of the stages STAGE_AT, piece by piece.

    A piece is a range of experts times a range of their width that no template cuts.
    """
    copies, touched = room.node_int[COPIES], room.node_int[TOUCHED]
    sync, stage_at = room.node_real[SYNC], room.template_int[STAGE_AT]
    expert_cuts, width_cuts = room.cuts[EXPERT_CUTS], room.cuts[WIDTH_CUTS]
    experts, width = tables.experts, tables.expert_width
    expert_cut = width_cut = 0
    for k in range(count):
        x = laid.stage[TILING, k, stage_at[k]]
        for e in range(tables.tile[EP, x] + 1):
            expert_cuts[expert_cut] = e * experts // tables.tile[EP, x]
            expert_cut += 1
        for j in range(tables.tile[ETP, x] + 1):
            width_cuts[width_cut] = j * width // tables.tile[ETP, x]
            width_cut += 1
    expert_cut = _sorted_cuts(expert_cuts, expert_cut)
    width_cut = _sorted_cuts(width_cuts, width_cut)
    known = True
    for i in range(expert_cut - 1):
        for j in range(width_cut - 1):
            piece = (expert_cuts[i + 1] - expert_cuts[i]) * (width_cuts[j + 1] - width_cuts[j])
            owners = 0
            for k in range(count):
                s, depth = stage_at[k], laid.shape[DEPTH, k]
                x = laid.stage[TILING, k, s]
                ep, etp = tables.tile[EP, x], tables.tile[ETP, x]
                shard = expert_cuts[i] * ep // experts * etp + width_cuts[j] * etp // width
                tp = tables.kind_int[TP, laid.stage[KIND, k, s]]
                for device in range(shard, tp * laid.shape[REPLICAS, k], ep * etp):
                    n = laid.node[k, (device // tp) * depth + s]
                    if copies[n] == 0:
                        touched[owners] = n
                        owners += 1
                    copies[n] += 1
            share = piece / (experts * width)
            nbytes_piece = nbytes * share
            known = (
                _ring(tables.node_real, copies, touched, owners, nbytes_piece, True, sync) and known
            )
    return known
