"""The price of one template with its experts tiled as it was before, not in all ways there are.

With experts the fill prices a template some twenty times, once or more for every tiling, and looks
up every stage in each. A search that goes from plan to plan knows a good tiling of most kinds of
stage. The price is the same as the fill gives for that tiling.
"""

from __future__ import annotations

import numpy as np

from planner.kernel.fill import price_split, refuse
from planner.kernel.jit import in_place, inlined
from planner.kernel.options import add_blocks, add_ends, tiling_exists
from planner.kernel.price import dispatch
from planner.kernel.state import (
    ALLOWED,
    AT_BATCH,
    AT_KIND,
    BATCH,
    BLOCK_MS,
    CODE,
    DEPTH,
    EVALUATIONS,
    FIXED_BYTES,
    FIXED_MS,
    KIND,
    LIMIT,
    NO_LINK,
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
    EMBEDDING,
    EXPERTS,
    FRAMEWORK,
    HEAD,
    HOST,
    KIND_GPU,
    MS,
    POOL,
    Tables,
)
from planner.kernel.transfers import send


@in_place
def price_hinted(tables: Tables, laid: Laid, k: int, tiles: Array, room: Room) -> float:
    """As planner.kernel.fill.fill_placed, each stage tiled as its hint says.

    tiles: (D,) a tiling each, negative for none: then as the first other stage of the kind, and
    where none has a hint or that tiling does not exist, as the split takes of all. The iteration
    of the whole plan in ms, -1 where it is refused.
    """
    depth, batch = laid.shape[DEPTH, k], tables.global_batch
    each = laid.shape[REPLICAS, k] * tables.size[laid.shape[BATCH, k]]
    alone = -(-batch // each)
    pace = alone
    if k > 0:
        for j in range(k):
            each += laid.shape[REPLICAS, j] * tables.size[laid.shape[BATCH, j]]
        pace = max(1, batch // each)
    if not send(tables, laid, k + 1, room):
        room.why[CODE] = NO_LINK
        room.why[EVALUATIONS] += 1
        refuse(room)
        return -1.0
    for s in range(depth):
        q = laid.stage[KIND, k, s]
        hint, rows = tiles[s], 0
        for u in range(depth):
            if hint < 0 and laid.stage[KIND, k, u] == q:
                hint = tiles[u]
        # One call, for it is inlined: the hint alone, and all there are where that gives nothing.
        low, high = (hint, hint + 1) if hint >= 0 else (0, tables.tile.shape[1])
        while True:
            for x in range(low, high):
                if _option(tables, laid, k, s, x, rows, alone, room):
                    rows += 1
            if rows > 0 or high - low == tables.tile.shape[1]:
                break
            low, high = 0, tables.tile.shape[1]
        room.options.stage_int[OPTIONS, s] = rows
        if rows == 0:
            room.why[CODE] = NO_ROWS
            room.why[AT_KIND], room.why[AT_BATCH] = q, laid.shape[BATCH, k]
            room.why[EVALUATIONS] += 1
            refuse(room)
            return -1.0
    return float(price_split(tables, laid, k, pace, room))


@inlined
def _option(
    tables: Tables, laid: Laid, k: int, s: int, x: int, row: int, alone: int, room: Room
) -> bool:
    """Write stage s in tiling x as its option `row`; False where that has no profiles or is none.

    One option of planner.kernel.options.stage_options.
    """
    if not tiling_exists(tables, laid, k, s, x):
        return False
    depth, replicas, b = laid.shape[DEPTH, k], laid.shape[REPLICAS, k], laid.shape[BATCH, k]
    options, q = room.options, laid.stage[KIND, k, s]
    gpu = tables.kind_int[KIND_GPU, q]
    options.real[:, s, row] = 0.0
    options.block[:, s, row, :] = 0.0
    options.stage_real[LIMIT, s] = np.inf
    before = -1
    for r in range(replicas if tables.gpu_pools[gpu] > 1 else 1):
        p = tables.node_int[POOL, laid.node[k, r * depth + s]]
        if p == before:
            continue
        before = p
        kept = min(alone, depth - s)
        add_ends(tables.end, options.real, s, row, p, q, b, depth, kept)
        add_blocks(tables.block, options.block, s, row, p, q, b, x, kept)
        options.stage_real[LIMIT, s] = min(options.stage_real[LIMIT, s], tables.pool_limit[p])
        if np.isnan(tables.end[EMBEDDING, MS, p, q, b] + tables.end[HEAD, MS, p, q, b]):
            return False
        for kind in range(tables.before.shape[1]):
            if np.isnan(tables.block[MS, p, q, b, x, kind]):
                return False
    for kind in range(tables.before.shape[1]):
        if tables.gradient[EXPERTS, kind] > 0:
            more = dispatch(tables, laid, k, s, x, room)
            if np.isnan(more):
                return False
            options.block[BLOCK_MS, s, row, kind] += more
    options.real[FIXED_MS, s, row] += tables.gpu_real[HOST, gpu] + room.stage_real[SEND, k, s]
    options.real[FIXED_BYTES, s, row] += tables.gpu_real[FRAMEWORK, gpu]
    options.whole[OF_TILING, s, row] = x
    options.whole[ALLOWED, s, row] = 1
    return True
