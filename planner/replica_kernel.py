"""The cheapest replica at given prices, by dynamic programming: the inner loop of the certificate.

Compiled, because one certificate asks for it a few thousand times. What is minimised, and why the
answer proves a bound, stands in docs/decisions/0003-certificate.md; arrays and indices here:

    Z layers, boundaries 0..Z; O options (class, TP), sorted by class; C classes of nodes;
    Q labels (how much leaves a node's card together, in messages of this replica's size).
    i: boundary where a run of stages inside one node starts, k: where its last stage starts,
    j: where it ends; v: GPUs of the run so far.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.kernel.jit import compiled

INFINITE = 1e300
# Figures of a replica per class, in this order; then sum and maximum of its stage times.
GPUS, UPDATE, SYNC, OUT, IN, PER_CLASS = 0, 1, 2, 3, 4, 5

Array = Any  # numpy arrays of the shapes above; numba checks their types


@compiled
def _last_within(send: Array, slack: float) -> int:
    """The last label whose send takes no longer than the slack, -1 for none; sends rise."""
    q: int = send.shape[0] - 1
    while q >= 0 and send[q] > slack:
        q -= 1
    return q


@compiled
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


@compiled
def _kept(
    option_host: Array, time: Array, first: Array, slowest: float, ceiling: int, layers: int
) -> Array:
    """Per boundary j, micro-batches that a stage ending there keeps at least, up to `ceiling`.

    A stage with n stages behind it keeps min(M, n + 1); n is at least the number of stages that
    the layers behind j need when each stage is as long as time and memory allow.
    """
    reach = np.full(layers + 1, layers, np.int64)
    for o in range(option_host.shape[0]):
        i = 0
        for j in range(1, layers + 1):
            i = max(i, first[o, 1, j])
            while i < j and option_host[o] + time[o, j] - time[o, i] > slowest:
                i += 1
            if i < j:
                reach[j] = min(reach[j], i)
    kept = np.full(layers + 1, ceiling, np.int64)
    j, behind = layers, 0
    kept[layers] = 1
    while j > 0 and reach[j] < j:
        behind += 1
        for i in range(reach[j], j):
            kept[i] = min(behind + 1, ceiling)
        j = reach[j]
    return kept


@compiled
def _to_go(
    option_from: Array,
    option_tp: Array,
    option_host: Array,
    time: Array,
    update: Array,
    first: Array,
    near: Array,
    sync: Array,
    send: Array,
    cost_out: Array,
    cost_in: Array,
    prices: Array,
    weight: float,
    slowest: float,
    kept: Array,
) -> Array:
    """Per boundary i, what the stages behind it cost at least; INFINITE where there are none.

    As `cheapest_replica`, but each stage for itself: every send is the cheaper of one inside a
    node and one to another, and no stage pays for the layers of its neighbours on the node.
    """
    layers = time.shape[1] - 1
    rest = np.full(layers + 1, INFINITE)
    rest[layers] = 0.0
    for i in range(layers - 1, -1, -1):
        for c in range(near.shape[0]):
            quickest = min(near[c], send[c, 0])
            out = min(weight * near[c], cost_out[c].min())
            back = min(weight * near[c], cost_in[c].min()) if i > 0 else 0.0
            for o in range(option_from[c], option_from[c + 1]):
                fixed = prices[GPUS, c] * option_tp[o] + back
                spare = slowest - option_host[o] - (quickest if i > 0 else 0.0)
                updates = prices[UPDATE, c] * option_tp[o]
                syncs = prices[SYNC, c] * option_tp[o]
                for j in range(i + 1, layers + 1):
                    took = time[o, j] - time[o, i]
                    if took > spare:
                        break
                    if rest[j] >= INFINITE or first[o, kept[j], j] > i:
                        continue
                    cost = fixed + weight * (option_host[o] + took) + rest[j]
                    cost += updates * (update[o, j] - update[o, i])
                    cost += syncs * (sync[c, j] - sync[c, i])
                    if j < layers:
                        if took + quickest > spare:
                            continue
                        cost += out
                    rest[i] = min(rest[i], cost)
    return rest


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
    figures[:] = 0.0
    kept = _kept(option_host, time, first, slowest, ceiling, layers)

    send = np.empty((classes, labels))
    cost_out = np.empty((classes, labels))
    cost_in = np.empty((classes, labels))
    least_out = np.zeros((classes, labels), np.int64)
    least_in = np.zeros((classes, labels), np.int64)
    for c in range(classes):
        for q in range(labels):
            send[c, q] = latency[c] + label[c, q] * card[c]
            cost_out[c, q] = weight * send[c, q] + prices[OUT, c] * share[c, q]
            cost_in[c, q] = weight * send[c, q] + prices[IN, c] * share[c, q]
            if q > 0:
                least_out[c, q] = least_out[c, q - 1]
                least_in[c, q] = least_in[c, q - 1]
            if cost_out[c, q] < cost_out[c, least_out[c, q]]:
                least_out[c, q] = q
            if cost_in[c, q] < cost_in[c, least_in[c, q]]:
                least_in[c, q] = q

    rest = _to_go(
        option_from,
        option_tp,
        option_host,
        time,
        update,
        first,
        near,
        sync,
        send,
        cost_out,
        cost_in,
        prices,
        weight,
        slowest,
        kept,
    )
    if rest[0] >= limit:
        return INFINITE
    best = np.full(layers + 1, INFINITE)
    best[0] = 0.0
    origin = np.zeros((layers + 1, 5), np.int64)  # i, c, v, option and start of the last stage
    # Runs that start at i on class c, cover up to j with v GPUs and go on inside the node.
    run = np.empty((widest + 1, layers + 1))
    run_origin = np.empty((layers, classes, widest + 1, layers + 1, 2), np.int16)
    for i in range(layers):
        if best[i] + rest[i] >= limit:
            continue
        for c in range(classes):
            run[:, :] = INFINITE
            for held in range(size[c]):
                # held = 0: the first stage of the run, which starts at i; else stages after it.
                for k in range(i, layers if held > 0 else i + 1):
                    so_far = best[i] if held == 0 else run[held, k]
                    if so_far + rest[k] >= limit:
                        continue
                    inside = 0.0 if held == 0 else near[c]
                    left = held == 0 and i > 0
                    for o in range(option_from[c], option_from[c + 1]):
                        v = held + option_tp[o]
                        if v > size[c]:
                            continue
                        for j in range(k + 1, layers + 1):
                            work = option_host[o] + time[o, j] - time[o, k] + inside
                            if work > slowest:
                                break
                            if first[o, kept[j], j] > k:
                                continue
                            paid = so_far + weight * work + prices[GPUS, c] * option_tp[o]
                            paid += prices[UPDATE, c] * option_tp[o] * (update[o, j] - update[o, k])
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
                            if j == layers or v == size[c] or work + near[c] > slowest:
                                continue
                            ends, _, _ = _ends(
                                left,
                                False,
                                slowest - work - near[c],
                                send[c],
                                cost_out[c],
                                cost_in[c],
                                least_out[c],
                                least_in[c],
                            )
                            onward = paid + ends + weight * near[c]
                            if onward < run[v, j]:
                                run[v, j] = onward
                                run_origin[i, c, v, j, 0] = o
                                run_origin[i, c, v, j, 1] = k
    if best[layers] >= limit:
        return INFINITE

    j = layers
    while j > 0:
        i, c, v, o, k = origin[j]
        figures[SYNC * classes + c] += v * (sync[c, j] - sync[c, i])
        right_inside = False
        end = j
        while True:
            left = k == i and v == option_tp[o] and i > 0
            right = not right_inside and end < layers
            took = option_host[o] + time[o, end] - time[o, k]
            if v > option_tp[o]:
                took += near[c]
            if right_inside:
                took += near[c]
            _, label_out, label_in = _ends(
                left,
                right,
                slowest - took,
                send[c],
                cost_out[c],
                cost_in[c],
                least_out[c],
                least_in[c],
            )
            if right:
                took += send[c, label_out]
                figures[OUT * classes + c] += share[c, label_out]
            if left:
                took += send[c, label_in]
                figures[IN * classes + c] += share[c, label_in]
            figures[GPUS * classes + c] += option_tp[o]
            figures[UPDATE * classes + c] += option_tp[o] * (update[o, end] - update[o, k])
            figures[PER_CLASS * classes] += took
            figures[PER_CLASS * classes + 1] = max(figures[PER_CLASS * classes + 1], took)
            v -= option_tp[o]
            if v == 0:
                break
            end = k
            right_inside = True
            o, k = run_origin[i, c, v, end, 0], run_origin[i, c, v, end, 1]
        j = i
    least: float = best[layers]
    return least
