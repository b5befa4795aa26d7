"""The dynamic program of Sailor over stages and remaining GPUs, compiled.

A state is (stage, GPUs of each type left in the region); its answer is the fastest way to place the
stages from there on. The faults of the release are switched on by `Task.release`.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.typed import Dict

from planner.baselines.sailor.deals import (
    least_deal,
    next_deal,
    stage_figures,
    take_gpus,
    worst_send,
)
from planner.baselines.sailor.state import (
    COMM_USD,
    FIELDS,
    FIRST,
    SENDS,
    SLOWEST,
    SUM,
    SYNC,
    TIME,
    UPDATE,
    USD_PER_MS,
    Degree,
    Floats,
    Found,
    Frames,
    Ints,
    Memo,
    Task,
    Watch,
    compiled,
)

_KEY = types.UniTuple(types.int64, 4)
TYPES_AT_MOST = 8  # four to a word of the key, 13 bits each


@compiled
def new_memo(width: int) -> Memo:
    """An empty memo. width: T * Y + 1."""
    return Memo(
        Dict.empty(_KEY, types.int64),
        np.zeros((1024, FIELDS)),
        np.zeros(1024, np.int64),
        np.zeros((1024, width), np.int64),
        np.zeros(1, np.int64),
    )


@compiled
def _grown(memo: Memo) -> Memo:
    """The memo with room for twice as many answers."""
    n = len(memo.children)
    figures = np.zeros((2 * n, FIELDS))
    children = np.zeros(2 * n, np.int64)
    rows = np.zeros((2 * n, memo.rows.shape[1]), np.int64)
    figures[:n], children[:n], rows[:n] = memo.figures, memo.children, memo.rows
    return Memo(memo.index, figures, children, rows, memo.size)


@compiled
def _new_frames(task: Task, free: Ints) -> Frames:
    n_types, depth = task.tp.shape
    zones = task.zones.shape[1]
    return Frames(
        np.zeros((depth + 1, free.shape[0], n_types), np.int64),
        np.zeros((depth + 1, 2), np.int64),
        np.zeros(depth + 1, np.int64),
        np.zeros(depth + 1, np.int64),
        np.zeros((depth, n_types), np.int64),
        np.zeros((depth, n_types), np.int64),
        np.zeros((depth, n_types, zones), np.int64),
        np.zeros((depth, FIELDS)),
        np.zeros(depth),
        np.zeros(depth),
        np.zeros(depth, np.int64),
        np.zeros(depth),
        np.zeros((depth, FIELDS)),
        np.zeros(depth),
        np.zeros(depth),
        np.zeros(depth, np.int64),
        np.zeros((depth, n_types, zones), np.int64),
    )


@compiled
def _open(task: Task, degree: Degree, frames: Frames, stage: int) -> bool:
    """Begin with a stage; whether there is a way to place it."""
    zones = task.zones[task.regions[frames.position[stage]]]
    frames.slots[stage] = 0
    for t in range(task.tp.shape[0]):
        if task.tp[t, stage] > 0:
            for z in zones:
                if z >= 0:
                    frames.slots[stage, t] += frames.free[stage, z, t] // task.tp[t, stage]
    frames.best[stage] = 0.0
    frames.best_ms[stage] = np.inf
    frames.best_usd[stage] = np.inf
    frames.best_child[stage] = -1
    frames.best_placed[stage] = 0
    frames.previous[stage] = -1.0
    return least_deal(frames.slots[stage], degree.peers, 0, frames.k[stage])


@compiled
def _name_next(task: Task, degree: Degree, frames: Frames, stage: int) -> bool:
    """Say which region and GPUs the next stage has; whether it can have D replicas there.

    Two words: the region and the GPUs left in it, by type.
    """
    zones = task.zones[task.regions[frames.position[stage]]]
    left = frames.free[stage + 1]
    room = 0
    for t in range(task.tp.shape[0]):
        if task.tp[t, stage + 1] > 0:
            for z in zones:
                if z >= 0:
                    room += left[z, t] // task.tp[t, stage + 1]
    position = frames.position[stage]
    if room < degree.peers:
        position += 1
        if position >= len(task.regions):
            return False
    region = task.regions[position]
    name = frames.name[stage + 1]
    name[:] = 0
    name[0] = region
    for t in range(task.tp.shape[0]):
        total = 0
        for z in task.zones[region]:
            if z >= 0:
                total += left[z, t]
        name[t // 4] = name[t // 4] * 8192 + total
    frames.position[stage + 1] = position
    return True


@compiled
def _consider(task: Task, degree: Degree, watch: Watch, frames: Frames, stage: int) -> bool:
    """Time the way that is being tried; whether the stages behind must be asked.

    USD are 32-bit numbers, as in the release.
    """
    depth = task.tp.shape[1]
    last = stage == depth - 1
    region = task.regions[frames.position[stage]]
    zones = task.zones[region]
    k, placed = frames.k[stage], frames.placed[stage]
    frames.again[stage] = 0
    if not take_gpus(
        task, frames.free[stage], zones, k, stage, last, frames.free[stage + 1], placed
    ):
        return False
    if not last and not _name_next(task, degree, frames, stage):
        return False
    slowest, sync, update, used = stage_figures(task, degree, k, stage, region, placed, last)
    usd_per_ms = 0.0
    for t in range(len(k)):
        usd_per_ms += k[t] * task.usd_per_ms[t, stage]
    sync_usd = used * degree.sync_usd[stage] if used > 1 else 0.0
    alone = degree.micro_batches * slowest + sync + update
    usd = np.float32(alone * usd_per_ms + sync_usd)
    free_of_charge = frames.budget[stage] == 0
    limit_usd = np.float32(frames.budget[stage] / 100)
    one_zone = len(zones) == 1 or zones[1] < 0
    own = frames.own[stage]
    own[TIME], own[SLOWEST], own[SUM], own[SENDS] = alone, slowest, slowest, 0.0
    own[SYNC], own[FIRST], own[UPDATE] = sync, slowest, update
    own[COMM_USD], own[USD_PER_MS] = sync_usd, usd_per_ms
    if last:
        if stage == 0:
            _count(watch)
        frames.again[stage] = free_of_charge and one_zone and not task.by_cost
        if task.by_cost:
            better = usd <= frames.best_usd[stage]
            better = better and (task.most_ms == 0 or alone <= task.most_ms)
        else:
            better = alone < frames.best_ms[stage] and (free_of_charge or usd <= limit_usd)
        if better and not (task.prune and alone >= watch.best_ms[0]):
            frames.best_ms[stage], frames.best_usd[stage] = alone, usd
            frames.best[stage] = own
            frames.best_placed[stage] = placed
        return False
    if task.by_cost or not (free_of_charge or usd <= limit_usd):
        return False
    frames.again[stage] = free_of_charge and (one_zone or task.release)
    if alone == frames.previous[stage]:
        return False
    frames.previous[stage] = alone
    if task.prune:
        floor = (degree.micro_batches - 1) * max(slowest, task.slowest_ms[stage + 1])
        floor += slowest + task.sum_ms[stage + 1] + sync
        if floor >= frames.best_ms[stage] or floor >= watch.best_ms[0]:
            return False
    frames.remaining[stage] = max(limit_usd - usd, np.float32(0))
    return True


@compiled
def _count(watch: Watch) -> None:
    watch.counts[0] += 1
    if watch.counts[0] >= watch.counts[1]:
        watch.stop[0] = 1


@compiled
def _merge(
    task: Task, degree: Degree, watch: Watch, frames: Frames, memo: Memo, stage: int, child: int
) -> bool:
    """Put the stage before the fastest pipeline of the rest; whether to ask with less money.

    Time = (M - 1) * the slowest + all stage times + 2 sends per boundary + the longest
    synchronisation + the longest update. The slowest: a stage with its send forward, the next
    one with that send back.
    """
    rest = memo.figures[child]
    if rest[TIME] == 0.0:
        return False
    own = frames.own[stage]
    send, egress = worst_send(
        task,
        stage,
        task.regions[frames.position[stage]],
        frames.placed[stage],
        memo.rows[child, -1],
        memo.rows[child],
    )
    before = own[SLOWEST]
    own[SLOWEST] = max(max(before + send, rest[FIRST] + send), rest[SLOWEST])
    own[SENDS] += rest[SENDS] + 2 * send
    own[FIRST] = own[SUM] + send
    own[SUM] += rest[SUM]
    own[SYNC] = max(own[SYNC], rest[SYNC])
    # The release forgets the update of pipelines of more than one stage.
    own[UPDATE] = 0.0 if task.release else max(own[UPDATE], rest[UPDATE])
    total = (degree.micro_batches - 1) * own[SLOWEST] + own[SENDS] + own[SUM]
    own[TIME] = total + own[UPDATE] + own[SYNC]
    if stage == 0:
        _count(watch)
    comm_usd = 2 * egress * degree.micro_batches + own[COMM_USD] + rest[COMM_USD]
    limit_usd = np.float32(frames.budget[stage] / 100)
    if frames.budget[stage] == 0 or np.float32(comm_usd) <= limit_usd:
        if own[TIME] < frames.best_ms[stage]:
            frames.best_ms[stage] = own[TIME]
            frames.best[stage] = own
            frames.best[stage, COMM_USD] = comm_usd
            frames.best[stage, USD_PER_MS] = own[USD_PER_MS] + rest[USD_PER_MS]
            frames.best_child[stage] = child
            frames.best_placed[stage] = frames.placed[stage]
        return False
    if rest[SLOWEST] <= before:
        return False
    frames.remaining[stage] = max(limit_usd - np.float32(comm_usd), np.float32(0))
    return bool(frames.remaining[stage] > 0)


@compiled
def _search(
    task: Task, degree: Degree, watch: Watch, frames: Frames, memo: Memo
) -> tuple[Memo, int]:
    """(memo, index in it of the fastest plan): depth first over the stages, without recursion."""
    depth = task.tp.shape[1]
    stage = 0
    entering, answer = True, -1
    more = False
    while True:
        if entering:
            key = (
                degree.key * 16384 + (depth - stage) * 128 + task.starts[stage],
                frames.name[stage, 0],
                frames.name[stage, 1],
                frames.budget[stage],
            )
            if key in memo.index:
                answer = memo.index[key]
            else:
                answer = -1
                more = _open(task, degree, frames, stage)
        if answer < 0:
            asked = False
            while more and not asked and watch.stop[0] == 0:
                asked = _consider(task, degree, watch, frames, stage)
                if not asked:
                    more = next_deal(frames.slots[stage], frames.k[stage], frames.again[stage] != 0)
            if asked:
                frames.budget[stage + 1] = np.int64(round(frames.remaining[stage] * 100))
                stage += 1
                entering = True
                continue
            if memo.size[0] == len(memo.children):
                memo = _grown(memo)
            answer = memo.size[0]
            memo.size[0] += 1
            memo.figures[answer] = frames.best[stage]
            memo.children[answer] = frames.best_child[stage]
            row = memo.rows[answer]
            at = 0
            for t in range(frames.best_placed.shape[1]):
                for y in range(frames.best_placed.shape[2]):
                    row[at] = frames.best_placed[stage, t, y]
                    at += 1
            row[at] = task.regions[frames.position[stage]]
            state = (
                degree.key * 16384 + (depth - stage) * 128 + task.starts[stage],
                frames.name[stage, 0],
                frames.name[stage, 1],
                frames.budget[stage],
            )
            memo.index[state] = answer
        # The stage before has its answer.
        if stage == 0:
            return memo, answer
        stage -= 1
        if _merge(task, degree, watch, frames, memo, stage, answer):
            frames.budget[stage + 1] = np.int64(round(frames.remaining[stage] * 100))
            stage += 1
            entering = True
            continue
        more = next_deal(frames.slots[stage], frames.k[stage], frames.again[stage] != 0)
        entering = False
        answer = -1


@compiled
def _write(task: Task, memo: Memo, index: int, replicas: Ints, regions: Ints) -> None:
    """Follow an answer from stage to stage."""
    n_types, depth = task.tp.shape
    n_zones = task.zones.shape[1]
    for stage in range(depth):
        row = memo.rows[index]
        for t in range(n_types):
            for y in range(n_zones):
                replicas[stage, t, y] = row[t * n_zones + y]
        regions[stage] = row[-1]
        index = memo.children[index]


@compiled
def solve(
    task: Task,
    watch: Watch,
    free: Ints,
    list_number: int,
    budget_usd: float,
    keys: Ints,
    peers: Ints,
    micro_batches: Ints,
    sync_ms: Floats,
    sync_usd: Floats,
    memo: Memo,
) -> tuple[Found, Memo]:
    """(Found, memo): the fastest plan of every degree, in the order given.

    free: (Z, T) GPUs. list_number: tells region lists apart. budget_usd: of an iteration, 0 =
    none. keys, peers, micro_batches: (n,); sync_ms: (n, Z, T, P); sync_usd: (n, P). memo: the
    release shares one; otherwise it is emptied after every degree.
    """
    n_types, depth = task.tp.shape
    n_zones = task.zones.shape[1]
    n = len(peers)
    found = Found(
        np.zeros(n),
        np.zeros(n),
        np.zeros((n, depth, n_types, n_zones), np.int64),
        np.zeros((n, depth), np.int64),
    )
    frames = _new_frames(task, free)
    frames.free[0] = free
    frames.name[0, 0] = -1 - list_number
    frames.budget[0] = np.int64(round(budget_usd * 100))
    best = np.inf
    in_limit = False
    limited = task.most_ms != 0 if task.by_cost else budget_usd != 0
    for i in range(n):
        if watch.stop[0] != 0:
            break
        degree = Degree(keys[i], peers[i], micro_batches[i], sync_ms[i], sync_usd[i])
        if task.prune:
            floor = (degree.micro_batches - 1) * task.slowest_ms[0] + task.sum_ms[0]
            if floor >= watch.best_ms[0]:
                continue
        if not task.release:
            memo.index.clear()
            memo.size[0] = 0
        memo, index = _search(task, degree, watch, frames, memo)
        time_ms = memo.figures[index, TIME]
        if not time_ms > 0:
            continue
        cost = np.float32(memo.figures[index, COMM_USD] + memo.figures[index, USD_PER_MS] * time_ms)
        value = np.float64(cost) if task.by_cost else time_ms
        if value < best:
            if not limited:
                best = value
            elif time_ms <= task.most_ms if task.by_cost else cost < np.float32(budget_usd):
                best, in_limit = value, True
        elif task.stops and (in_limit or not limited):
            break
        found.time_ms[i] = time_ms
        found.usd[i] = cost
        _write(task, memo, index, found.replicas[i], found.regions[i])
        watch.best_ms[0] = min(watch.best_ms[0], time_ms)
    return found, memo
