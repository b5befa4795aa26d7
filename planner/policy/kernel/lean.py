"""A fill that prices fewer candidates than planner/kernel/fill.py, by the same cost.

The full fill prices every micro-batch size in both placements. Here sizes are tried upwards only
while the iteration gets shorter, and the second placement only at the best of them; a search that
knows a good size starts from it. Experts are tiled as a hint says, one price instead of some twenty
for all tilings, which only what is worth it gets. What is kept is a plan priced like any other.
"""

from __future__ import annotations

from typing import Any

from planner.kernel.fill import fill_placed, most_replicas, refuse
from planner.kernel.jit import in_place
from planner.kernel.packing import REPLICA, STAGE, pack
from planner.kernel.state import (
    AT_BATCH,
    BATCH,
    BEST_FIRST,
    BEST_TILING,
    CODE,
    DEPTH,
    EVALUATIONS,
    FIRST,
    KIND,
    OTHER,
    REPLICAS,
    TILING,
    TOO_FEW_BLOCKS,
    Array,
    Laid,
    Room,
)
from planner.kernel.tables import Tables
from planner.policy.kernel.hinted import price_hinted

FIRST_FIT, LARGER, SMALLER, OTHER_ORDER = 0, 1, 2, 3  # what lean_fill looks for
WHOLE, ANY = -1, -2  # hints instead of a tiling: price all of them; take what the split takes
SAME = 1.001


@in_place
def place(
    tables: Tables, laid: Laid, k: int, kinds: Array, depth: int, fewer: int, order: int, room: Room
) -> Any:
    """Pack template k as often as it goes, less `fewer`; the replicas, 0 where none packs.

    Nodes in the placement `order` stand in laid.node[k]. `prepare` must have been called for the
    templates before.
    """
    room.why[CODE] = TOO_FEW_BLOCKS
    if depth > tables.blocks or depth > laid.stage.shape[2] - 1:
        return 0
    r = most_replicas(tables, laid, k, kinds, depth, room) - fewer
    if r < 1:
        return 0
    laid.shape[DEPTH, k], laid.shape[REPLICAS, k] = depth, r
    for s in range(depth):
        laid.stage[KIND, k, s] = kinds[s]
    if fewer > 0 or order == REPLICA:
        pack(tables, room, kinds, depth, r, order, laid.node[k])
    return r


@in_place
def _same(laid: Laid, k: int, groups: int, room: Room) -> bool:
    same = True
    for i in range(groups):
        same = same and room.spare[OTHER, i] == laid.node[k, i]
    return same


@in_place
def _swap(laid: Laid, k: int, groups: int, room: Room) -> None:
    for i in range(groups):
        other = room.spare[OTHER, i]
        room.spare[OTHER, i] = laid.node[k, i]
        laid.node[k, i] = other


@in_place
def _keep(laid: Laid, k: int, room: Room) -> None:
    for s in range(laid.shape[DEPTH, k]):
        room.options.stage_int[BEST_FIRST, s] = laid.stage[FIRST, k, s + 1]
        room.options.stage_int[BEST_TILING, s] = laid.stage[TILING, k, s]


@in_place
def _restore(laid: Laid, k: int, batch: int, room: Room) -> None:
    laid.shape[BATCH, k] = batch
    laid.stage[FIRST, k, 0] = 0
    for s in range(laid.shape[DEPTH, k]):
        laid.stage[FIRST, k, s + 1] = room.options.stage_int[BEST_FIRST, s]
        laid.stage[TILING, k, s] = room.options.stage_int[BEST_TILING, s]


@in_place
def settle(tables: Tables, laid: Laid, k: int, tiles: Array, took: float, room: Room) -> float:
    """Make the hints those of template k as it is laid, and its price what they give again.

    took: the price by which it is laid. With one tiling a stage the split may fall otherwise; where
    that costs more than a thousandth, all tilings are priced whenever this template is.
    """
    for s in range(laid.shape[DEPTH, k]):
        tiles[s] = laid.stage[TILING, k, s]
    again = price_hinted(tables, laid, k, tiles, room)
    if 0 <= again <= took * SAME:
        return again
    tiles[:] = WHOLE
    return float(fill_placed(tables, laid, k, room))


@in_place
def lean_fill(
    tables: Tables,
    laid: Laid,
    k: int,
    kinds: Array,
    depth: int,
    fewer: int,
    batch: int,
    order: int,
    worth: float,
    tiles: Array,
    polish: float,
    room: Room,
) -> float:
    """Fill template k from micro-batch index `batch` in placement `order` (STAGE or REPLICA).

    The iteration of the whole plan in ms, -1 where nothing fits; `laid` then holds the template.
    Where memory refuses the size, smaller ones follow. Neighbouring sizes and the other placement
    are tried only if the first price is at most `worth`. room.why[AT_BATCH] tells which placement
    was kept. tiles: a tiling, WHOLE or ANY for each stage (D,), kept up; empty for a search without
    hints. With hints, all tilings are priced at last only if the price is at most `polish`.
    """
    r = place(tables, laid, k, kinds, depth, fewer, order, room)
    if r < 1:
        room.why[EVALUATIONS] += 1
        refuse(room)
        return -1.0
    groups = r * depth
    hinted = tables.experts > 1 and tiles.shape[0] > 0 and tiles[0] != WHOLE
    settled = True
    if hinted:
        for s in range(depth):
            settled = settled and tiles[s] >= 0
    sizes = tables.size.shape[0]
    start = min(batch, sizes - 1)
    b, kept, best = start, -1, -1.0
    phase = FIRST_FIT
    # One loop and one call: each call that the compiler meets costs it seconds.
    while True:
        laid.shape[BATCH, k] = b
        if hinted:
            took = price_hinted(tables, laid, k, tiles, room)
        else:
            took = fill_placed(tables, laid, k, room)
        better = took >= 0 and (best < 0 or took < best)
        if better:
            best, kept = took, b
            _keep(laid, k, room)
        if phase == FIRST_FIT:
            if not better:
                b -= 1
                if b < 0:
                    return -1.0
                continue
            if best > worth:
                break
            # Above a size that memory refused there is nothing.
            phase = LARGER if b == start else SMALLER
            start = b
            b += 1 if phase == LARGER else -1
        elif phase == LARGER:
            b += 1
            if not better:
                phase = SMALLER if kept == start else OTHER_ORDER
                b = start - 1
        elif phase == SMALLER:
            b -= 1
            if not better:
                phase = OTHER_ORDER
        else:
            if better:
                order = STAGE if order == REPLICA else REPLICA
            else:
                _swap(laid, k, groups, room)
            break
        if phase == LARGER and b >= sizes:
            phase = SMALLER if kept == start else OTHER_ORDER
            b = start - 1
        if phase == SMALLER and b < 0:
            phase = OTHER_ORDER
        if phase == OTHER_ORDER:
            other = STAGE if order == REPLICA else REPLICA
            pack(tables, room, kinds, depth, r, other, room.spare[OTHER])
            if _same(laid, k, groups, room):
                break
            _swap(laid, k, groups, room)
            b = kept
    if hinted and best <= polish:
        took = fill_placed(tables, laid, k, room)
        if 0 <= took < best:
            best, settled = took, False
            _keep(laid, k, room)
    _restore(laid, k, kept, room)
    if tables.experts > 1 and tiles.shape[0] > 0 and not (hinted and settled):
        best = settle(tables, laid, k, tiles, best, room)
    room.why[AT_BATCH] = order
    return best
