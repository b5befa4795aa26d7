"""Compiled stage options: planner/fill/options.py on arrays."""

from __future__ import annotations

import numpy as np

from planner.kernel.jit import inlined
from planner.kernel.price import dispatch
from planner.kernel.state import (
    ALLOWED,
    AT_BATCH,
    AT_KIND,
    BATCH,
    BLOCK_BYTES,
    BLOCK_MS,
    BLOCK_TRANSIENT,
    CODE,
    DEPTH,
    END_TRANSIENT,
    FIXED_BYTES,
    FIXED_MS,
    KIND,
    LIMIT,
    NO_ROWS,
    OF_TILING,
    OPTIONS,
    REPLICAS,
    SEND,
    Array,
    Laid,
    Room,
)
from planner.kernel.tables import (
    ACTIVATION,
    EMBEDDING,
    EP,
    ETP,
    EXPERTS,
    FRAMEWORK,
    HEAD,
    HOST,
    KIND_GPU,
    MS,
    POOL,
    STATE,
    STATE_ALONE,
    TP,
    TRANSIENT,
    Tables,
)


@inlined
def stage_options(tables: Tables, laid: Laid, k: int, alone: int, room: Room) -> bool:
    """Write every way to run each stage of template k; False where a stage has none.

    alone: M of the template alone, for what is in flight. Reads stage_real[SEND]. Of several pools
    the slowest and fullest figures count, each for itself.
    """
    for s in range(laid.shape[DEPTH, k]):
        rows = 0
        for x in range(tables.tile.shape[1]):
            if stage_option(tables, laid, k, s, x, rows, alone, room):
                rows += 1
        room.options.stage_int[OPTIONS, s] = rows
        if rows == 0:
            room.why[CODE] = NO_ROWS
            room.why[AT_KIND], room.why[AT_BATCH] = laid.stage[KIND, k, s], laid.shape[BATCH, k]
            return False
    return True


@inlined
def stage_option(
    tables: Tables, laid: Laid, k: int, s: int, x: int, row: int, alone: int, room: Room
) -> bool:
    """Write stage s in tiling x as its option `row`; False where it has no profiles or is none."""
    if tables.experts > 1 and not _exists(tables, laid, k, s, x):
        return False
    depth, replicas, b = laid.shape[DEPTH, k], laid.shape[REPLICAS, k], laid.shape[BATCH, k]
    options, q = room.options, laid.stage[KIND, k, s]
    gpu = tables.kind_int[KIND_GPU, q]
    options.real[:, s, row] = 0.0
    options.block[:, s, row, :] = 0.0
    options.stage_real[LIMIT, s] = np.inf
    known = True
    before = -1
    for r in range(replicas if tables.gpu_pools[gpu] > 1 else 1):
        p = tables.node_int[POOL, laid.node[k, r * depth + s]]
        if p != before:
            before = p
            kept = min(alone, depth - s)
            _add_ends(tables.end, options.real, s, row, p, q, b, depth, kept)
            _add_blocks(tables.block, options.block, s, row, p, q, b, x, kept)
            limit = min(options.stage_real[LIMIT, s], tables.pool_limit[p])
            options.stage_real[LIMIT, s] = limit
            known = known and not np.isnan(
                tables.end[EMBEDDING, MS, p, q, b] + tables.end[HEAD, MS, p, q, b]
            )
            for kind in range(tables.before.shape[1]):
                known = known and not np.isnan(tables.block[MS, p, q, b, x, kind])
    for kind in range(tables.before.shape[1]):
        if tables.gradient[EXPERTS, kind] > 0:
            more = dispatch(tables, laid, k, s, x, room)
            known = known and not np.isnan(more)
            options.block[BLOCK_MS, s, row, kind] += more
    if known:
        base = tables.gpu_real[HOST, gpu] + room.stage_real[SEND, k, s]
        options.real[FIXED_MS, s, row] += base
        options.real[FIXED_BYTES, s, row] += tables.gpu_real[FRAMEWORK, gpu]
        options.whole[OF_TILING, s, row] = x
        options.whole[ALLOWED, s, row] = 1
    return known


@inlined
def _add_ends(
    end: Array, real: Array, s: int, row: int, p: int, q: int, b: int, depth: int, kept: int
) -> None:
    """Raise the fixed figures of a stage to those of its embedding and head on a pool."""
    ms = nbytes = transient = 0.0
    if s == 0:
        ms += end[EMBEDDING, MS, p, q, b]
        nbytes += end[EMBEDDING, STATE, p, q, b] + end[EMBEDDING, ACTIVATION, p, q, b] * kept
        transient = end[EMBEDDING, TRANSIENT, p, q, b]
    if s == depth - 1:
        ms += end[HEAD, MS, p, q, b]
        nbytes += end[HEAD, STATE_ALONE if depth == 1 else STATE, p, q, b]
        nbytes += end[HEAD, ACTIVATION, p, q, b] * kept
        transient = max(transient, end[HEAD, TRANSIENT, p, q, b])
    real[FIXED_MS, s, row] = max(real[FIXED_MS, s, row], ms)
    real[FIXED_BYTES, s, row] = max(real[FIXED_BYTES, s, row], nbytes)
    real[END_TRANSIENT, s, row] = max(real[END_TRANSIENT, s, row], transient)


@inlined
def _add_blocks(
    block: Array, raised: Array, s: int, row: int, p: int, q: int, b: int, x: int, kept: int
) -> None:
    """Raise the figures per block of a stage to those on a pool."""
    for kind in range(block.shape[5]):
        need = block[STATE, p, q, b, x, kind] + block[ACTIVATION, p, q, b, x, kind] * kept
        ms, extra = block[MS, p, q, b, x, kind], block[TRANSIENT, p, q, b, x, kind]
        raised[BLOCK_MS, s, row, kind] = max(raised[BLOCK_MS, s, row, kind], ms)
        raised[BLOCK_BYTES, s, row, kind] = max(raised[BLOCK_BYTES, s, row, kind], need)
        raised[BLOCK_TRANSIENT, s, row, kind] = max(raised[BLOCK_TRANSIENT, s, row, kind], extra)


@inlined
def _exists(tables: Tables, laid: Laid, k: int, s: int, x: int) -> bool:
    """Whether a stage may be tiled so: divisible, and each ETP group inside one node."""
    tp, depth = tables.kind_int[TP, laid.stage[KIND, k, s]], laid.shape[DEPTH, k]
    ep, etp = tables.tile[EP, x], tables.tile[ETP, x]
    if not tables.tiling_free and (ep != 1 or etp != tp):
        return False
    devices = tp * laid.shape[REPLICAS, k]
    if tables.experts % ep or tables.expert_width % etp or devices % (ep * etp):
        return False
    for first in range(0, devices, etp):
        home = laid.node[k, (first // tp) * depth + s]
        for j in range(1, etp):
            if laid.node[k, ((first + j) // tp) * depth + s] != home:
                return False
    return True
