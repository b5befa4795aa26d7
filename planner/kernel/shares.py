"""Compiled shares of the batch: planner/shares.py on arrays."""

from __future__ import annotations

import math

from planner.kernel.jit import inlined
from planner.kernel.state import BATCH, MICRO_BATCHES, REPLICAS, SLOWEST, TOTAL, Laid, Room
from planner.kernel.tables import Tables


@inlined
def _micro_batches_in(total: float, slowest: float, time: float) -> int:
    """M_k(T), with pipe(M) = (M - 1) * slowest + total compared as planner.shares compares it."""
    if time < total:
        return 0
    count = 1 + math.floor((time - total) / slowest)
    while count * slowest + total <= time:
        count += 1
    while count > 0 and (count - 1) * slowest + total > time:
        count -= 1
    return count


@inlined
def _samples(tables: Tables, laid: Laid, count: int, room: Room, time: float) -> int:
    """Samples that all templates finish in a time."""
    found = 0
    for k in range(count):
        total, slowest = room.template_real[TOTAL, k], room.template_real[SLOWEST, k]
        each = laid.shape[REPLICAS, k] * tables.size[laid.shape[BATCH, k]]
        found += each * _micro_batches_in(total, slowest, time)
    return found


@inlined
def micro_batches(tables: Tables, laid: Laid, count: int, room: Room) -> bool:
    """Write M_k(T*) of section 13.9 to template_int from the sums and maxima of t.

    False where a template gets none.
    """
    earliest = math.inf
    for k in range(count):
        each = laid.shape[REPLICAS, k] * tables.size[laid.shape[BATCH, k]]
        total, slowest = room.template_real[TOTAL, k], room.template_real[SLOWEST, k]
        low, high = 1, -(-tables.global_batch // each)
        if count == 1:
            low = high
        while low < high:
            middle = (low + high) // 2
            time = (middle - 1) * slowest + total
            if time >= earliest or (
                _samples(tables, laid, count, room, time) >= tables.global_batch
            ):
                high = middle
            else:
                low = middle + 1
        earliest = min(earliest, (low - 1) * slowest + total)
    for k in range(count):
        total, slowest = room.template_real[TOTAL, k], room.template_real[SLOWEST, k]
        room.template_int[MICRO_BATCHES, k] = _micro_batches_in(total, slowest, earliest)
        if room.template_int[MICRO_BATCHES, k] == 0:
            return False
    return True
