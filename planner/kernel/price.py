"""Compiled price of a whole plan: planner/cost.py and memory.py on arrays."""

from __future__ import annotations

import numpy as np

from planner.kernel.jit import in_place, inlined
from planner.kernel.shares import micro_batches
from planner.kernel.state import (
    AT_BATCH,
    AT_KIND,
    BATCH,
    CODE,
    COPIES,
    DEPTH,
    FIRST,
    KIND,
    MEMORY,
    MICRO_BATCHES,
    NO_LINK,
    NO_ROWS,
    NO_TURN,
    OK,
    ONCE,
    PIPE,
    REPLICAS,
    SEND,
    SLOWEST,
    STAGE_MS,
    SYNC,
    TILING,
    TOTAL,
    TOUCHED,
    UPDATES,
    Laid,
    Room,
)
from planner.kernel.sync import synchronise
from planner.kernel.tables import (
    ACTIVATION,
    ALL_TO_ALL,
    EMBEDDING,
    EP,
    ETP,
    EXPERTS,
    FRAMEWORK,
    HEAD,
    HOST,
    KIND_GPU,
    LATENCY,
    MS,
    NIC,
    POOL,
    STATE,
    STATE_ALONE,
    TP,
    TRANSIENT,
    UPDATE,
    UPDATE_ALONE,
    Tables,
)


@in_place
def dispatch(tables: Tables, laid: Laid, k: int, s: int, x: int, room: Room) -> float:
    """Dispatch and combine of one layer with experts for one micro-batch, in ms; NaN: no link.

    Stage s of template k at tiling x; planner/experts.py gives the formula. Uses node_real[SYNC].
    """
    ep, etp = tables.tile[EP, x], tables.tile[ETP, x]
    if ep == 1:
        return 0.0
    q, b, depth = laid.stage[KIND, k, s], laid.shape[BATCH, k], laid.shape[DEPTH, k]
    tp = tables.kind_int[TP, q]
    payload = tables.size[b] * tables.payload_bytes / tp
    for r in range(laid.shape[REPLICAS, k]):
        room.node_real[SYNC, laid.node[k, r * depth + s]] = 0.0
    slowest = 0.0
    crosses = False
    for first in range(0, tp * laid.shape[REPLICAS, k], ep * etp):
        for j in range(etp):
            nodes = 0
            for e in range(ep):
                n = laid.node[k, ((first + j + e * etp) // tp) * depth + s]
                if room.node_int[COPIES, n] == 0:
                    room.node_int[TOUCHED, nodes] = n
                    nodes += 1
                room.node_int[COPIES, n] += 1
            for i in range(nodes):
                n = room.node_int[TOUCHED, i]
                ranks = room.node_int[COPIES, n]
                room.node_int[COPIES, n] = 0
                room.node_real[SYNC, n] += ranks * payload * ((ep - ranks) / ep)
            if nodes == 1:
                pool = tables.node_int[POOL, room.node_int[TOUCHED, 0]]
                inside = tables.link[ALL_TO_ALL + x, pool, q, b]
                if np.isnan(inside):
                    return np.nan
                slowest = max(slowest, inside)
            else:
                crosses = True
    if crosses:
        latency = crossing = 0.0
        for r in range(laid.shape[REPLICAS, k]):
            n = laid.node[k, r * depth + s]
            if room.node_real[SYNC, n] > 0:
                latency = max(latency, tables.node_real[LATENCY, n])
                crossing = max(crossing, room.node_real[SYNC, n] / tables.node_real[NIC, n])
        slowest = max(slowest, latency + crossing)
    return 4.0 * slowest


@inlined
def _stage_times(tables: Tables, laid: Laid, k: int, room: Room) -> bool:
    """Write t_s and the updates of a template's stages; False where a row lacks."""
    depth, b, node = laid.shape[DEPTH, k], laid.shape[BATCH, k], laid.node[k]
    total = longest = 0.0
    for s in range(depth):
        q, x = laid.stage[KIND, k, s], laid.stage[TILING, k, s]
        low, high = laid.stage[FIRST, k, s], laid.stage[FIRST, k, s + 1]
        gpu = tables.kind_int[KIND_GPU, q]
        slowest = update = 0.0
        before = -1
        for r in range(laid.shape[REPLICAS, k] if tables.gpu_pools[gpu] > 1 else 1):
            p = tables.node_int[POOL, node[r * depth + s]]
            if p == before:
                continue
            before = p
            ms = once = 0.0
            if s == 0:
                ms += tables.end[EMBEDDING, MS, p, q, b]
                once += tables.end[EMBEDDING, UPDATE, p, q, b]
            for kind in range(tables.before.shape[1]):
                held = tables.before[high, kind] - tables.before[low, kind]
                if held > 0:
                    ms += held * tables.block[MS, p, q, b, x, kind]
                    once += held * tables.block[UPDATE, p, q, b, x, kind]
            if s == depth - 1:
                ms += tables.end[HEAD, MS, p, q, b]
                once += tables.end[HEAD, UPDATE_ALONE if depth == 1 else UPDATE, p, q, b]
            slowest, update = max(slowest, ms), max(update, once)
            if np.isnan(ms):
                room.why[CODE] = NO_ROWS
                room.why[AT_KIND], room.why[AT_BATCH] = q, b
                return False
        for kind in range(tables.before.shape[1]):
            held = tables.before[high, kind] - tables.before[low, kind]
            if held > 0 and tables.gradient[EXPERTS, kind] > 0:
                slowest += held * dispatch(tables, laid, k, s, x, room)
        took = slowest + tables.gpu_real[HOST, gpu] + room.stage_real[SEND, k, s]
        if np.isnan(took):
            room.why[CODE] = NO_LINK
            return False
        room.stage_real[STAGE_MS, k, s] = took
        room.stage_real[UPDATES, k, s] = update
        total += took
        longest = max(longest, took)
    room.template_real[TOTAL, k] = total
    room.template_real[SLOWEST, k] = longest
    return True


@inlined
def _fits(tables: Tables, laid: Laid, k: int, room: Room) -> bool:
    """Whether every stage of a template fits its fullest node with M_k micro-batches."""
    depth, b, node = laid.shape[DEPTH, k], laid.shape[BATCH, k], laid.node[k]
    for s in range(depth):
        kept = min(room.template_int[MICRO_BATCHES, k], depth - s)
        q, x = laid.stage[KIND, k, s], laid.stage[TILING, k, s]
        low, high = laid.stage[FIRST, k, s], laid.stage[FIRST, k, s + 1]
        gpu = tables.kind_int[KIND_GPU, q]
        before = -1
        for r in range(laid.shape[REPLICAS, k] if tables.gpu_pools[gpu] > 1 else 1):
            p = tables.node_int[POOL, node[r * depth + s]]
            if p == before:
                continue
            before = p
            state = activations = transient = 0.0
            if s == 0:
                state += tables.end[EMBEDDING, STATE, p, q, b]
                activations += tables.end[EMBEDDING, ACTIVATION, p, q, b]
                transient = tables.end[EMBEDDING, TRANSIENT, p, q, b]
            for kind in range(tables.before.shape[1]):
                held = tables.before[high, kind] - tables.before[low, kind]
                if held > 0:
                    state += held * tables.block[STATE, p, q, b, x, kind]
                    activations += held * tables.block[ACTIVATION, p, q, b, x, kind]
                    transient = max(transient, tables.block[TRANSIENT, p, q, b, x, kind])
            if s == depth - 1:
                state += tables.end[HEAD, STATE_ALONE if depth == 1 else STATE, p, q, b]
                activations += tables.end[HEAD, ACTIVATION, p, q, b]
                transient = max(transient, tables.end[HEAD, TRANSIENT, p, q, b])
            need = state + activations * kept + transient + tables.gpu_real[FRAMEWORK, gpu]
            if need > tables.pool_limit[p]:
                room.why[CODE] = MEMORY + s
                room.over[0] = need - tables.pool_limit[p]
                return False
    return True


@inlined
def price(tables: Tables, laid: Laid, count: int, room: Room) -> float:
    """Iteration time of the first `count` templates in ms, after `send`; -1 if refused.

    room.why says why it is refused, room.over by how much memory is exceeded.
    """
    for k in range(count):
        if not _stage_times(tables, laid, k, room):
            return -1.0
    if not micro_batches(tables, laid, count, room):
        room.why[CODE] = NO_TURN
        return -1.0
    for k in range(count):
        if not _fits(tables, laid, k, room):
            return -1.0
    if not synchronise(tables, laid, count, room):
        room.why[CODE] = NO_LINK
        return -1.0
    room.why[CODE] = OK
    return _iteration(laid, count, room)


@inlined
def _iteration(laid: Laid, count: int, room: Room) -> float:
    """max over templates of pipe + max over all stages of g_s, which it writes."""
    pipe = once = 0.0
    for k in range(count):
        depth, batches = laid.shape[DEPTH, k], room.template_int[MICRO_BATCHES, k]
        took = (batches - 1) * room.template_real[SLOWEST, k] + room.template_real[TOTAL, k]
        room.template_real[PIPE, k] = took
        pipe = max(pipe, took)
        for s in range(depth):
            sync = 0.0
            for r in range(laid.shape[REPLICAS, k]):
                sync = max(sync, room.node_real[SYNC, laid.node[k, r * depth + s]])
            room.stage_real[ONCE, k, s] = sync + room.stage_real[UPDATES, k, s]
            once = max(once, room.stage_real[ONCE, k, s])
    return pipe + once
