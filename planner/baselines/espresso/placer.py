"""Espresso's stage placer: order of GPU types along the pipeline and layers of each; compiled.

A greedy walk that gives a stage what its gradient synchronisation can hide behind the stages
before it, what its memory holds and what its speed deserves, once for every size of the first
stage; the fastest by a simulation of 1F1B is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Machine code, kept on disk; other threads run meanwhile."""
    return njit(cache=True, nogil=True)(function)  # type: ignore[no-any-return]


class Job(NamedTuple):
    """What a placement reads: one depth P, DP and TP degree and micro-batch size; T GPU types.

    Times in ms, of one micro-batch or one synchronisation.
    """

    blocks: int
    micro_batches: int
    power: Floats  # (T,) what blocks are dealt in proportion to
    forward_ms: Floats  # (T,) a block
    backward_ms: Floats  # (T,)
    first_ms: Floats  # (T, 2) forward and backward of what the first stage holds besides
    last_ms: Floats  # (T, 2)
    send_ms: Floats  # (T,) what a stage adds to its forward for its transfers
    sync_ms: Floats  # (T,) of a block
    first_sync_ms: Floats  # (T,)
    last_sync_ms: Floats  # (T,)
    slack_ms: Floats  # (T,) backward of a block, as the walk counts it
    most: Ints  # (T, P) blocks that fit at a stage
    release: bool  # plans of more or fewer blocks than the model has, or none on a stage, count too


@compiled
def simulated_ms(forward_ms: Floats, backward_ms: Floats, sync_ms: Floats, m: int) -> float:
    """1F1B of m micro-batches by events, each stage's synchronisation after its last backward.

    Stage i of P runs min(P - i, m) forwards, then backward and forward in turn. Shapes (P,).
    """
    depth = len(forward_ms)
    done = np.zeros((2, depth, m))  # ends of forwards and backwards
    forwards = np.zeros(depth, np.int64)
    backwards = np.zeros(depth, np.int64)
    now = np.zeros(depth)
    left = 2 * m * depth
    while left > 0:
        for i in range(depth):
            while backwards[i] < m:
                f, b = forwards[i], backwards[i]
                if f < m and f - b < min(depth - i, m):
                    if i > 0 and forwards[i - 1] <= f:
                        break
                    start = max(now[i], done[0, i - 1, f]) if i > 0 else now[i]
                    now[i] = start + forward_ms[i]
                    done[0, i, f] = now[i]
                    forwards[i] += 1
                else:
                    if i < depth - 1 and backwards[i + 1] <= b:
                        break
                    start = max(now[i], done[1, i + 1, b]) if i < depth - 1 else now[i]
                    now[i] = start + backward_ms[i]
                    done[1, i, b] = now[i]
                    backwards[i] += 1
                left -= 1
    return float((now + sync_ms).max())


@compiled
def estimate_ms(job: Job, order: Ints, layers: Ints, best_ms: float) -> float:
    """Iteration time of a placement; infinite where it does not fit or cannot beat best_ms."""
    depth = len(order)
    forward = np.zeros(depth)
    backward = np.zeros(depth)
    sync = np.zeros(depth)
    slowest = 0.0
    for i in range(depth):
        g, n = order[i], layers[i]
        if n > job.most[g, i]:
            return np.inf
        forward[i] = n * job.forward_ms[g]
        backward[i] = n * job.backward_ms[g]
        sync[i] = n * job.sync_ms[g]
        # The release counts the head alone where one stage is both.
        if i == 0 and not (job.release and depth == 1):
            forward[i] += job.first_ms[g, 0]
            backward[i] += job.first_ms[g, 1]
            sync[i] += job.first_sync_ms[g]
        if i == depth - 1:
            forward[i] += job.last_ms[g, 0]
            backward[i] += job.last_ms[g, 1]
            sync[i] += job.last_sync_ms[g]
        forward[i] += job.send_ms[g]
        slowest = max(slowest, forward[i] + backward[i])
    if job.micro_batches * slowest >= best_ms:
        return np.inf
    return simulated_ms(forward, backward, sync, job.micro_batches)


@compiled
def _walk(job: Job, counts: Ints, first: int, order: Ints, layers: Ints) -> bool:
    """Choose types and layers with `first` blocks on the first stage; whether all found a type."""
    depth = len(order)
    types = len(counts)
    remaining = counts.copy()
    share = np.zeros(types, np.int64)
    total = (job.power * counts).sum()
    for g in range(types):
        share[g] = int(job.power[g] / total * job.blocks)
    held = np.zeros(depth, np.int64)  # min of what can be hidden and what memory holds
    slack = 0.0
    left = job.blocks
    sync = first_sync = 0.0
    for g in range(types):
        if counts[g] > 0:
            sync = max(sync, job.sync_ms[g])
            first_sync = max(first_sync, job.first_sync_ms[g])
    for i in range(depth):
        hidden = first
        if i > 0:
            hidden = 0
            while hidden < left and (hidden + 1) * sync < slack:
                hidden += 1
        chosen = -1
        key = 0
        for g in range(types):
            if remaining[g] == 0 or (i == 0 and job.most[g, 0] < first):
                continue
            kept = min(hidden, job.most[g, i]) if i > 0 else first
            if chosen < 0 or share[g] - kept < key:
                chosen, key = g, share[g] - kept
        if chosen < 0:
            return False
        remaining[chosen] -= 1
        order[i] = chosen
        held[i] = min(hidden, job.most[chosen, i])
        layers[i] = min(held[i], share[chosen])
        slack += layers[i] * job.slack_ms[chosen]
        left -= layers[i]
        if i == 0:
            slack += layers[0] * sync + first_sync if sync > 0 else 0.0
    layers[0] = first
    _spread(job.blocks - layers.sum(), held, layers)
    return True


@compiled
def _spread(more: int, held: Ints, layers: Ints) -> None:
    """Give the blocks that are left one by one to the stage with the most head-room."""
    for _ in range(more):
        best = 0
        for i in range(1, len(layers)):
            room, best_room = layers[i] - held[i], layers[best] - held[best]
            if room < best_room or (room == best_room and layers[i] < layers[best]):
                best = i
        layers[best] += 1


@compiled
def place(job: Job, counts: Ints, best_ms: float) -> tuple[float, Ints, Ints, int]:
    """(ms, types, layers) of the fastest placement of a multiset of GPU types, shape (P,).

    counts: stages of each type. best_ms: placements not faster need not be timed. Infinite where
    there is none. Fourth: how many were looked at.
    """
    depth = counts.sum()
    order = np.zeros(depth, np.int64)
    layers = np.zeros(depth, np.int64)
    best_order = np.zeros(depth, np.int64)
    best_layers = np.zeros(depth, np.int64)
    found = np.inf
    timed = 0
    for first in range(1, job.blocks + 1):
        if not _walk(job, counts, first, order, layers):
            break
        if not job.release and (layers.sum() != job.blocks or layers.min() < 1):
            continue
        timed += 1
        took = estimate_ms(job, order, layers, min(found, best_ms))
        if took < found:
            found = took
            best_order[:] = order
            best_layers[:] = layers
    return found, best_order, best_layers, timed
