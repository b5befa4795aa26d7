"""How D replicas of a stage are dealt to GPU types and zones, and what that takes; compiled."""

from __future__ import annotations

import numpy as np

from planner.baselines.sailor.state import Degree, Ints, Task, compiled


@compiled
def least_deal(slots: Ints, total: int, first: int, k: Ints) -> bool:
    """Deal `total` replicas to the types from `first` on, in lexicographic order the first way."""
    after = 0
    for t in range(first, len(k)):
        after += slots[t]
    if after < total:
        return False
    for t in range(first, len(k)):
        after -= slots[t]
        k[t] = max(0, total - after)
        total -= k[t]
    return True


@compiled
def next_deal(slots: Ints, k: Ints, last_pair_done: bool) -> bool:
    """The next way in lexicographic order.

    last_pair_done: of the ways that differ only in the last two types and use both of them, the
    rest may be passed over (they take the same time).
    """
    n = len(k)
    tail = k[n - 1]
    for t in range(n - 2, -1, -1):
        if tail > 0 and k[t] < slots[t]:
            step = 1
            if last_pair_done and t == n - 2 and k[t] > 0 and tail > 1:
                step = min(tail, slots[t] - k[t])
                if step < tail:
                    # Both types stay in use to the end: nothing new here.
                    tail += k[t]
                    continue
            k[t] += step
            return least_deal(slots, tail - step, t + 1, k)
        tail += k[t]
    return False


@compiled
def take_gpus(
    task: Task,
    free: Ints,
    zones: Ints,
    k: Ints,
    stage: int,
    last: bool,
    left: Ints,
    placed: Ints,
) -> bool:
    """Take the GPUs of k replicas from the zones of a region, one zone after the other.

    left: what stays free, placed: (T, Y) replicas by zone. Whether all found room.
    """
    placed[:] = 0
    left[:] = free
    count = 0
    while count < len(zones) and zones[count] >= 0:
        count += 1
    for t in range(len(k)):
        if k[t] == 0:
            continue
        tp = task.tp[t, stage]
        y = 0
        room = free[zones[0], t]
        done = 0
        while done < k[t]:
            if last and task.release:
                # The release moves on by one zone only and does not look again.
                if room < tp:
                    y += 1
                    if y == count:
                        break
                    room = free[zones[y], t]
                placed[t, y] += 1
                room -= tp
                done += 1
                continue
            while room < tp and y < count:
                left[zones[y], t] = room
                y += 1
                if y < count:
                    room = free[zones[y], t]
            if y == count:
                break
            whole = min(k[t] - done, room // tp)
            placed[t, y] += whole
            room -= whole * tp
            done += whole
        if done != k[t]:
            return False
        if y < count:
            left[zones[y], t] = max(room, 0)
    return True


@compiled
def worst_send(
    task: Task, stage: int, region: int, placed: Ints, rest_region: int, rest: Ints
) -> tuple[float, float]:
    """(ms, USD): the slowest of the sends of one activation to the next stage, and all egress.

    Replica r sends to replica r, both in the order type, then zone.
    """
    n_types, n_zones = placed.shape
    t = y = u = v = 0
    here = placed[0, 0]
    there = rest[0]
    worst = usd = 0.0
    while True:
        while here == 0:
            y += 1
            if y == n_zones:
                y = 0
                t += 1
                if t == n_types:
                    return worst, usd
            here = placed[t, y]
        while there == 0:
            v += 1
            if v == n_zones:
                v = 0
                u += 1
            there = rest[u * n_zones + v]
        pairs = min(here, there)
        a, b = task.zones[region, y], task.zones[rest_region, v]
        worst = max(worst, task.send_ms[stage, a, b, t, u])
        usd += pairs * task.send_usd[a, b]
        here -= pairs
        there -= pairs


@compiled
def stage_figures(
    task: Task, degree: Degree, k: Ints, stage: int, region: int, placed: Ints, last: bool
) -> tuple[float, float, float, int]:
    """(ms of a micro-batch, ms of synchronisation, ms of the update, zones in use)."""
    first_zone = task.zones[region, 0]
    slowest = update = 0.0
    narrow = np.inf
    sync = 0.0
    used = 0
    for y in range(placed.shape[1]):
        for t in range(len(k)):
            if placed[t, y] > 0:
                used += 1
                break
    for t in range(len(k)):
        if k[t] == 0:
            continue
        slowest = max(slowest, task.stage_ms[t, stage])
        update = max(update, task.update_ms[t, stage])
        for y in range(placed.shape[1]):
            if y > 0 and task.release and not last:
                break  # the release looks at the first zone only, but for the last stage
            in_use = y == 0 and task.release and not last
            for u in range(len(k)):
                in_use = in_use or placed[u, y] > 0
            if not in_use:
                continue
            width = task.bandwidth[first_zone, task.zones[region, y], t, stage]
            if width < narrow:
                narrow = width
                sync = degree.sync_ms[first_zone, t, stage]
    if degree.peers == 1:
        sync = 0.0
    if task.release and not last:
        used = 1
    return slowest, sync, update, used
