"""Compiled packing: the same nodes as planner/packing.py, without a search for each group.

Within one TP degree best fit empties a node until less than the degree is left before it opens the
next one, so the nodes of a type sorted by (free, the last placed into first, index) are simply
used up in order. Cost: nodes + groups.
"""

from __future__ import annotations

from planner.kernel.jit import in_place, inlined
from planner.kernel.state import CURSOR, FREE, LAST, LEFT, LENGTH, Array, Room
from planner.kernel.tables import GPU, KIND_GPU, POOL, TP, Tables

STAGE, REPLICA = 0, 1  # placements, in the order of planner.packing.Placement


@in_place
def free_slots(tables: Tables, free: Array, slots: Array) -> None:
    """Per kind, how many TP groups of its degree the free GPUs of its type can hold."""
    for q in range(tables.kind_int.shape[1]):
        slots[q] = 0
    for n in range(free.shape[0]):
        for q in range(tables.kind_int.shape[1]):
            if tables.kind_int[KIND_GPU, q] == tables.node_int[GPU, n]:
                slots[q] += free[n] // tables.kind_int[TP, q]


@inlined
def replicas_by_counting(tables: Tables, slots: Array, kinds: Array, depth: int) -> int:
    """No more replicas than this pack (DESIGN section 13, 17)."""
    most = 1 << 60
    for s in range(depth):
        q = kinds[s]
        wanted = 0
        for u in range(depth):
            if tables.kind_int[KIND_GPU, kinds[u]] == tables.kind_int[KIND_GPU, q]:
                wanted += tables.kind_int[TP, kinds[u]] // tables.kind_int[TP, q]
        most = min(most, slots[q] // wanted)
    return most


@inlined
def _line_up(tables: Tables, room: Room, q: int) -> None:
    """Queue the nodes that a group of this kind can go to, fewest free GPUs first."""
    tp, gpu = tables.kind_int[TP, q], tables.kind_int[KIND_GPU, q]
    least, most = 1 << 30, 0
    nodes = room.node_int.shape[1]
    for n in range(nodes):
        if tables.node_int[GPU, n] == gpu and tables.pool_ok[tables.node_int[POOL, n], q]:
            left = room.node_int[LEFT, n]
            if left >= tp:
                least, most = min(least, left), max(most, left)
    count = 0
    for size in range(least, most + 1):
        last = room.type_int[LAST, gpu]
        if (
            size == least
            and last >= 0
            and room.node_int[LEFT, last] == size
            and tables.pool_ok[tables.node_int[POOL, last], q]
        ):
            room.queue[gpu, count] = last
            count += 1
        for n in range(nodes):
            if (
                room.node_int[LEFT, n] == size
                and tables.node_int[GPU, n] == gpu
                and not (size == least and n == last)
                and tables.pool_ok[tables.node_int[POOL, n], q]
            ):
                room.queue[gpu, count] = n
                count += 1
    room.type_int[LENGTH, gpu] = count
    room.type_int[CURSOR, gpu] = 0


@inlined
def _take(tables: Tables, room: Room, q: int) -> int:
    """The node for the next group of this kind, -1 for none."""
    tp, gpu = tables.kind_int[TP, q], tables.kind_int[KIND_GPU, q]
    while room.type_int[CURSOR, gpu] < room.type_int[LENGTH, gpu]:
        n = room.queue[gpu, room.type_int[CURSOR, gpu]]
        if room.node_int[LEFT, n] >= tp:
            room.node_int[LEFT, n] -= tp
            room.type_int[LAST, gpu] = n
            return int(n)
        room.type_int[CURSOR, gpu] += 1
    return -1


@in_place
def pack(
    tables: Tables,
    room: Room,
    kinds: Array,
    depth: int,
    replicas: int,
    placement: int,
    node: Array,
) -> bool:
    """Write the node of every stage s of every replica r to node[r * depth + s].

    Starts from room.free, which it leaves as it is. False where the groups do not fit.
    """
    for n in range(room.node_int.shape[1]):
        room.node_int[LEFT, n] = room.node_int[FREE, n]
    for gpu in range(room.type_int.shape[1]):
        room.type_int[LAST, gpu] = -1
    above = 1 << 60
    while True:
        tp = 0
        for s in range(depth):
            degree = tables.kind_int[TP, kinds[s]]
            if tp < degree < above:
                tp = degree
        if tp == 0:
            return True
        above = tp
        for gpu in range(room.type_int.shape[1]):
            for s in range(depth):
                if (
                    tables.kind_int[TP, kinds[s]] == tp
                    and tables.kind_int[KIND_GPU, kinds[s]] == gpu
                ):
                    _line_up(tables, room, kinds[s])
                    break
        for outer in range(depth if placement == STAGE else replicas):
            for inner in range(replicas if placement == STAGE else depth):
                s, r = (outer, inner) if placement == STAGE else (inner, outer)
                q = kinds[s]
                if tables.kind_int[TP, q] != tp:
                    continue
                n = _take(tables, room, q)
                if n < 0:
                    return False
                node[r * depth + s] = n
