"""Compiled layer split: planner/fill/split.py on arrays.

Options of stage s are the first stage_int[OPTIONS, s] of Options; ALLOWED says
which of them the split may take. The answer is stage_int[BLOCKS] and stage_int[CHOSEN].
"""

from __future__ import annotations

import math

import numpy as np

from planner.kernel.jit import in_place, inlined
from planner.kernel.state import (
    ALLOWED,
    ARRANGED,
    BELOW,
    BLOCK_BYTES,
    BLOCK_MS,
    BLOCK_TRANSIENT,
    BLOCKS,
    CAP,
    CHOSEN,
    CODE,
    END_TRANSIENT,
    FIXED_BYTES,
    FIXED_MS,
    LIMIT,
    MEMORY,
    MOST,
    OK,
    OPTIONS,
    PER_BLOCK,
    TOO_FEW_BLOCKS,
    TRIAL_BLOCKS,
    TRIAL_CHOSEN,
    Array,
    Options,
    Room,
)
from planner.kernel.tables import Tables

CEILINGS = 4  # of two kinds, as in planner/fill/split.py
BELOW_LEAST = 1.0 - 1e-9  # a start this much lower is below the least feasible ceiling for sure


@inlined
def split_blocks(tables: Tables, room: Room, depth: int, batches: int) -> bool:
    """The split with the least (M - 1) max t + sum t; False where none fits (room.why)."""
    room.why[CODE] = OK
    if depth > tables.blocks:
        room.why[CODE] = TOO_FEW_BLOCKS
        return False
    if tables.before.shape[1] == 1:
        return _one_kind(room, depth, tables.blocks, batches)
    return _two_kinds(tables, room, depth, batches)


@in_place
def _refuse(room: Room, s: int, over: float) -> bool:
    room.why[CODE] = MEMORY + s
    room.over[0] = over
    return False


@inlined
def _one_kind(room: Room, depth: int, blocks: int, batches: int) -> bool:
    options = room.options
    if not _count_caps(room, depth, blocks):
        return False
    _count_below(options, depth, np.inf)
    _enough(options, depth, blocks)
    best, least_sum = _deal_blocks(options, depth, blocks, batches)
    _take_split(options, depth)
    ceiling = _start(options, depth, blocks)
    _count_below(options, depth, ceiling)
    while not _enough(options, depth, blocks):
        ceiling = _next_ceiling(options, depth)
        _raise(options, depth, ceiling)
    # The start lies below the least feasible ceiling, unless that was reached just now.
    while (batches - 1) * ceiling + least_sum < best:
        pipe, _ = _deal_blocks(options, depth, blocks, batches)
        if pipe < best:
            best = pipe
            _take_split(options, depth)
        ceiling = _next_ceiling(options, depth)
        if ceiling == np.inf:
            break
        _raise(options, depth, ceiling)
        _enough(options, depth, blocks)
    return True


@inlined
def _take_split(options: Options, depth: int) -> None:
    """Make the split that was just tried the answer."""
    for s in range(depth):
        options.stage_int[BLOCKS, s] = options.stage_int[TRIAL_BLOCKS, s]
        options.stage_int[CHOSEN, s] = options.stage_int[TRIAL_CHOSEN, s]


@inlined
def _count_caps(room: Room, depth: int, blocks: int) -> bool:
    """Write the most blocks that fit each option's memory; False where that is not enough."""
    options = room.options
    all_caps = 0
    least, narrow = 1 << 60, 0
    for s in range(depth):
        limit = options.stage_real[LIMIT, s]
        most, over = 0, np.inf
        for x in range(options.stage_int[OPTIONS, s]):
            extra = max(options.real[END_TRANSIENT, s, x], options.block[BLOCK_TRANSIENT, s, x, 0])
            fixed, each = (
                options.real[FIXED_BYTES, s, x],
                options.block[BLOCK_BYTES, s, x, 0],
            )
            spare = limit - fixed - extra
            cap = 0 if spare < each else min(blocks, math.floor(spare / each))
            options.whole[CAP, s, x] = cap
            if options.whole[ALLOWED, s, x]:
                most = max(most, cap)
                over = min(over, fixed + each + extra - limit)
        if most == 0:
            return _refuse(room, s, over)
        all_caps += most
        if most < least:
            least, narrow = most, s
    if all_caps < blocks:
        each = np.inf
        for x in range(options.stage_int[OPTIONS, narrow]):
            if options.whole[ALLOWED, narrow, x]:
                each = min(each, options.block[BLOCK_BYTES, narrow, x, 0])
        return _refuse(room, narrow, (blocks - all_caps) * each)
    return True


@inlined
def _count_below(options: Options, depth: int, ceiling: float) -> None:
    """Write to Options.whole[BELOW] the most blocks, at most the cap, below a ceiling."""
    for s in range(depth):
        for x in range(options.stage_int[OPTIONS, s]):
            if not options.whole[ALLOWED, s, x]:
                continue
            fixed, each = options.real[FIXED_MS, s, x], options.block[BLOCK_MS, s, x, 0]
            cap = options.whole[CAP, s, x]
            count = 0
            if fixed + each <= ceiling:
                count = cap if ceiling == np.inf else min(cap, math.floor((ceiling - fixed) / each))
            while count > 0 and fixed + count * each > ceiling:
                count -= 1
            while count < cap and fixed + (count + 1) * each <= ceiling:
                count += 1
            options.whole[BELOW, s, x] = count


@inlined
def _raise(options: Options, depth: int, ceiling: float) -> None:
    """Bring Options.whole[BELOW] from a lower ceiling to this one."""
    for s in range(depth):
        for x in range(options.stage_int[OPTIONS, s]):
            if options.whole[ALLOWED, s, x]:
                fixed = options.real[FIXED_MS, s, x]
                each = options.block[BLOCK_MS, s, x, 0]
                cap, count = options.whole[CAP, s, x], options.whole[BELOW, s, x]
                while count < cap and fixed + (count + 1) * each <= ceiling:
                    count += 1
                options.whole[BELOW, s, x] = count


@inlined
def _enough(options: Options, depth: int, blocks: int) -> bool:
    """Whether what is below the ceiling holds all blocks, at least one a stage."""
    total, least = 0, 1 << 60
    for s in range(depth):
        most = 0
        for x in range(options.stage_int[OPTIONS, s]):
            if options.whole[ALLOWED, s, x]:
                most = max(most, options.whole[BELOW, s, x])
        options.stage_int[MOST, s] = most
        total += most
        least = min(least, most)
    return least > 0 and total >= blocks


@inlined
def _next_ceiling(options: Options, depth: int) -> float:
    """The least time of some stage with one block more than is below the ceiling."""
    above = np.inf
    for s in range(depth):
        for x in range(options.stage_int[OPTIONS, s]):
            if options.whole[ALLOWED, s, x]:
                count = options.whole[BELOW, s, x] + 1
                if count <= options.whole[CAP, s, x]:
                    each = options.block[BLOCK_MS, s, x, 0]
                    above = min(above, options.real[FIXED_MS, s, x] + count * each)
    return above


@inlined
def _start(options: Options, depth: int, blocks: int) -> float:
    """A ceiling just below the least feasible one.

    For one option a stage, the level at which fractions of blocks fill up, stages at their memory
    cap taken out one by one. With several options a bisection does the same.
    """
    floor = 0.0
    single = True
    for s in range(depth):
        least, allowed = np.inf, 0
        for x in range(options.stage_int[OPTIONS, s]):
            if options.whole[ALLOWED, s, x]:
                allowed += 1
                options.stage_int[ARRANGED, s] = x
                if options.whole[CAP, s, x] > 0:
                    each = options.block[BLOCK_MS, s, x, 0]
                    least = min(least, options.real[FIXED_MS, s, x] + each)
        single = single and allowed == 1
        floor = max(floor, least)
    if single:
        return max(floor, _level(options, depth, blocks)) * BELOW_LEAST
    low, high = floor, 2.0 * floor
    _count_below(options, depth, high)
    while not _enough(options, depth, blocks):
        high *= 2.0
        _count_below(options, depth, high)
    for _ in range(30):
        middle = 0.5 * (low + high)
        _count_below(options, depth, middle)
        if _enough(options, depth, blocks):
            high = middle
        else:
            low = middle
    return low * BELOW_LEAST


@inlined
def _level(options: Options, depth: int, blocks: int) -> float:
    """The time at which stages, each of its option ARRANGED, hold all blocks in fractions."""
    left = float(blocks)
    for s in range(depth):
        options.stage_int[TRIAL_BLOCKS, s] = 0  # 1: at its cap
    while True:
        rate = offset = 0.0
        for s in range(depth):
            if options.stage_int[TRIAL_BLOCKS, s] == 0:
                x = options.stage_int[ARRANGED, s]
                speed = 1.0 / options.block[BLOCK_MS, s, x, 0]
                rate += speed
                offset += options.real[FIXED_MS, s, x] * speed
        if rate == 0.0:
            return 0.0
        level = (left + offset) / rate
        capped = False
        for s in range(depth):
            if options.stage_int[TRIAL_BLOCKS, s] == 0:
                x = options.stage_int[ARRANGED, s]
                cap, each = options.whole[CAP, s, x], options.block[BLOCK_MS, s, x, 0]
                if options.real[FIXED_MS, s, x] + cap * each < level:
                    options.stage_int[TRIAL_BLOCKS, s] = 1
                    left -= cap
                    capped = True
        if not capped:
            return level


@inlined
def _deal_blocks(options: Options, depth: int, blocks: int, batches: int) -> tuple[float, float]:
    """Blocks below the ceiling to the smallest time per block first.

    The pipeline time, and the sum of stage times.

    Writes TRIAL_BLOCKS and TRIAL_CHOSEN.
    """
    for s in range(depth):
        per = np.inf
        for x in range(options.stage_int[OPTIONS, s]):
            if (
                options.whole[ALLOWED, s, x]
                and options.whole[BELOW, s, x] == options.stage_int[MOST, s]
            ):
                per = min(per, options.block[BLOCK_MS, s, x, 0])
        options.stage_real[PER_BLOCK, s] = per
        at = s
        while at > 0 and options.stage_real[PER_BLOCK, options.stage_int[ARRANGED, at - 1]] > per:
            options.stage_int[ARRANGED, at] = options.stage_int[ARRANGED, at - 1]
            at -= 1
        options.stage_int[ARRANGED, at] = s
    left = blocks - depth
    for i in range(depth):
        s = options.stage_int[ARRANGED, i]
        take = min(left, options.stage_int[MOST, s] - 1)
        options.stage_int[TRIAL_BLOCKS, s] = 1 + take
        left -= take
    total = slowest = 0.0
    for s in range(depth):
        count, fastest = options.stage_int[TRIAL_BLOCKS, s], np.inf
        for x in range(options.stage_int[OPTIONS, s]):
            if options.whole[ALLOWED, s, x] and options.whole[CAP, s, x] >= count:
                each = options.block[BLOCK_MS, s, x, 0]
                took = options.real[FIXED_MS, s, x] + count * each
                if took < fastest:
                    fastest = took
                    options.stage_int[TRIAL_CHOSEN, s] = x
        total += fastest
        slowest = max(slowest, fastest)
    return (batches - 1) * slowest + total, total


@inlined
def _time(before: Array, options: Options, s: int, x: int, low: int, high: int) -> float:
    """t of blocks low..high on stage s at option x."""
    added = 0.0
    for kind in range(before.shape[1]):
        held = before[high, kind] - before[low, kind]
        added += held * options.block[BLOCK_MS, s, x, kind]
    took: float = options.real[FIXED_MS, s, x] + added
    return took


@inlined
def _excess(before: Array, options: Options, s: int, x: int, low: int, high: int) -> float:
    """Memory of blocks low..high beyond the limit."""
    need = options.real[FIXED_BYTES, s, x]
    transient = options.real[END_TRANSIENT, s, x]
    for kind in range(before.shape[1]):
        held = before[high, kind] - before[low, kind]
        need += held * options.block[BLOCK_BYTES, s, x, kind]
        if held > 0:
            transient = max(transient, options.block[BLOCK_TRANSIENT, s, x, kind])
    over: float = need + transient - options.stage_real[LIMIT, s]
    return over


@in_place
def _takes(before: Array, options: Options, s: int, low: int, high: int, ceiling: float) -> bool:
    """Whether some option of stage s holds blocks low..high below the ceiling."""
    for x in range(options.stage_int[OPTIONS, s]):
        if options.whole[ALLOWED, s, x] and (
            _excess(before, options, s, x, low, high) <= 0
            and _time(before, options, s, x, low, high) <= ceiling
        ):
            return True
    return False


@in_place
def _last_weak(before: Array, options: Options, depth: int, ceiling: float) -> int:
    """The last stage that cannot take one block of the second kind (or -1)."""
    blocks = before.shape[0] - 1
    firsts = before[blocks, 0]
    last_weak = -1
    if before[firsts, 0] == firsts:  # blocks of the first kind stand in front
        for s in range(depth):
            if not _takes(before, options, s, blocks - 1, blocks, ceiling):
                last_weak = s
    return last_weak


@in_place
def _fill_from_left(before: Array, options: Options, depth: int, ceiling: float) -> int:
    """Each stage takes what it can below the ceiling, the end of it to TRIAL_BLOCKS.

    A stage that cannot take one block of the second kind must find one of the first kind, which it
    and all stages before it share. -1 if all blocks are held, else the stage that is stuck.
    """
    blocks = before.shape[0] - 1
    firsts = before[blocks, 0]
    last_weak = _last_weak(before, options, depth, ceiling)
    low = 0
    for s in range(depth):
        furthest = blocks - (depth - s - 1)
        if s <= last_weak:
            furthest = min(furthest, firsts - (last_weak - s))
        high = low
        while high < furthest and _takes(before, options, s, low, high + 1, ceiling):
            high += 1
        if high == low:
            return s
        options.stage_int[TRIAL_BLOCKS, s] = high
        low = high
    return -1 if low == blocks else depth - 1


@in_place
def _next_of_kinds(before: Array, options: Options, depth: int, ceiling: float) -> float:
    """The least time above a ceiling of some stage with some number of blocks of each kind."""
    above = np.inf
    firsts, seconds = before[before.shape[0] - 1, 0], before[before.shape[0] - 1, 1]
    for s in range(depth):
        for x in range(options.stage_int[OPTIONS, s]):
            if not options.whole[ALLOWED, s, x]:
                continue
            fixed = options.real[FIXED_MS, s, x]
            each, other = options.block[BLOCK_MS, s, x, 0], options.block[BLOCK_MS, s, x, 1]
            for held in range(firsts + 1):
                # fixed + (a + b), summed as StageOption.time_ms sums it
                count = math.floor((ceiling - fixed - held * each) / other)
                count = min(max(count, 0), seconds)
                while count > 0 and fixed + (held * each + count * other) > ceiling:
                    count -= 1
                while count <= seconds and fixed + (held * each + count * other) <= ceiling:
                    count += 1
                if count == 0 and held == 0:
                    count = 1
                if count <= seconds:
                    above = min(above, fixed + (held * each + count * other))
    return above


@in_place
def _two_kinds(tables: Tables, room: Room, depth: int, batches: int) -> bool:
    before, options = tables.before, room.options
    blocks = before.shape[0] - 1
    stuck = _fill_from_left(before, options, depth, np.inf)
    if stuck >= 0:
        over = _shortage(before, options, depth, stuck)
        if over > 0:
            return _refuse(room, stuck, over)
        # Too few blocks of the first kind for all stages up to the last weak one.
        weak = _last_weak(before, options, depth, np.inf)
        return _refuse(room, weak, _least_excess(before, options, weak, blocks - 1, blocks))
    low, high = 0.0, 1.0
    while _fill_from_left(before, options, depth, high) >= 0:
        low = high
        high *= 2.0
    for _ in range(48):
        middle = 0.5 * (low + high)
        if _fill_from_left(before, options, depth, middle) >= 0:
            low = middle
        else:
            high = middle
    ceiling = _next_of_kinds(before, options, depth, low * BELOW_LEAST)
    while _fill_from_left(before, options, depth, ceiling) >= 0:
        ceiling = _next_of_kinds(before, options, depth, ceiling)
    best = np.inf
    for _ in range(CEILINGS):
        _fill_from_left(before, options, depth, ceiling)
        pipe = _choose_options(before, options, depth, batches)
        if pipe < best:
            best = pipe
            start = 0
            for s in range(depth):
                end = options.stage_int[TRIAL_BLOCKS, s]
                options.stage_int[BLOCKS, s] = end - start
                options.stage_int[CHOSEN, s] = options.stage_int[TRIAL_CHOSEN, s]
                start = end
        ceiling = _next_of_kinds(before, options, depth, ceiling)
        if ceiling == np.inf:
            break
    return True


@in_place
def _choose_options(before: Array, options: Options, depth: int, batches: int) -> float:
    """Each stage takes the fastest option that fits the blocks up to its end; pipeline time."""
    total = slowest = 0.0
    start = 0
    for s in range(depth):
        end, fastest = options.stage_int[TRIAL_BLOCKS, s], np.inf
        for x in range(options.stage_int[OPTIONS, s]):
            if options.whole[ALLOWED, s, x] and _excess(before, options, s, x, start, end) <= 0:
                took = _time(before, options, s, x, start, end)
                if took < fastest:
                    fastest = took
                    options.stage_int[TRIAL_CHOSEN, s] = x
        total += fastest
        slowest = max(slowest, fastest)
        start = end
    return (batches - 1) * slowest + total


@in_place
def _least_excess(before: Array, options: Options, s: int, low: int, high: int) -> float:
    """Bytes above its limit of stage s with these blocks, under its smallest option."""
    least = np.inf
    for x in range(options.stage_int[OPTIONS, s]):
        if options.whole[ALLOWED, s, x]:
            least = min(least, _excess(before, options, s, x, low, high))
    return least


@in_place
def _shortage(before: Array, options: Options, depth: int, stuck: int) -> float:
    """By how much memory stops stage `stuck`: of its first block, or of all that is left."""
    low = options.stage_int[TRIAL_BLOCKS, stuck - 1] if stuck > 0 else 0
    first = _least_excess(before, options, stuck, low, low + 1)
    if first <= 0 and stuck == depth - 1:
        return _least_excess(before, options, stuck, low, before.shape[0] - 1)
    return first
