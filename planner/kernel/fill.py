"""Compiled fill of one template: planner/fill/template.py on arrays."""

from __future__ import annotations

from typing import Any

from planner.kernel.jit import in_place, inlined
from planner.kernel.options import stage_options
from planner.kernel.packing import REPLICA, STAGE, free_slots, pack, replicas_by_counting
from planner.kernel.price import price
from planner.kernel.split import split_blocks
from planner.kernel.state import (
    ALLOWED,
    AT_BATCH,
    AT_KIND,
    BATCH,
    BEST,
    BEST_FIRST,
    BEST_TILING,
    BLOCKS,
    CHOSEN,
    CODE,
    DEPTH,
    EVALUATIONS,
    FIRST,
    FREE,
    KEPT_BLOCKS,
    KEPT_CHOSEN,
    KIND,
    MEMORY,
    NO_LINK,
    NO_PACKING,
    NO_ROWS,
    OF_TILING,
    OPTIONS,
    OTHER,
    REPLICAS,
    TILING,
    TOO_FEW_BLOCKS,
    TOO_FEW_SAMPLES,
    Array,
    Laid,
    Room,
)
from planner.kernel.tables import EP, ETP, GPUS, KIND_GPU, ORDER, TP, Tables
from planner.kernel.transfers import send

CLEARLY = 1 - 1e-9  # as in planner/fill/template.py


@in_place
def prepare(tables: Tables, laid: Laid, k: int, room: Room) -> None:
    """Count what the first k templates leave free; to be called before fills of template k."""
    for n in range(room.node_int.shape[1]):
        room.node_int[FREE, n] = tables.node_int[GPUS, n]
    for j in range(k):
        depth = laid.shape[DEPTH, j]
        for r in range(laid.shape[REPLICAS, j]):
            for s in range(depth):
                tp = tables.kind_int[TP, laid.stage[KIND, j, s]]
                room.node_int[FREE, laid.node[j, r * depth + s]] -= tp
    free_slots(tables, room.node_int[FREE], room.slots)


@inlined
def most_replicas(tables: Tables, laid: Laid, k: int, kinds: Array, depth: int, room: Room) -> Any:
    """The DP degree of template k: the most replicas that pack and get a sample; else 0.

    room.why says why 0. Leaves the nodes of the placement by stage in laid.node[k].
    """
    room.why[CODE] = TOO_FEW_SAMPLES
    ceiling = tables.global_batch
    for j in range(k):
        ceiling -= laid.shape[REPLICAS, j]
    if ceiling < 1:
        return 0
    room.why[CODE] = NO_PACKING
    r = min(ceiling, replicas_by_counting(tables, room.slots, kinds, depth))
    while r > 0 and not pack(tables, room, kinds, depth, r, STAGE, laid.node[k]):
        r -= 1
    return r


@inlined
def refuse(room: Room) -> None:
    """Count the refusal that room.why holds."""
    code = room.why[CODE]
    room.tally[code] += 1
    if code >= MEMORY:
        room.closest[code] = min(room.closest[code], room.over[0])
    if code == NO_ROWS:
        room.no_rows[room.why[AT_KIND], room.why[AT_BATCH]] += 1


@in_place
def price_split(tables: Tables, laid: Laid, k: int, pace: int, room: Room) -> float:
    """Split by the allowed options and price the whole plan; -1 where it is refused."""
    room.why[EVALUATIONS] += 1
    depth = laid.shape[DEPTH, k]
    if not split_blocks(tables, room, depth, pace):
        refuse(room)
        return -1.0
    low = 0
    for s in range(depth):
        laid.stage[FIRST, k, s] = low
        x = room.options.whole[OF_TILING, s, room.options.stage_int[CHOSEN, s]]
        laid.stage[TILING, k, s] = x
        low += room.options.stage_int[BLOCKS, s]
    laid.stage[FIRST, k, depth] = low
    took = price(tables, laid, k + 1, room)
    if took < 0:
        refuse(room)
    return float(took)


@in_place
def _keep(room: Room, depth: int) -> None:
    for s in range(depth):
        room.options.stage_int[KEPT_CHOSEN, s] = room.options.stage_int[CHOSEN, s]
        room.options.stage_int[KEPT_BLOCKS, s] = room.options.stage_int[BLOCKS, s]


@in_place
def _width(tables: Tables, room: Room, s: int, x: int) -> Any:
    """Devices that one copy of the experts takes at an option."""
    tiling = room.options.whole[OF_TILING, s, x]
    return tables.tile[EP, tiling] * tables.tile[ETP, tiling]


@in_place
def _tiled(tables: Tables, laid: Laid, k: int, pace: int, room: Room) -> float:
    """The best tilings and split of one (template, micro-batch, placement); -1 if none fits.

    First the split chooses among all tilings of at least so many devices a copy, for every number
    there is; then one kind of stage at a time is tiled otherwise, while the iteration gets shorter.
    """
    depth = laid.shape[DEPTH, k]
    best = -1.0
    size = 0
    while True:
        larger = 1 << 60
        for s in range(depth):
            for x in range(room.options.stage_int[OPTIONS, s]):
                width = _width(tables, room, s, x)
                if size < width < larger:
                    larger = width
        if larger == 1 << 60:
            break
        size = larger
        for s in range(depth):
            widest = 0
            for x in range(room.options.stage_int[OPTIONS, s]):
                widest = max(widest, _width(tables, room, s, x))
            for x in range(room.options.stage_int[OPTIONS, s]):
                room.options.whole[ALLOWED, s, x] = _width(tables, room, s, x) >= min(size, widest)
        took = price_split(tables, laid, k, pace, room)
        if took >= 0 and (best < 0 or took < best * CLEARLY):
            best = took
            _keep(room, depth)
    if best < 0:
        return best
    better = True
    while better:
        better = False
        for lead in range(depth):
            q = laid.stage[KIND, k, lead]
            seen = False
            for s in range(lead):
                seen = seen or laid.stage[KIND, k, s] == q
            if seen:
                continue
            for tiling in tables.tile[ORDER]:
                if not _allow(laid, k, q, tiling, room):
                    continue
                took = price_split(tables, laid, k, pace, room)
                if took >= 0 and took < best * CLEARLY:
                    best = took
                    better = True
                    _keep(room, depth)
    return best


@in_place
def _allow(laid: Laid, k: int, q: int, tiling: int, room: Room) -> bool:
    """Allow each stage only what it has, those of kind q only another tiling; False if none has."""
    options = room.options
    changes = False
    for s in range(laid.shape[DEPTH, k]):
        kept = options.stage_int[KEPT_CHOSEN, s]
        has = False
        for x in range(options.stage_int[OPTIONS, s]):
            allowed = x == kept
            if laid.stage[KIND, k, s] == q:
                allowed = options.whole[OF_TILING, s, x] == tiling
            options.whole[ALLOWED, s, x] = allowed
            has = has or allowed
            changes = changes or (allowed and x != kept)
        if not has:
            return False
    return changes


@inlined
def paces(tables: Tables, laid: Laid, k: int) -> tuple[int, int]:
    """M of template k if it trained the batch alone, and in step with the k before it."""
    batch = tables.global_batch
    each = laid.shape[REPLICAS, k] * tables.size[laid.shape[BATCH, k]]
    alone = -(-batch // each)
    if k == 0:
        return alone, alone
    for j in range(k):
        each += laid.shape[REPLICAS, j] * tables.size[laid.shape[BATCH, j]]
    return alone, max(1, batch // each)


@in_place
def fill_placed(tables: Tables, laid: Laid, k: int, room: Room) -> float:
    """Fill template k, whose kinds, replicas, nodes and micro-batch stand in `laid`.

    The iteration time of the whole plan in ms, -1 where it is refused (room.why). Layers and
    tilings are then in `laid`.
    """
    depth = laid.shape[DEPTH, k]
    alone, pace = paces(tables, laid, k)
    if not send(tables, laid, k + 1, room):
        room.why[CODE] = NO_LINK
        room.why[EVALUATIONS] += 1
        refuse(room)
        return -1.0
    if not stage_options(tables, laid, k, alone, room):
        room.why[EVALUATIONS] += 1
        refuse(room)
        return -1.0
    if not tables.experts > 1:
        return float(price_split(tables, laid, k, pace, room))
    took = _tiled(tables, laid, k, pace, room)
    if took >= 0:
        low = 0
        for s in range(depth):
            laid.stage[FIRST, k, s] = low
            low += room.options.stage_int[KEPT_BLOCKS, s]
            x = room.options.stage_int[KEPT_CHOSEN, s]
            laid.stage[TILING, k, s] = room.options.whole[OF_TILING, s, x]
        laid.stage[FIRST, k, depth] = low
    return float(took)


@in_place
def fill(
    tables: Tables, laid: Laid, k: int, kinds: Array, depth: int, fewer: int, room: Room
) -> float:
    """Fill a new template k behind k earlier ones: the shortest iteration of the whole plan in ms.

    -1 where nothing fits; else `laid` holds the template. `prepare` must have been called for the
    earlier ones. Counts evaluations and refusals in `room`.
    """
    if depth > tables.blocks or depth > laid.stage.shape[2] - 1:
        room.why[CODE] = TOO_FEW_BLOCKS
        room.why[EVALUATIONS] += 1
        refuse(room)
        return -1.0
    r = most_replicas(tables, laid, k, kinds, depth, room) - fewer
    if r < 1:
        room.why[EVALUATIONS] += 1
        refuse(room)
        return -1.0
    laid.shape[DEPTH, k], laid.shape[REPLICAS, k] = depth, r
    for s in range(depth):
        laid.stage[KIND, k, s] = kinds[s]
    groups = r * depth
    pack(tables, room, kinds, depth, r, REPLICA, room.spare[OTHER])
    if fewer > 0:
        pack(tables, room, kinds, depth, r, STAGE, laid.node[k])
    same = True
    for i in range(groups):
        same = same and room.spare[OTHER, i] == laid.node[k, i]
    best = -1.0
    best_batch = 0
    for b in range(tables.size.shape[0]):
        known = False
        for s in range(depth):
            known = known or tables.profiled[tables.kind_int[KIND_GPU, kinds[s]], b]
        if not known:
            continue
        laid.shape[BATCH, k] = b
        for _ in range(1 if same else 2):
            took = fill_placed(tables, laid, k, room)
            if took >= 0 and (best < 0 or took < best):
                best, best_batch = took, b
                for s in range(depth):
                    room.options.stage_int[BEST_FIRST, s] = laid.stage[FIRST, k, s + 1]
                    room.options.stage_int[BEST_TILING, s] = laid.stage[TILING, k, s]
                for i in range(groups):
                    room.spare[BEST, i] = laid.node[k, i]
            if not same:
                _swap(laid.node[k], room.spare[OTHER], groups)
    if best >= 0:
        laid.shape[BATCH, k] = best_batch
        laid.stage[FIRST, k, 0] = 0
        for s in range(depth):
            laid.stage[FIRST, k, s + 1] = room.options.stage_int[BEST_FIRST, s]
            laid.stage[TILING, k, s] = room.options.stage_int[BEST_TILING, s]
        for i in range(groups):
            laid.node[k, i] = room.spare[BEST, i]
    return best


@in_place
def _swap(a: Array, b: Array, count: int) -> None:
    for i in range(count):
        a[i], b[i] = b[i], a[i]


@in_place
def fill_many(
    tables: Tables,
    laid: Laid,
    k: int,
    kinds: Array,
    depths: Array,
    fewer: Array,
    first: int,
    last: int,
    most: int,
    room: Room,
    times: Array,
) -> Any:
    """Fill structures first..last, each as template k, until `most` evaluations are made.

    kinds: (structures, D). times: iteration in ms of each, -1 where none fits. The index behind
    the last one done.
    """
    prepare(tables, laid, k, room)
    for i in range(first, last):
        if room.why[EVALUATIONS] >= most:
            return i
        times[i] = fill(tables, laid, k, kinds[i], depths[i], fewer[i], room)
    return last


@in_place
def price_laid(tables: Tables, laid: Laid, count: int, room: Room) -> float:
    """Iteration time of `count` filled templates in ms, -1 where it is refused (room.why)."""
    if not send(tables, laid, count, room):
        room.why[CODE] = NO_LINK
        return -1.0
    return float(price(tables, laid, count, room))
