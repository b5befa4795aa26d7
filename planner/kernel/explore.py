"""Compiled exhaustion: every sequence of filled templates within a stated space.

The space: up to `most` templates one behind the other; each any of the given structures, with
every number of replicas that packs, both placements, every micro-batch size; layers and tilings by
the fill. A sequence goes on only behind templates that are a plan that fits, and where
`best_further` leaves hope for a better one.
"""

from __future__ import annotations

import numpy as np

from planner.kernel.fill import fill_placed, most_replicas, prepare
from planner.kernel.jit import in_place
from planner.kernel.packing import REPLICA, STAGE, pack
from planner.kernel.state import (
    BATCH,
    DEPTH,
    EVALUATIONS,
    KIND,
    ONCE,
    PIPE,
    REPLICAS,
    SLOWEST,
    TOTAL,
    UPDATES,
    Array,
    Laid,
    Room,
)
from planner.kernel.tables import GPUS, KIND_GPU, TP, Tables

HALVINGS = 60
ROUNDING = 1 - 1e-9
STRUCTURE, GIVEN, PLACED, SIZE = 0, 1, 2, 3  # of level; GIVEN: replicas


@in_place
def best_further(tables: Tables, laid: Laid, count: int, worth: Array, room: Room) -> float:
    """No plan that has these `count` templates, just priced, and more is faster, in ms.

    worth: per node, what one of its GPUs can train at most, in samples/ms: the price of its class
    over Y (planner/bound.py: at prices pi a replica spends at least Y per sample, so GPUs of worth
    w in all train at most w T samples in T ms). Templates to come can only slow the transfers of
    those that are there, so the pipeline takes at least every sum t_k, and at least the T with
    sum_k r_k b_k (1 + (T - sum t_k) / max t_k) + w T = B. `least_once` comes on top.
    """
    pipe = least = free = 0.0
    for n in range(worth.shape[0]):
        free += worth[n] * tables.node_int[GPUS, n]
    for k in range(count):
        pipe = max(pipe, room.template_real[PIPE, k])
        least = max(least, room.template_real[TOTAL, k])
        depth = laid.shape[DEPTH, k]
        for r in range(laid.shape[REPLICAS, k]):
            for s in range(depth):
                tp = tables.kind_int[TP, laid.stage[KIND, k, s]]
                free -= worth[laid.node[k, r * depth + s]] * tp
    low, high = least, pipe
    for _ in range(HALVINGS):
        time = 0.5 * (low + high)
        samples = free * time
        for k in range(count):
            more = (time - room.template_real[TOTAL, k]) / room.template_real[SLOWEST, k]
            each = laid.shape[REPLICAS, k] * tables.size[laid.shape[BATCH, k]]
            samples += each * (1.0 + more)
        if samples >= tables.global_batch:
            high = time
        else:
            low = time
    return low * ROUNDING + least_once(tables, laid, count, room)


@in_place
def least_once(tables: Tables, laid: Laid, count: int, room: Room) -> float:
    """What comes once per iteration is at least this, whatever templates are added, in ms.

    One more owner of a gradient layer on N >= 2 nodes makes its ring longer and its slowest node
    no faster, so synchronisation stays. But a layer with all its copies on one node takes
    2 (c-1)/c over the bus, and with one more node 1 over the cards, which may be less: where a
    stage lies on one node, and for models with experts, only updates count.
    """
    alone = tables.experts > 1
    updates = once = 0.0
    for k in range(count):
        depth = laid.shape[DEPTH, k]
        for s in range(depth):
            updates = max(updates, room.stage_real[UPDATES, k, s])
            once = max(once, room.stage_real[ONCE, k, s])
            one_node = True
            for r in range(laid.shape[REPLICAS, k]):
                one_node = one_node and laid.node[k, r * depth + s] == laid.node[k, s]
            alone = alone or (one_node and laid.shape[REPLICAS, k] + count > 2)
    return updates if alone else once


@in_place
def copy_laid(source: Laid, count: int, target: Laid) -> None:
    """Copy the first templates of one arrangement to another."""
    for k in range(count):
        depth, replicas = source.shape[DEPTH, k], source.shape[REPLICAS, k]
        for row in range(source.shape.shape[0]):
            target.shape[row, k] = source.shape[row, k]
        for row in range(source.stage.shape[0]):
            for s in range(depth + 1):
                target.stage[row, k, s] = source.stage[row, k, s]
        for i in range(depth * replicas):
            target.node[k, i] = source.node[k, i]


@in_place
def explore(
    tables: Tables,
    laid: Laid,
    most: int,
    structures: Array,
    depths: Array,
    first: int,
    last: int,
    worth: Array,
    most_evaluations: int,
    room: Room,
    best_ms: Array,
    best: Laid,
    best_count: Array,
    level: Array,
    first_nodes: Array,
) -> bool:
    """Exhaust plans whose first template is one of structures first..last, depth first.

    best_ms, best, best_count: the incumbent, replaced by what is better. level: scratch of shape
    (4, most), where each slot stands; first_nodes: scratch of shape (most, GPUs). False where the
    ceiling on evaluations ended it. (Not recursive: numba 0.68 crashes on cached recursive code.)
    """
    k = int(np.int64(0))  # no literal: all that is called with k would be compiled once more for it
    _open_level(level, k, first)
    while k >= 0:
        end = last if k == 0 else structures.shape[0]
        if not _next_variant(tables, laid, k, structures, depths, end, room, level, first_nodes):
            k -= 1
            continue
        if room.why[EVALUATIONS] >= most_evaluations:
            return False
        took = fill_placed(tables, laid, k, room)
        if took < 0:
            continue
        if took < best_ms[0]:
            best_ms[0] = took
            best_count[0] = k + 1
            copy_laid(laid, k + 1, best)
        if k + 1 < most and best_further(tables, laid, k + 1, worth, room) < best_ms[0]:
            k += 1
            _open_level(level, k, 0)
    return True


@in_place
def _open_level(level: Array, k: int, first: int) -> None:
    """Let slot k start with a structure."""
    level[STRUCTURE, k] = first - 1
    level[GIVEN, k] = 0


@in_place
def _next_variant(
    tables: Tables,
    laid: Laid,
    k: int,
    structures: Array,
    depths: Array,
    end: int,
    room: Room,
    level: Array,
    first_nodes: Array,
) -> bool:
    """Lay the next (structure, replicas, placement, micro-batch) in slot k; False at the end.

    Micro-batch sizes run fastest, then placements, replicas (from the most downwards), structures.
    """
    sizes = tables.size.shape[0]
    while True:
        i = level[STRUCTURE, k]
        if level[GIVEN, k] > 0:
            level[SIZE, k] += 1
            while level[SIZE, k] < sizes:
                if _profiled(tables, structures[i], depths[i], level[SIZE, k]):
                    laid.shape[BATCH, k] = level[SIZE, k]
                    return True
                level[SIZE, k] += 1
            if level[PLACED, k] == STAGE:
                level[PLACED, k] = REPLICA
            else:
                level[PLACED, k] = STAGE
                level[GIVEN, k] -= 1
        if level[GIVEN, k] == 0:
            level[STRUCTURE, k] += 1
            i = level[STRUCTURE, k]
            if i >= end:
                return False
            prepare(tables, laid, k, room)
            level[PLACED, k] = STAGE
            if depths[i] <= tables.blocks:
                kinds = structures[i]
                level[GIVEN, k] = most_replicas(tables, laid, k, kinds, depths[i], room)
        level[SIZE, k] = sizes
        if level[GIVEN, k] > 0 and _place(
            tables, laid, k, structures[i], depths[i], room, level, first_nodes
        ):
            level[SIZE, k] = -1


@in_place
def _place(
    tables: Tables,
    laid: Laid,
    k: int,
    kinds: Array,
    depth: int,
    room: Room,
    level: Array,
    first_nodes: Array,
) -> bool:
    """Pack what the level of slot k says; False where the other placement was the same."""
    replicas, groups = level[GIVEN, k], level[GIVEN, k] * depth
    prepare(tables, laid, k, room)
    pack(tables, room, kinds, depth, replicas, level[PLACED, k], laid.node[k])
    laid.shape[DEPTH, k], laid.shape[REPLICAS, k] = depth, replicas
    for s in range(depth):
        laid.stage[KIND, k, s] = kinds[s]
    if level[PLACED, k] == STAGE:
        for i in range(groups):
            first_nodes[k, i] = laid.node[k, i]
        return True
    differs = False
    for i in range(groups):
        differs = differs or first_nodes[k, i] != laid.node[k, i]
    return differs


@in_place
def _profiled(tables: Tables, kinds: Array, depth: int, b: int) -> bool:
    """Whether some stage's type has rows of a micro-batch size (as in the fill)."""
    for s in range(depth):  # noqa: SIM110  (numba compiles no generator)
        if tables.profiled[tables.kind_int[KIND_GPU, kinds[s]], b]:
            return True
    return False
