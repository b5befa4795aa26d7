"""The cheapest replica at given prices, by dynamic programming: the inner loop of the certificate.

Compiled, because one certificate asks for it a few thousand times. What is minimised, and why the
answer proves a bound, stands in docs/decisions/0003-certificate.md; arrays and indices here:

    Z layers, boundaries 0..Z; O options (class, TP), sorted by class; C classes of nodes;
    Q labels (how much leaves a node's card together, in messages of this replica's size).
    i: boundary where a run of stages inside one node starts, k: where its last stage starts,
    j: where it ends; v: GPUs of the run so far.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from planner.kernel.jit import compiled, in_place, inlined

INFINITE = 1e300
# Figures of a replica per class, in this order; then sum and maximum of its stage times.
GPUS, UPDATE, SYNC, OUT, IN, PER_CLASS = 0, 1, 2, 3, 4, 5

Array = Any  # numpy arrays of the shapes above; numba checks their types


class _Given(NamedTuple):
    """The arguments of `cheapest_replica` that are arrays, but for `figures`."""

    option_from: Array
    option_tp: Array
    option_host: Array
    time: Array
    update: Array
    first: Array
    size: Array
    latency: Array
    card: Array
    near: Array
    sync: Array
    label: Array
    share: Array
    prices: Array


class _Room(NamedTuple):
    """What one search works in."""

    send: Array  # (C, Q) ms of a message that leaves the node
    cost_out: Array  # (C, Q) of it at the prices, outgoing and incoming
    cost_in: Array
    least_out: Array  # (C, Q) the cheapest label up to this one
    least_in: Array
    reach: Array  # (Z+1,)
    kept: Array  # (Z+1,) micro-batches that a stage ending here keeps at least
    rest: Array  # (Z+1,) least cost of what is behind a boundary
    best: Array  # (Z+1,) least cost of what is in front of it
    origin: Array  # (Z+1, 5) i, c, v, option and start of the last stage
    run: Array  # (V+1, Z+1) runs that start at i on class c and go on inside the node
    run_origin: Array  # (Z, C, V+1, Z+1, 2)


@inlined
def _last_within(send: Array, slack: float) -> int:
    """The last label whose send takes no longer than the slack, -1 for none; sends rise."""
    q: int = send.shape[0] - 1
    while q >= 0 and send[q] > slack:
        q -= 1
    return q


@inlined
def _ends(
    left: bool,
    right: bool,
    slack: float,
    send: Array,
    cost_out: Array,
    cost_in: Array,
    least_out: Array,
    least_in: Array,
) -> tuple[float, int, int]:
    """Least cost of the sends to other nodes of one stage: (cost, label out, label in).

    left: it sends a gradient back, right: an activation forward, each to another node.
    """
    if not left and not right:
        return (0.0, -1, -1) if slack >= 0 else (INFINITE, -1, -1)
    if right and not left:
        q = _last_within(send, slack)
        return (INFINITE, -1, -1) if q < 0 else (cost_out[least_out[q]], least_out[q], -1)
    if left and not right:
        q = _last_within(send, slack)
        return (INFINITE, -1, -1) if q < 0 else (cost_in[least_in[q]], -1, least_in[q])
    best, best_out, best_in = INFINITE, -1, -1
    for a in range(send.shape[0]):
        q = _last_within(send, slack - send[a])
        if q < 0:
            break
        cost = cost_out[a] + cost_in[least_in[q]]
        if cost < best:
            best, best_out, best_in = cost, a, least_in[q]
    return best, best_out, best_in


@inlined
def _cost_sends(given: _Given, weight: float, room: _Room) -> None:
    """Write what every label costs as a send to another node, and the cheapest up to each."""
    for c in range(room.send.shape[0]):
        for q in range(room.send.shape[1]):
            took = given.latency[c] + given.label[c, q] * given.card[c]
            room.send[c, q] = took
            room.cost_out[c, q] = weight * took + given.prices[OUT, c] * given.share[c, q]
            room.cost_in[c, q] = weight * took + given.prices[IN, c] * given.share[c, q]
            room.least_out[c, q] = room.least_out[c, q - 1] if q > 0 else 0
            room.least_in[c, q] = room.least_in[c, q - 1] if q > 0 else 0
            if room.cost_out[c, q] < room.cost_out[c, room.least_out[c, q]]:
                room.least_out[c, q] = q
            if room.cost_in[c, q] < room.cost_in[c, room.least_in[c, q]]:
                room.least_in[c, q] = q


@inlined
def _keep(given: _Given, slowest: float, ceiling: int, room: _Room) -> None:
    """Write the micro-batches that a stage ending at each boundary keeps at least, or `ceiling`.

    A stage with n stages behind it keeps min(M, n + 1); n is at least the number of stages that
    the layers behind j need when each stage is as long as time and memory allow.
    """
    time, reach, kept = given.time, room.reach, room.kept
    layers = time.shape[1] - 1
    for j in range(layers + 1):
        reach[j] = layers
        kept[j] = ceiling
    for o in range(time.shape[0]):
        i = 0
        for j in range(1, layers + 1):
            i = max(i, given.first[o, 1, j])
            while i < j and given.option_host[o] + time[o, j] - time[o, i] > slowest:
                i += 1
            if i < j:
                reach[j] = min(reach[j], i)
    j, behind = layers, 0
    kept[layers] = 1
    while j > 0 and reach[j] < j:
        behind += 1
        for i in range(reach[j], j):
            kept[i] = min(behind + 1, ceiling)
        j = reach[j]


@inlined
def _cost_rest(given: _Given, weight: float, slowest: float, room: _Room) -> None:
    """Write what the stages behind each boundary cost at least; INFINITE where there are none.

    As in `_search`, but each stage for itself: every send is the cheaper of one inside a node and
    one to another, and no stage pays for the layers of its neighbours on the node.
    """
    time, update, sync, rest = given.time, given.update, given.sync, room.rest
    layers, last = time.shape[1] - 1, room.send.shape[1] - 1
    for i in range(layers):
        rest[i] = INFINITE
    rest[layers] = 0.0
    for i in range(layers - 1, -1, -1):
        for c in range(given.near.shape[0]):
            near = given.near[c]
            quickest = min(near, room.send[c, 0])
            out = min(weight * near, room.cost_out[c, room.least_out[c, last]])
            back = min(weight * near, room.cost_in[c, room.least_in[c, last]]) if i > 0 else 0.0
            for o in range(given.option_from[c], given.option_from[c + 1]):
                tp = given.option_tp[o]
                fixed = given.prices[GPUS, c] * tp + back
                spare = slowest - given.option_host[o] - (quickest if i > 0 else 0.0)
                updates = given.prices[UPDATE, c] * tp
                syncs = given.prices[SYNC, c] * tp
                for j in range(i + 1, layers + 1):
                    took = time[o, j] - time[o, i]
                    if took > spare:
                        break
                    if rest[j] >= INFINITE or given.first[o, room.kept[j], j] > i:
                        continue
                    cost = fixed + weight * (given.option_host[o] + took) + rest[j]
                    cost += updates * (update[o, j] - update[o, i])
                    cost += syncs * (sync[c, j] - sync[c, i])
                    if j < layers:
                        if took + quickest > spare:
                            continue
                        cost += out
                    rest[i] = min(rest[i], cost)


@inlined
def _search(given: _Given, weight: float, slowest: float, limit: float, room: _Room) -> None:
    """Write the least cost up to each boundary, and where it comes from, if it may be < limit."""
    option_host, option_tp, time, first = (
        given.option_host,
        given.option_tp,
        given.time,
        given.first,
    )
    size, update, sync, prices = given.size, given.update, given.sync, given.prices
    send, cost_out, cost_in = room.send, room.cost_out, room.cost_in
    least_out, least_in = room.least_out, room.least_in
    best, rest, run, kept, origin = room.best, room.rest, room.run, room.kept, room.origin
    layers = time.shape[1] - 1
    for j in range(1, layers + 1):
        best[j] = INFINITE
    best[0] = 0.0
    for i in range(layers):
        if best[i] + rest[i] >= limit:
            continue
        for c in range(size.shape[0]):
            near = given.near[c]
            for v in range(run.shape[0]):
                for j in range(layers + 1):
                    run[v, j] = INFINITE
            for held in range(size[c]):
                # held = 0: the first stage of the run, which starts at i; else stages after it.
                for k in range(i, layers if held > 0 else i + 1):
                    so_far = best[i] if held == 0 else run[held, k]
                    if so_far + rest[k] >= limit:
                        continue
                    inside = 0.0 if held == 0 else near
                    left = held == 0 and i > 0
                    for o in range(given.option_from[c], given.option_from[c + 1]):
                        tp = option_tp[o]
                        v = held + tp
                        if v > size[c]:
                            continue
                        for j in range(k + 1, layers + 1):
                            work = option_host[o] + time[o, j] - time[o, k] + inside
                            if work > slowest:
                                break
                            if first[o, kept[j], j] > k:
                                continue
                            paid = so_far + weight * work + prices[GPUS, c] * tp
                            paid += prices[UPDATE, c] * tp * (update[o, j] - update[o, k])
                            if paid + rest[j] >= limit:
                                continue
                            ends, _, _ = _ends(
                                left,
                                j < layers,
                                slowest - work,
                                send[c],
                                cost_out[c],
                                cost_in[c],
                                least_out[c],
                                least_in[c],
                            )
                            whole = paid + ends + prices[SYNC, c] * v * (sync[c, j] - sync[c, i])
                            if whole < best[j]:
                                best[j] = whole
                                origin[j, 0] = i
                                origin[j, 1] = c
                                origin[j, 2] = v
                                origin[j, 3] = o
                                origin[j, 4] = k
                            if j == layers or v == size[c] or work + near > slowest:
                                continue
                            ends, _, _ = _ends(
                                left,
                                False,
                                slowest - work - near,
                                send[c],
                                cost_out[c],
                                cost_in[c],
                                least_out[c],
                                least_in[c],
                            )
                            onward = paid + ends + weight * near
                            if onward < run[v, j]:
                                run[v, j] = onward
                                room.run_origin[i, c, v, j, 0] = o
                                room.run_origin[i, c, v, j, 1] = k


@inlined
def _add_up(given: _Given, slowest: float, room: _Room, figures: Array) -> None:
    """Add the figures of the replica found, from its last stage to its first."""
    time, update, sync = given.time, given.update, given.sync
    layers, classes = time.shape[1] - 1, given.size.shape[0]
    j = layers
    while j > 0:
        i, c, v = room.origin[j, 0], room.origin[j, 1], room.origin[j, 2]
        o, k = room.origin[j, 3], room.origin[j, 4]
        figures[SYNC * classes + c] += v * (sync[c, j] - sync[c, i])
        right_inside = False
        end = j
        while True:
            tp = given.option_tp[o]
            left = k == i and v == tp and i > 0
            right = not right_inside and end < layers
            took = given.option_host[o] + time[o, end] - time[o, k]
            if v > tp:
                took += given.near[c]
            if right_inside:
                took += given.near[c]
            _, label_out, label_in = _ends(
                left,
                right,
                slowest - took,
                room.send[c],
                room.cost_out[c],
                room.cost_in[c],
                room.least_out[c],
                room.least_in[c],
            )
            if right:
                took += room.send[c, label_out]
                figures[OUT * classes + c] += given.share[c, label_out]
            if left:
                took += room.send[c, label_in]
                figures[IN * classes + c] += given.share[c, label_in]
            figures[GPUS * classes + c] += tp
            figures[UPDATE * classes + c] += tp * (update[o, end] - update[o, k])
            figures[PER_CLASS * classes] += took
            figures[PER_CLASS * classes + 1] = max(figures[PER_CLASS * classes + 1], took)
            v -= tp
            if v == 0:
                break
            o, k, end = room.run_origin[i, c, v, k, 0], room.run_origin[i, c, v, k, 1], k
            right_inside = True
        j = i


@in_place
def _cheapest(
    given: _Given,
    weight: float,
    slowest: float,
    ceiling: int,
    limit: float,
    room: _Room,
    figures: Array,
) -> float:
    """As `cheapest_replica`, with room to work in."""
    for i in range(figures.shape[0]):
        figures[i] = 0.0
    _cost_sends(given, weight, room)
    _keep(given, slowest, ceiling, room)
    _cost_rest(given, weight, slowest, room)
    if room.rest[0] >= limit:
        return INFINITE
    _search(given, weight, slowest, limit, room)
    least: float = room.best[room.best.shape[0] - 1]
    if least >= limit:
        return INFINITE
    _add_up(given, slowest, room, figures)
    return least


@compiled
def cheapest_replica(
    option_from: Array,
    option_tp: Array,
    option_host: Array,
    time: Array,
    update: Array,
    first: Array,
    size: Array,
    latency: Array,
    card: Array,
    near: Array,
    sync: Array,
    label: Array,
    share: Array,
    prices: Array,
    weight: float,
    slowest: float,
    ceiling: int,
    limit: float,
    figures: Array,
) -> float:
    """Least of sum_c prices_c * figures_c + weight * sum t_s over all replicas with t_s <= slowest.

    Only a cost below `limit` is of interest; INFINITE where there is none.

    option_from (C+1,): options of each class. time, update (O, Z+1): ms of the first layers.
    first (O, K+1, Z+1): earliest start of a stage that ends at j and fits the memory with k
    micro-batches in flight. card (C,): ms of one message on the network card. near (C,): ms of a
    message inside a node. sync (C, Z+1): full ring time of the first layers. label, share (C, Q).
    prices (5, C): per GPU, per ms of update and of ring, per outgoing and incoming share of a card.
    figures (5 C + 2,): filled in for the replica found.
    """
    layers = time.shape[1] - 1
    classes = size.shape[0]
    labels = label.shape[1]
    widest = 0
    for c in range(classes):
        widest = max(widest, size[c])
    given = _Given(
        option_from,
        option_tp,
        option_host,
        time,
        update,
        first,
        size,
        latency,
        card,
        near,
        sync,
        label,
        share,
        prices,
    )
    room = _Room(
        np.empty((classes, labels)),
        np.empty((classes, labels)),
        np.empty((classes, labels)),
        np.empty((classes, labels), np.int64),
        np.empty((classes, labels), np.int64),
        np.empty(layers + 1, np.int64),
        np.empty(layers + 1, np.int64),
        np.empty(layers + 1),
        np.empty(layers + 1),
        np.empty((layers + 1, 5), np.int64),
        np.empty((widest + 1, layers + 1)),
        np.empty((layers, classes, widest + 1, layers + 1, 2), np.int16),
    )
    return float(_cheapest(given, weight, slowest, ceiling, limit, room, figures))
