"""The layer split of a pipeline: (M - 1) times its slowest stage plus all of its stages, least."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.baselines.metis.balance import StageLimits, balanced
from planner.kernel.jit import compiled

Array = Any  # numpy arrays
MOST_CEILINGS = 400  # of the slowest stage that are looked at


def best_split(
    stages: list[StageLimits], layers: int, micro_batches: int
) -> tuple[int, ...] | None:
    """First layer of each stage and the end; None where memory allows no split.

    Where all stages are equally fast the sum is the same whatever the split, and the split whose
    slowest stage is fastest is the best. Where they are not, a slower stage may pay: for every
    ceiling on the slowest stage that can still win, the split with the least sum within it.
    """
    fastest = balanced(stages, layers)
    if fastest is None:
        return None
    counts = [len(stage.times) for stage in stages]
    times = np.array([prefix for stage in stages for prefix in stage.times])
    held = np.array([prefix for stage in stages for prefix, _ in stage.memory])
    rooms = np.array([room for stage in stages for _, room in stage.memory])
    starts = np.cumsum([0, *counts])
    spans = _spans(times, starts)
    fits = _fits(held, rooms, starts)
    lowest = max(spans[s, fastest[s], fastest[s + 1]] for s in range(len(stages)))
    bounds = np.array(fastest, np.int64)
    trial = bounds.copy()
    least = _least_sum(spans, fits, np.inf, trial)
    best = np.inf
    for ceiling in _ceilings(spans, fits, lowest):
        if (micro_batches - 1) * ceiling + least >= best:
            break
        total = _least_sum(spans, fits, ceiling * (1 + 1e-12), trial)
        value = (micro_batches - 1) * ceiling + total
        if value < best:
            best = value
            bounds[:] = trial
    return tuple(int(bound) for bound in bounds)


def _ceilings(spans: Array, fits: Array, lowest: float) -> Array:
    """Every time that a stage can take, from the least possible slowest one upwards."""
    found = np.unique(spans[fits & (spans >= lowest * (1 - 1e-12))])
    return found[:MOST_CEILINGS]


@compiled
def _spans(times: Array, starts: Array) -> Array:
    """Time of every stage on every range of layers: its slowest GPU type counts. (S, L+1, L+1)"""
    stages, edges = starts.shape[0] - 1, times.shape[1]
    spans = np.full((stages, edges, edges), np.inf)
    for s in range(stages):
        for first in range(edges):
            for end in range(first + 1, edges):
                slowest = 0.0
                for r in range(starts[s], starts[s + 1]):
                    slowest = max(slowest, times[r, end] - times[r, first])
                spans[s, first, end] = slowest
    return spans


@compiled
def _fits(held: Array, rooms: Array, starts: Array) -> Array:
    """Whether every GPU type of a stage holds a range of layers. (S, L+1, L+1)"""
    stages, edges = starts.shape[0] - 1, held.shape[1]
    fits = np.zeros((stages, edges, edges), np.bool_)
    for s in range(stages):
        for first in range(edges):
            for end in range(first + 1, edges):
                good = True
                for r in range(starts[s], starts[s + 1]):
                    good = good and held[r, end] - held[r, first] <= rooms[r]
                fits[s, first, end] = good
    return fits


@compiled
def _least_sum(spans: Array, fits: Array, ceiling: float, bounds: Array) -> float:
    """Least sum of stage times, none above the ceiling; fills in the split. inf for none."""
    stages, layers = spans.shape[0], spans.shape[1] - 1
    best = np.full((stages + 1, layers + 1), np.inf)
    best[0, 0] = 0.0
    origin = np.zeros((stages + 1, layers + 1), np.int64)
    for s in range(stages):
        for end in range(s + 1, layers - (stages - s - 1) + 1):
            for first in range(end - 1, s - 1, -1):
                if spans[s, first, end] > ceiling or not fits[s, first, end]:
                    break
                total = best[s, first] + spans[s, first, end]
                if total < best[s + 1, end]:
                    best[s + 1, end] = total
                    origin[s + 1, end] = first
    bounds[stages] = layers
    for s in range(stages, 0, -1):
        bounds[s - 1] = origin[s, bounds[s]]
    least: float = best[stages, layers]
    return least
