"""The price of one template with its experts tiled as it was before, not in all ways there are.

With experts the fill prices a template some twenty times, once or more for every tiling, and looks
up every stage in each. A search that goes from plan to plan knows a good tiling of most kinds of
stage. The price is the same as the fill gives for that tiling.
"""

from __future__ import annotations

from planner.kernel.fill import paces, price_split, refuse
from planner.kernel.jit import in_place
from planner.kernel.options import stage_option
from planner.kernel.state import (
    AT_BATCH,
    AT_KIND,
    BATCH,
    CODE,
    DEPTH,
    EVALUATIONS,
    KIND,
    NO_LINK,
    NO_ROWS,
    OPTIONS,
    Array,
    Laid,
    Room,
)
from planner.kernel.tables import (
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
    depth = laid.shape[DEPTH, k]
    alone, pace = paces(tables, laid, k)
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
                if stage_option(tables, laid, k, s, x, rows, alone, room):
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
