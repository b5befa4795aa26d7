"""Local moves on sets of structural templates, compiled: simulated annealing under the same fill.

A set stands in arrays whose first axis says whose it is: NOW the state of the walk, TRIAL what is
tried, BEST the best set or prefix of one met so far. Moves change one stage, insert, delete or
swap stages, set a run of stages or all of one kind to another, give one degree to a template or
to its stages of one type, append, drop, swap or redraw templates, or give up replicas
(DESIGN section 13, 20), or tile the experts of one kind of stage otherwise. Templates are filled
anew from the first that changed.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from planner.kernel.fill import prepare
from planner.kernel.jit import in_place
from planner.kernel.state import AT_BATCH, BATCH, DEPTH, EVALUATIONS, REPLICAS, Array, Laid, Room
from planner.kernel.tables import Tables
from planner.policy.kernel.lean import ANY, WHOLE, lean_fill

NOW, TRIAL, BEST = 0, 1, 2
TILED = 0.12  # of the moves of a model with experts change a tiling


class Sets(NamedTuple):
    """Three sets of structural templates; times in ms of the first k + 1 templates."""

    count: Array  # (3,)
    depth: Array  # (3, K)
    fewer: Array  # (3, K)
    batch: Array  # (3, K)
    order: Array  # (3, K)
    kind: Array  # (3, K, D)
    tile: (
        Array  # (3, K, D) how the experts of each stage are tiled, as planner.policy.kernel.hinted
    )
    time: Array  # (3, K)


def new_sets(templates: int, depth: int) -> Sets:
    """Three empty sets."""

    def whole(*shape: int) -> Array:
        return np.zeros((3, *shape), np.int64)

    return Sets(
        count=whole(),
        depth=whole(templates),
        fewer=whole(templates),
        batch=whole(templates),
        order=whole(templates),
        kind=whole(templates, depth),
        tile=whole(templates, depth) + WHOLE,
        time=np.full((3, templates), np.inf),
    )


@in_place
def _copy_template(sets: Sets, a: int, i: int, b: int, j: int) -> None:
    """Template i of set a becomes template j of set b."""
    sets.depth[b, j] = sets.depth[a, i]
    sets.fewer[b, j] = sets.fewer[a, i]
    sets.batch[b, j] = sets.batch[a, i]
    sets.order[b, j] = sets.order[a, i]
    sets.time[b, j] = sets.time[a, i]
    for s in range(sets.depth[a, i]):
        sets.kind[b, j, s] = sets.kind[a, i, s]
        sets.tile[b, j, s] = sets.tile[a, i, s]


@in_place
def copy_set(sets: Sets, a: int, b: int, count: int) -> None:
    """The first `count` templates of set a become set b."""
    sets.count[b] = count
    for k in range(count):
        _copy_template(sets, a, k, b, k)


@in_place
def _random_template(sets: Sets, k: int, usable: Array, most: int) -> None:
    """Write a random template to TRIAL: of one kind, or of two in a row."""
    depth = 1 + np.random.randint(most)
    if np.random.random() < 0.5:
        depth = 1 + np.random.randint(min(most, 8))
    one = usable[np.random.randint(usable.shape[0])]
    two = usable[np.random.randint(usable.shape[0])]
    turn = np.random.randint(depth + 1)
    for s in range(depth):
        sets.kind[TRIAL, k, s] = one if s < turn else two
        sets.tile[TRIAL, k, s] = ANY
    sets.depth[TRIAL, k] = depth
    sets.fewer[TRIAL, k] = 0


@in_place
def _swap_templates(sets: Sets, i: int, j: int) -> None:
    most = max(sets.depth[TRIAL, i], sets.depth[TRIAL, j])
    for field in (sets.kind, sets.tile):
        for s in range(most):
            one = field[TRIAL, i, s]
            field[TRIAL, i, s] = field[TRIAL, j, s]
            field[TRIAL, j, s] = one
    for field in (sets.depth, sets.fewer, sets.batch, sets.order):
        one = field[TRIAL, i]
        field[TRIAL, i] = field[TRIAL, j]
        field[TRIAL, j] = one


@in_place
def move(
    sets: Sets, usable: Array, table: Array, type_of: Array, most: int, tilings: int, spare: bool
) -> Any:
    """Change TRIAL in one way; the first template that changed, -1 where the move does nothing.

    usable: kinds that may be chosen. table: (G, LEVELS) kinds. most: stages of a template.
    tilings: of experts, 1 where the model has none. spare: whether replicas may be given up.
    """
    count = sets.count[TRIAL]
    k = np.random.randint(count)
    depth = sets.depth[TRIAL, k]
    kinds, tiles = sets.kind[TRIAL, k], sets.tile[TRIAL, k]
    s = np.random.randint(depth)
    q = usable[np.random.randint(usable.shape[0])]
    if tilings > 1 and np.random.random() < TILED:
        x = np.random.randint(tilings)
        alike = np.random.random() < 0.7
        changed = -1
        for u in range(depth):
            if (u == s or (alike and kinds[u] == kinds[s])) and tiles[u] != x:
                tiles[u] = x
                changed = k
        return changed
    draw = np.random.random()
    if draw < 0.20:  # change one stage
        if kinds[s] == q:
            return -1
        kinds[s], tiles[s] = q, ANY
        return k
    if draw < 0.32:  # insert a stage
        if depth >= most:
            return -1
        if np.random.random() < 0.6:
            q = kinds[s]
        for u in range(depth, s, -1):
            kinds[u], tiles[u] = kinds[u - 1], tiles[u - 1]
        if kinds[s] != q:
            kinds[s], tiles[s] = q, ANY
        sets.depth[TRIAL, k] = depth + 1
        return k
    if draw < 0.44:  # delete a stage
        if depth == 1:
            return -1
        for u in range(s, depth - 1):
            kinds[u], tiles[u] = kinds[u + 1], tiles[u + 1]
        sets.depth[TRIAL, k] = depth - 1
        return k
    if draw < 0.52:  # swap two stages
        u = np.random.randint(depth)
        if kinds[u] == kinds[s]:
            return -1
        kinds[u], kinds[s] = kinds[s], kinds[u]
        tiles[u], tiles[s] = tiles[s], tiles[u]
        return k
    if draw < 0.60:  # one degree for the template, or for one of its types
        level = np.random.randint(table.shape[1])
        whole = np.random.random() < 0.4
        changed = -1
        for u in range(depth):
            g = type_of[kinds[u]]
            new = table[g, level]
            if new >= 0 and new != kinds[u] and (whole or g == type_of[kinds[s]]):
                kinds[u], tiles[u] = new, ANY
                changed = k
        return changed
    if draw < 0.68:  # a run of stages
        end = s + 1 + np.random.randint(depth - s)
        changed = -1
        for u in range(s, end):
            if kinds[u] != q:
                kinds[u], tiles[u] = q, ANY
                changed = k
        return changed
    if draw < 0.74:  # all of one kind
        old = kinds[s]
        if old == q:
            return -1
        for u in range(depth):
            if kinds[u] == old:
                kinds[u], tiles[u] = q, ANY
        return k
    if draw < 0.85:  # append a template
        if count >= sets.depth.shape[1]:
            return -1
        sets.count[TRIAL] = count + 1
        if np.random.random() < 0.4:
            _copy_template(sets, TRIAL, k, TRIAL, count)
            sets.fewer[TRIAL, count] = 0
            if np.random.random() < 0.5:
                for u in range(depth):
                    if np.random.random() < 0.5:
                        sets.kind[TRIAL, count, u] = q
                        sets.tile[TRIAL, count, u] = ANY
        else:
            _random_template(sets, count, usable, most)
            sets.batch[TRIAL, count] = sets.batch[TRIAL, k]
            sets.order[TRIAL, count] = sets.order[TRIAL, k]
        return count
    if draw < 0.90:  # drop a template
        if count == 1:
            return -1
        for j in range(k, count - 1):
            _copy_template(sets, TRIAL, j + 1, TRIAL, j)
        sets.count[TRIAL] = count - 1
        return k
    if draw < 0.93:  # swap two templates
        j = np.random.randint(count)
        if j == k:
            return -1
        _swap_templates(sets, k, j)
        return min(j, k)
    if draw < 0.98:  # give up replicas
        fewer = (0, 1, 2, 4)[np.random.randint(4)] if spare else 0
        if fewer == sets.fewer[TRIAL, k]:
            return -1
        sets.fewer[TRIAL, k] = fewer
        return k
    _random_template(sets, k, usable, most)
    return k


@in_place
def _copy_laid(laid: Laid, other: Laid, first: int, last: int) -> None:
    for k in range(first, last):
        for x in range(3):
            other.shape[x, k] = laid.shape[x, k]
        depth = laid.shape[DEPTH, k]
        for x in range(3):
            for s in range(depth + 1):
                other.stage[x, k, s] = laid.stage[x, k, s]
        for x in range(depth * laid.shape[REPLICAS, k]):
            other.node[k, x] = laid.node[k, x]


@in_place
def lay(
    tables: Tables,
    laid: Laid,
    sets: Sets,
    whose: int,
    first: int,
    worth: float,
    explore: bool,
    polish: float,
    room: Room,
) -> None:
    """Fill the templates of a set from `first` on; the set is cut where one does not fit.

    The last one looks for a better micro-batch size and placement if its price is at most
    `worth`, the first changed one where `explore` says so; at most `polish` is worth all tilings
    of its experts.
    """
    count = sets.count[whose]
    for k in range(first, count):
        prepare(tables, laid, k, room)
        limit = worth if k == count - 1 else (np.inf if explore and k == first else -1.0)
        took = lean_fill(
            tables,
            laid,
            k,
            sets.kind[whose, k],
            sets.depth[whose, k],
            sets.fewer[whose, k],
            sets.batch[whose, k],
            sets.order[whose, k],
            limit,
            sets.tile[whose, k],
            polish if k == count - 1 else -1.0,
            room,
        )
        if took < 0:
            sets.count[whose] = k
            return
        sets.batch[whose, k] = laid.shape[BATCH, k]
        sets.order[whose, k] = room.why[AT_BATCH]
        sets.time[whose, k] = took


# Without the lock of the interpreter, so that two walks run side by side.
@njit(cache=True, error_model="numpy", nogil=True, _nrt=False)  # type: ignore[untyped-decorator]
def walk(
    tables: Tables,
    laid: Laid,
    kept: Laid,
    sets: Sets,
    usable: Array,
    table: Array,
    type_of: Array,
    most: int,
    moves: int,
    hot: float,
    cold: float,
    seed: int,
    ration: int,
    most_evaluations: int,
    fresh: bool,
    spare: bool,
    room: Room,
) -> Any:
    """Anneal from NOW for so many moves; the moves made. BEST is kept up.

    hot, cold: temperature at the first and last move, as a share of the iteration time. ration:
    evaluations that the walk may take; it cools by whichever of the two runs out first. fresh: NOW
    was not walked before, so its micro-batch sizes are looked for. spare: whether moves give up
    replicas.
    """
    np.random.seed(seed)
    energy, heat, first, wanted = np.inf, hot, 0, 0
    began = room.why[EVALUATIONS]
    best = np.inf
    if sets.count[BEST] > 0:
        best = sets.time[BEST, sets.count[BEST] - 1]
    copy_set(sets, NOW, TRIAL, sets.count[NOW])
    # Turn 0 lays NOW itself: one loop and one call, for each costs the compiler seconds.
    for i in range(moves + 1):
        if i > 0:
            done = max((i - 1) / max(1, moves - 1), (room.why[EVALUATIONS] - began) / ration)
            if room.why[EVALUATIONS] >= most_evaluations or done > 1.0:
                return i - 1
            heat = hot * (cold / hot) ** done
            copy_set(sets, NOW, TRIAL, sets.count[NOW])
            first = 1 << 30
            steps = 2 if np.random.random() < 0.3 else 1
            for _ in range(steps):
                changed = move(sets, usable, table, type_of, most, tables.tile.shape[1], spare)
                if changed >= 0:
                    first = min(first, changed)
            if first == 1 << 30:
                continue
            wanted = sets.count[TRIAL]
            limit = energy * (1.0 + 3.0 * heat + 0.003)
            explore = np.random.random() < 0.25
        else:
            limit = np.inf if fresh else -1.0
            explore = fresh
        lay(tables, laid, sets, TRIAL, first, limit, explore, energy, room)
        count = sets.count[TRIAL]
        for k in range(first, count):
            if sets.time[TRIAL, k] < best:
                best = sets.time[TRIAL, k]
                copy_set(sets, TRIAL, BEST, k + 1)
        accepted = i == 0
        took = np.inf
        if count > 0 and not (count == first and wanted > first):
            took = sets.time[TRIAL, count - 1]
        if i == 0:
            if count == 0:
                sets.count[NOW] = 0
                return 0
        else:
            worse = (took - energy) / energy
            accepted = worse <= 0 or (
                worse < 30 * heat and np.random.random() < math.exp(-worse / heat)
            )
        if accepted:
            copy_set(sets, TRIAL, NOW, count)
            _copy_laid(laid, kept, first, count)
            energy = took
        else:
            _copy_laid(kept, laid, first, sets.count[NOW])
    return moves
