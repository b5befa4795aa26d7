"""One decision after the other: masks with look-ahead, features, and what a choice changes.

Masks: a stage's group must pack beside the stages so far, one replica in all; enough groups must
be left for the remaining stages; and a stage must hold a block, and the stages so far with some
choice of the rest must hold the model. The first two are exact for power-of-two degrees (DESIGN
section 13, 17), so every prefix completes. The third tries one choice of the rest; where it finds
none for any candidate, it makes do with a count of blocks, and where that leaves nothing it is
dropped, and the fill tells what memory says.
"""

from __future__ import annotations

import math

import numpy as np

from planner.kernel.fill import prepare
from planner.kernel.jit import compiled, in_place
from planner.kernel.state import AT_BATCH, DEPTH, EVALUATIONS, FREE, Array, Room
from planner.kernel.tables import GPU, POOL, Tables
from planner.policy.features import LEVELS
from planner.policy.kernel.ahead import (
    alike,
    completes,
    cover,
    due,
    groups_left,
    holds,
    packs_after,
)
from planner.policy.kernel.lean import lean_fill
from planner.policy.kernel.rolls import (
    AIM,
    COUNT,
    COVER,
    DEMAND,
    GAIN,
    GPUS_FREE,
    HELD,
    LARGEST_FREE,
    PACKS,
    QUICKEST,
    SLOTS,
    SLOWEST,
    SPEED_SUM,
    STAGE,
    TRIED,
    Rolls,
    laid_of,
)
from planner.policy.kernel.scene import (
    GPUS,
    LARGEST,
    LAST,
    LEAST,
    LEVEL_OF,
    TYPE_OF,
    WITHIN,
    Scene,
)


@compiled
def open_templates(tables: Tables, scene: Scene, rolls: Rolls, rows: Array, room: Room) -> None:
    """Count what is free for the next template of these episodes, and describe the types."""
    types = scene.kind.shape[0]
    for i in rows:
        k = rolls.whole[i, COUNT]
        prepare(tables, laid_of(rolls, i), k, room)
        for x in (STAGE, AIM, PACKS, HELD):
            rolls.whole[i, x] = 0
        for x in (COVER, SPEED_SUM, SLOWEST, QUICKEST):
            rolls.real[i, x] = 0.0
        for g in range(types):
            rolls.free[i, GPUS_FREE, g] = rolls.free[i, LARGEST_FREE, g] = 0
            for e in range(LEVELS):
                rolls.group[i, SLOTS, g, e] = rolls.group[i, DEMAND, g, e] = 0
        for n in range(room.node_int.shape[1]):
            g, free = tables.node_int[GPU, n], room.node_int[FREE, n]
            rolls.free[i, GPUS_FREE, g] += free
            rolls.free[i, LARGEST_FREE, g] = max(rolls.free[i, LARGEST_FREE, g], free)
            for e in range(LEVELS):
                if free >> e == 0:
                    break
                q = scene.kind[g, e]
                if q < 0 or tables.pool_ok[tables.node_int[POOL, n], q]:
                    rolls.group[i, SLOTS, g, e] += free >> e
        _most_blocks(scene, rolls, i)
        _tokens(scene, rolls, i)


@in_place
def _most_blocks(scene: Scene, rolls: Rolls, i: int) -> None:
    rolls.rest[i, 0] = 0.0
    for j in range(1, scene.depth + 1):
        most = 0.0
        for g in range(scene.kind.shape[0]):
            for e in range(LEVELS):
                q = scene.kind[g, e]
                if q >= 0 and rolls.group[i, SLOTS, g, e] > 0:
                    most = max(most, scene.fit[LAST if j == 1 else WITHIN, q, j, -1])
        rolls.rest[i, j] = rolls.rest[i, j - 1] + most


@in_place
def _tokens(scene: Scene, rolls: Rolls, i: int) -> None:
    total = scene.type_int[GPUS].sum()
    for g in range(scene.kind.shape[0]):
        for x in range(scene.token.shape[1]):
            rolls.token[i, g, x] = scene.token[g, x]
        free = rolls.free[i, GPUS_FREE, g]
        rolls.token[i, g, 1] = free / total
        rolls.token[i, g, 2] = free / scene.type_int[GPUS, g]
        rolls.token[i, g, 10] = math.log2(max(rolls.free[i, LARGEST_FREE, g], 1)) / 3
        for e in range(1, 4):
            rolls.token[i, g, 10 + e] = (rolls.group[i, SLOTS, g, e] << e) / max(free, 1)


@in_place
def _state(scene: Scene, rolls: Rolls, i: int, out: Array) -> None:
    """The state vector of features.STATE."""
    for x in range(scene.world.shape[0]):
        out[x] = scene.world[x]
    total = scene.type_int[GPUS].sum()
    free = rolls.free[i, GPUS_FREE].sum()
    k, d, s = rolls.whole[i, COUNT], rolls.whole[i, AIM], rolls.whole[i, STAGE]
    out[3] = k / 8
    if k > 0:
        out[4] = min(scene.ideal_ms / rolls.times[i, k - 1], 1.5)
    out[5] = free / total
    out[22] = rolls.real[i, GAIN]
    out[23] = 1.0 if k == 0 else 0.0
    if d == 0:
        return
    out[10] = d / 32
    out[11] = s / d
    out[12] = math.log2(d) / 5
    out[13] = min(rolls.real[i, COVER] / scene.blocks, 2.0) / 2
    out[24] = min(due(scene, rolls, i) * d / scene.blocks, 3.0) / 3
    if s == 0:
        return
    r = rolls.whole[i, PACKS]
    out[15] = math.log2(1.0 + r) / 8
    out[16] = rolls.whole[i, HELD] * r / max(free, 1)
    out[17] = min(rolls.real[i, SPEED_SUM] / s, 8.0) / 4
    out[18] = min(rolls.real[i, SLOWEST], 8.0) / 4
    out[19] = min(rolls.real[i, QUICKEST], 8.0) / 4
    used = 0
    for g in range(scene.kind.shape[0]):
        e = scene.type_int[LEAST, g]
        if e >= 0 and rolls.group[i, DEMAND, g, e] > 0:
            used += 1
    out[20] = used / scene.kind.shape[0]


@compiled
def view_depth(
    scene: Scene, rolls: Rolls, rows: Array, state: Array, candidates: Array, mask: Array
) -> None:
    """State, features of STOP and every depth, and which of them are legal.

    state: (n, STATES). candidates: (n, D_max + 1, DEPTHS). mask: (n, D_max + 1). A row without
    anything legal but STOP has no GPUs left.
    """
    types = scene.kind.shape[0]
    spare = np.zeros((types, LEVELS), np.int64)
    for a in range(rows.shape[0]):
        i = rows[a]
        _state(scene, rolls, i, state[a])
        k = rolls.whole[i, COUNT]
        groups = groups_left(scene, rolls, i)
        if k >= scene.templates:
            groups = 0
        most = min(scene.depth, groups)
        least = 0
        for d in range(1, most + 1):
            if rolls.rest[i, d] >= scene.blocks:
                least = d
                break
        mask[a, 0] = k > 0
        sure = False
        if rolls.whole[i, STAGE] == 0:
            for d in range(max(least, 1), most + 1):
                mask[a, d] = least > 0 and completes(scene, rolls, i, d, -1, 0, spare)
                sure = sure or mask[a, d]
        free = rolls.free[i, GPUS_FREE].sum()
        node = 1
        for g in range(types):
            node = max(node, rolls.free[i, LARGEST_FREE, g])
        before = rolls.shape[i, DEPTH, k - 1] if k > 0 else 0
        for x in range(candidates.shape[2]):
            candidates[a, 0, x] = 0.0
        candidates[a, 0, 0] = 1.0
        for d in range(1, scene.depth + 1):
            legal = d <= most and (least == 0 or d >= least)
            if legal and sure:
                legal = mask[a, d]
            mask[a, d] = legal
            out = candidates[a, d]
            for x in range(out.shape[0]):
                out[x] = 0.0
            if not legal:
                continue
            pipes = max(free // d, 1)
            each = math.ceil(scene.blocks / d)
            divided = 0
            for g in range(types):
                if rolls.free[i, GPUS_FREE, g] % d == 0:
                    divided += rolls.free[i, GPUS_FREE, g]
            turns = max(scene.samples / pipes, 1.0)
            out[1] = d / 32
            out[2] = math.log2(d) / 5
            out[3] = math.log2(1.0 + pipes) / 8
            out[4] = (free % d) / max(free, 1)
            out[5] = min(rolls.rest[i, d] / scene.blocks, 4.0) / 4
            out[6] = each * d / scene.blocks - 1.0
            out[7] = math.log2(d / max(least, 1)) / 5
            out[8] = math.log2(d / node) / 5
            out[9] = (d - 1) / (turns + d - 1)
            out[10] = divided / max(free, 1)
            out[11] = min(scene.sync / d, 2.0) / 2
            if before > 0:
                out[12] = 1.0 if d == before else 0.0
                out[13] = math.log2(d / before) / 5
            for g in range(types if rolls.whole[i, STAGE] == 0 else 0):
                for e in range(LEVELS):
                    q = scene.kind[g, e]
                    if q >= 0:
                        r, blocks = alike(scene, rolls, i, g, e, d)
                        if r > 0 and blocks >= scene.blocks:
                            rates = r * d * scene.rate[q] * (1 << e) / scene.whole_rate
                            out[14] = max(out[14], rates)
                            out[15] = 1.0


@in_place
def set_depth(rolls: Rolls, rows: Array, depths: Array) -> None:
    """Begin templates of these depths."""
    for a in range(rows.shape[0]):
        i = rows[a]
        rolls.whole[i, AIM], rolls.whole[i, STAGE] = depths[a], 0
        k = rolls.whole[i, TRIED]
        for x in range(rolls.choices.shape[2]):
            rolls.choices[i, k, x] = -1
        rolls.choices[i, k, 0] = depths[a]


@in_place
def legal_kinds(scene: Scene, rolls: Rolls, i: int, legal: Array, spare: Array) -> None:
    """Which (type, level) the next stage may have, (G, LEVELS): the best of three tiers.

    Those after which the model is sure to fit; else those after which it might, by count of
    blocks; else those that pack. spare: (G, LEVELS) to work in.
    """
    d, s = rolls.whole[i, AIM], rolls.whole[i, STAGE]
    left = d - s - 1
    groups = groups_left(scene, rolls, i)
    best = 0
    for g in range(scene.kind.shape[0]):
        for e in range(LEVELS):
            legal[g, e] = 0
            q = scene.kind[g, e]
            if q < 0:
                continue
            r = packs_after(rolls, i, g, e, 1)
            if r < 1:
                continue
            low = scene.type_int[LEAST, g]
            before = max(0, rolls.group[i, SLOTS, g, low] - rolls.group[i, DEMAND, g, low])
            after = max(0, before - (1 << (e - low)))
            if groups - before + after < left:
                continue
            legal[g, e] = 1
            fits = holds(scene, q, s, d, r)
            if fits >= 1 and cover(scene, rolls, i, r) + fits + rolls.rest[i, left] >= scene.blocks:
                legal[g, e] = 2
                same, blocks = alike(scene, rolls, i, g, e, d)
                if (same >= 1 and blocks >= scene.blocks) or completes(
                    scene, rolls, i, d, g, e, spare
                ):
                    legal[g, e] = 3
            best = max(best, legal[g, e])
    for g in range(scene.kind.shape[0]):
        for e in range(LEVELS):
            if legal[g, e] < best:
                legal[g, e] = 0


@compiled
def view_types(
    scene: Scene, rolls: Rolls, rows: Array, state: Array, candidates: Array, mask: Array
) -> None:
    """State, features of every GPU type for the next stage, and which are legal.

    candidates: (n, G, TYPES); mask: (n, G). The best degree alike is the one whose GPUs do most
    where it holds the model, else the one that holds most of it.
    """
    types = scene.kind.shape[0]
    legal, work = np.zeros((2, types, LEVELS), np.int64)
    tokens = scene.token.shape[1]
    for a in range(rows.shape[0]):
        i = rows[a]
        _state(scene, rolls, i, state[a])
        legal_kinds(scene, rolls, i, legal, work)
        d, s = rolls.whole[i, AIM], rolls.whole[i, STAGE]
        free = max(rolls.free[i, GPUS_FREE].sum(), 1)
        per_stage = scene.blocks / d
        mean = rolls.real[i, SPEED_SUM] / s if s > 0 else 1.0
        groups = groups_left(scene, rolls, i)
        k = rolls.whole[i, TRIED]
        before = scene.kind_int[TYPE_OF, rolls.choices[i, k, s]] if s > 0 else -1
        for g in range(types):
            out = candidates[a, g]
            for x in range(out.shape[0]):
                out[x] = 0.0
            mask[a, g] = False
            low = -1
            quickest, most_fit = 0.0, 0.0
            best_cover, best_rates, best_replicas = -1.0, 0.0, 0
            for e in range(LEVELS):
                if legal[g, e] > 0:
                    if low < 0:
                        low = e
                    q = scene.kind[g, e]
                    quickest = max(quickest, scene.rate[q] * (1 << e))
                    most_fit = max(most_fit, holds(scene, q, s, d, packs_after(rolls, i, g, e, 1)))
                    replicas, blocks = alike(scene, rolls, i, g, e, d)
                    sum_of_speeds = rolls.real[i, SPEED_SUM] + (d - s) * scene.rate[q] * (1 << e)
                    rates = replicas * sum_of_speeds / scene.whole_rate
                    held = min(blocks / scene.blocks, 1.0)
                    if held > best_cover or (held == best_cover and rates > best_rates):
                        best_cover, best_rates, best_replicas = held, rates, replicas
            if low < 0:
                continue
            mask[a, g] = True
            for x in range(tokens):
                out[x] = rolls.token[i, g, x]
            r = packs_after(rolls, i, g, low, 1)
            now = rolls.whole[i, PACKS] if s > 0 else r
            same = 0
            for u in range(s):
                if scene.kind_int[TYPE_OF, rolls.choices[i, k, 1 + u]] == g:
                    same += 1
            out[tokens] = math.log2(1.0 + r) / 8
            out[tokens + 1] = r / max(now, 1)
            out[tokens + 2] = (rolls.whole[i, HELD] + (1 << low)) * r / free
            out[tokens + 3] = 1.0 if before == g else 0.0
            out[tokens + 4] = 1.0 if same > 0 else 0.0
            out[tokens + 5] = same / s if s > 0 else 0.0
            out[tokens + 6] = min(most_fit / per_stage, 3.0) / 3
            out[tokens + 7] = min(holds(scene, scene.kind[g, low], s, d, r) / per_stage, 3.0) / 3
            out[tokens + 8] = math.log(max(quickest, 1e-3) / mean) / 2
            least = scene.type_int[LEAST, g]
            spare = rolls.group[i, SLOTS, g, least] - rolls.group[i, DEMAND, g, least]
            out[tokens + 9] = spare / max(rolls.group[i, SLOTS, g, least], 1)
            out[tokens + 10] = min(groups / d, 4.0) / 4
            out[tokens + 11] = 1.0 if s == d - 1 else 0.0
            out[tokens + 12] = min(most_fit / due(scene, rolls, i), 3.0) / 3
            out[tokens + 13] = best_cover
            out[tokens + 14] = math.log2(1.0 + best_replicas) / 8
            out[tokens + 15] = min(best_rates, 1.5)


@compiled
def view_degrees(
    scene: Scene,
    rolls: Rolls,
    rows: Array,
    chosen: Array,
    state: Array,
    candidates: Array,
    mask: Array,
) -> None:
    """State, features of every degree of the chosen types, and which are legal.

    candidates: (n, LEVELS, DEGREES); mask: (n, LEVELS).
    """
    legal, spare = np.zeros((2, scene.kind.shape[0], LEVELS), np.int64)
    top = scene.rate.max()
    for a in range(rows.shape[0]):
        i, g = rows[a], chosen[a]
        _state(scene, rolls, i, state[a])
        legal_kinds(scene, rolls, i, legal, spare)
        d, s = rolls.whole[i, AIM], rolls.whole[i, STAGE]
        free = max(rolls.free[i, GPUS_FREE].sum(), 1)
        per_stage = scene.blocks / d
        mean = rolls.real[i, SPEED_SUM] / s if s > 0 else 1.0
        k = rolls.whole[i, TRIED]
        last = rolls.choices[i, k, s] if s > 0 else -1
        quickest = 1e-30
        for e in range(LEVELS):
            q = scene.kind[g, e]
            if q >= 0:
                quickest = max(quickest, scene.rate[q] * (1 << e))
        for e in range(LEVELS):
            out = candidates[a, e]
            for x in range(out.shape[0]):
                out[x] = 0.0
            mask[a, e] = legal[g, e] > 0
            if not mask[a, e]:
                continue
            q, tp = scene.kind[g, e], 1 << e
            r = packs_after(rolls, i, g, e, 1)
            now = rolls.whole[i, PACKS] if s > 0 else r
            used = 0.0
            for u in range(s):
                if rolls.choices[i, k, 1 + u] == q:
                    used = 1.0
            fits = holds(scene, q, s, d, r) / per_stage
            out[0] = e / 3
            out[1] = math.log2(1.0 + r) / 8
            out[2] = r / max(now, 1)
            out[3] = (rolls.whole[i, HELD] + tp) * r / free
            out[4] = min(fits, 3.0) / 3
            out[5] = scene.rate[q] / max(scene.best_rate[g], 1e-30)
            out[6] = math.log(max(scene.rate[q] * tp, 1e-3) / mean) / 2
            out[7] = scene.rate[q] * tp / quickest
            out[8] = 1.0 if last == q else 0.0
            out[9] = tp / scene.type_int[LARGEST, g]
            out[10] = tp / max(rolls.free[i, LARGEST_FREE, g], 1)
            out[11] = (rolls.group[i, SLOTS, g, e] << e) / max(rolls.free[i, GPUS_FREE, g], 1)
            out[12] = 1.0 if last >= 0 and scene.kind_int[LEVEL_OF, last] == e else 0.0
            out[13] = 1.0 if fits >= 1 else 0.0
            out[14] = used
            out[15] = scene.best_rate[g] / top
            out[16] = 1.0 if s == d - 1 else 0.0
            out[17] = 1.0 if s == 0 else 0.0
            replicas, blocks = alike(scene, rolls, i, g, e, d)
            sum_of_speeds = rolls.real[i, SPEED_SUM] + (d - s) * scene.rate[q] * tp
            out[18] = min(fits * per_stage / due(scene, rolls, i), 3.0) / 3
            out[19] = min(blocks / scene.blocks, 2.0) / 2
            out[20] = math.log2(1.0 + replicas) / 8
            out[21] = (rolls.whole[i, HELD] + (d - s) * tp) * replicas / free
            out[22] = min(replicas * sum_of_speeds / scene.whole_rate, 1.5)


@in_place
def take(scene: Scene, rolls: Rolls, rows: Array, types: Array, levels: Array) -> None:
    """Add a stage of these types and levels to the templates being chosen."""
    for a in range(rows.shape[0]):
        i, g, e = rows[a], types[a], levels[a]
        q, tp = scene.kind[g, e], 1 << e
        s = rolls.whole[i, STAGE]
        rolls.whole[i, PACKS] = packs_after(rolls, i, g, e, 1)
        for level in range(e + 1):
            rolls.group[i, DEMAND, g, level] += 1 << (e - level)
        speed = scene.rate[q] * tp
        rolls.whole[i, HELD] += tp
        rolls.real[i, SPEED_SUM] += speed
        rolls.real[i, SLOWEST] = speed if s == 0 else min(rolls.real[i, SLOWEST], speed)
        rolls.real[i, QUICKEST] = max(rolls.real[i, QUICKEST], speed)
        rolls.choices[i, rolls.whole[i, TRIED], 1 + s] = q
        rolls.whole[i, STAGE] = s + 1
        rolls.real[i, COVER] += holds(scene, q, s, rolls.whole[i, AIM], rolls.whole[i, PACKS])
        rolls.real[i, COVER] = cover(scene, rolls, i, rolls.whole[i, PACKS])


@compiled
def close_templates(
    tables: Tables,
    scene: Scene,
    rolls: Rolls,
    rows: Array,
    most_evaluations: int,
    room: Room,
    fits: Array,
) -> None:
    """Fill the chosen templates and price the plans with them; fits: (n,) whether they do.

    None is filled once the count of evaluations has reached `most_evaluations`.
    """
    none = np.empty(0, np.int64)
    for a in range(rows.shape[0]):
        i = rows[a]
        k, depth = rolls.whole[i, COUNT], rolls.whole[i, AIM]
        if room.why[EVALUATIONS] >= most_evaluations:
            fits[a] = False
            continue
        laid = laid_of(rolls, i)
        prepare(tables, laid, k, room)
        kinds = rolls.choices[i, rolls.whole[i, TRIED], 1:]
        took = lean_fill(tables, laid, k, kinds, depth, 0, 0, 0, np.inf, none, -1.0, room)
        fits[a] = took >= 0
        rolls.whole[i, TRIED] += 1
        rolls.times[i, k] = took
        if took >= 0:
            rolls.order[i, k] = room.why[AT_BATCH]
            before = scene.ideal_ms / rolls.times[i, k - 1] if k > 0 else 0.0
            rolls.real[i, GAIN] = min(max(scene.ideal_ms / took - before, -1.0), 1.0)
            rolls.whole[i, COUNT] = k + 1
