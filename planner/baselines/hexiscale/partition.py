"""Balanced partition of a complete graph into parts with a light cut; compiled.

Multilevel recursive bisection: heavy-edge matching, region growing on the coarsest graph, and
Fiduccia-Mattheyses moves on the way back. It stands in for METIS, which HexiScale calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
F = TypeVar("F", bound=Callable[..., Any])
COARSEST = 24  # vertices at which matching ends
STARTS = 4  # regions grown on the coarsest graph


def compiled(function: F) -> F:
    """Machine code, kept on disk."""
    return njit(cache=True, nogil=True)(function)  # type: ignore[no-any-return]


@compiled
def _matching(edges: Floats, order: Ints) -> Ints:
    """Coarse vertex of each vertex: in a given order, each joins its heaviest free neighbour."""
    n = len(order)
    coarse = np.full(n, -1, np.int64)
    count = 0
    for v in order:
        if coarse[v] >= 0:
            continue
        best = -1
        for u in order:
            if u != v and coarse[u] < 0 and (best < 0 or edges[v, u] > edges[v, best]):
                best = u
        coarse[v] = count
        if best >= 0:
            coarse[best] = count
        count += 1
    return coarse


@compiled
def _contract(weights: Floats, edges: Floats, coarse: Ints) -> tuple[Floats, Floats]:
    n = coarse.max() + 1
    small_weights = np.zeros(n)
    small_edges = np.zeros((n, n))
    for v in range(len(coarse)):
        small_weights[coarse[v]] += weights[v]
        for u in range(len(coarse)):
            if coarse[u] != coarse[v]:
                small_edges[coarse[v], coarse[u]] += edges[v, u]
    return small_weights, small_edges


@compiled
def _refine(weights: Floats, edges: Floats, side: Ints, target: float, slack: float) -> float:
    """Move single vertices while the cut gets lighter or the balance better; the cut.

    side: 0 or 1, changed in place. target: weight of side 0, held within `slack` where it was.
    """
    n = len(side)
    held = 0.0
    for v in range(n):
        if side[v] == 0:
            held += weights[v]
    gain = np.zeros(n)  # how much lighter the cut is without the vertex on its side
    cut = 0.0
    for v in range(n):
        for u in range(n):
            if side[u] == side[v]:
                gain[v] -= edges[v, u]
            else:
                gain[v] += edges[v, u]
                cut += edges[v, u] / 2
    best_side = side.copy()
    best_cut = cut
    best_off = abs(held - target)
    for _ in range(3):
        moved = np.zeros(n, np.int64)
        for _ in range(n):
            chosen = -1
            for v in range(n):
                if moved[v]:
                    continue
                now = held - weights[v] if side[v] == 0 else held + weights[v]
                off, was = abs(now - target), abs(held - target)
                if off > slack and off >= was:
                    continue
                if chosen < 0 or gain[v] > gain[chosen]:
                    chosen = v
            if chosen < 0:
                break
            held += weights[chosen] if side[chosen] == 1 else -weights[chosen]
            cut -= gain[chosen]
            side[chosen] = 1 - side[chosen]
            moved[chosen] = 1
            gain[chosen] = -gain[chosen]
            for u in range(n):
                if u != chosen:
                    change = 2 * edges[u, chosen]
                    gain[u] += -change if side[u] == side[chosen] else change
            off = abs(held - target)
            better = off <= slack and (best_off > slack or cut < best_cut - 1e-9 * abs(best_cut))
            if better or (best_off > slack and off < best_off):
                best_cut, best_off = cut, off
                best_side[:] = side
        if np.array_equal(side, best_side):
            break
        side[:] = best_side
        held = 0.0
        for v in range(n):
            if side[v] == 0:
                held += weights[v]
        cut = best_cut
        for v in range(n):
            gain[v] = 0.0
            for u in range(n):
                gain[v] += edges[v, u] if side[u] != side[v] else -edges[v, u]
    side[:] = best_side
    return best_cut


@compiled
def _grow(weights: Floats, edges: Floats, first: int, target: float) -> Ints:
    """Side 0 grown from one vertex by the heaviest edge into it, up to the target weight."""
    n = len(weights)
    side = np.ones(n, np.int64)
    side[first] = 0
    held = weights[first]
    pull = edges[first].copy()
    while held < target:
        best = -1
        for v in range(n):
            if side[v] == 1 and (best < 0 or pull[v] > pull[best]):
                best = v
        if best < 0 or held + weights[best] - target > target - held:
            break
        side[best] = 0
        held += weights[best]
        pull += edges[best]
    return side


@compiled
def bisect(weights: Floats, edges: Floats, share: float) -> Ints:
    """Side of each vertex, side 0 with about `share` of the weight; draws from numpy's state."""
    levels = [(weights, edges)]
    maps = [np.zeros(0, np.int64)]
    while len(levels[-1][0]) > COARSEST:
        level_weights, level_edges = levels[-1]
        order = np.random.permutation(len(level_weights))
        coarse = _matching(level_edges, order)
        levels.append(_contract(level_weights, level_edges, coarse))
        maps.append(coarse)
    target = share * weights.sum()
    small_weights, small_edges = levels[-1]
    best_cut = np.inf
    best_off = np.inf
    side = np.zeros(len(small_weights), np.int64)
    slack = small_weights.max() / 2
    for _ in range(STARTS):
        tried = _grow(small_weights, small_edges, np.random.randint(len(small_weights)), target)
        cut = _refine(small_weights, small_edges, tried, target, slack)
        off = abs((small_weights * (1 - tried)).sum() - target)
        if (off <= slack and best_off > slack) or (
            (off <= slack or best_off > slack) and cut < best_cut
        ):
            best_cut, best_off = cut, off
            side = tried
    for level in range(len(levels) - 1, 0, -1):
        fine_weights, fine_edges = levels[level - 1]
        coarse = maps[level]
        fine = np.zeros(len(coarse), np.int64)
        for v in range(len(coarse)):
            fine[v] = side[coarse[v]]
        side = fine
        _refine(fine_weights, fine_edges, side, target, fine_weights.max() / 2)
    return side


@compiled
def partition(weights: Floats, edges: Floats, parts: int, seed: int) -> Ints:
    """Part of each vertex, 0 to parts - 1, none of them empty.

    weights: shape (n,), n >= parts; edges: (n, n), symmetric. By recursive bisection in proportion
    to the parts still to come. The same for the same seed.
    """
    np.random.seed(seed)
    n = len(weights)
    part = np.zeros(n, np.int64)
    todo = [(0, parts)]  # first part, how many
    while len(todo) > 0:
        first, count = todo.pop()
        if count == 1:
            continue
        here = np.flatnonzero(part == first)
        half = count // 2
        inside = np.zeros((len(here), len(here)))
        for a in range(len(here)):
            for b in range(len(here)):
                inside[a, b] = edges[here[a], here[b]]
        side = bisect(weights[here], inside, half / count)
        _fill(side, weights[here], half, count - half)
        for a in range(len(here)):
            if side[a] == 1:
                part[here[a]] = first + half
        todo.append((first, half))
        todo.append((first + half, count - half))
    return part


@compiled
def _fill(side: Ints, weights: Floats, zeros: int, ones: int) -> None:
    """See that each side has as many vertices as parts to come, by moving the lightest ones."""
    for want, of in ((zeros, 0), (ones, 1)):
        while (side == of).sum() < want:
            lightest = -1
            for v in range(len(side)):
                if side[v] != of and (lightest < 0 or weights[v] < weights[lightest]):
                    lightest = v
            side[lightest] = of
