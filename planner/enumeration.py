"""Structural templates in order: all sequences of a small cluster, multisets of a large one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement, permutations

from planner.packing import Demand, FreeGpus, replicas_by_counting

Kinds = tuple[int, ...]
"""A structure as indices of kinds (GPU type and TP degree)."""

MOST_TYPE_ORDERS = 6


def packing_kinds(free: FreeGpus, kinds: Sequence[Demand]) -> list[int]:
    """Indices of the kinds of which at least one group packs."""
    return [q for q, kind in enumerate(kinds) if replicas_by_counting(free, [kind]) > 0]


def all_sequences(
    free: FreeGpus, kinds: Sequence[Demand], most_stages: int, most: int
) -> list[Kinds] | None:
    """Every sequence of stages that packs once, by growing depth; None where there are more.

    most: ceiling on their number.
    """
    usable = packing_kinds(free, kinds)
    packs: dict[Kinds, bool] = {}  # by multiset: the order of stages does not matter

    def fits(sequence: Kinds) -> bool:
        key = tuple(sorted(sequence))
        if key not in packs:
            packs[key] = replicas_by_counting(free, [kinds[q] for q in key]) > 0
        return packs[key]

    found: list[Kinds] = []
    level: list[Kinds] = [()]
    for _ in range(most_stages):
        longer = []
        for prefix in level:
            longer += [(*prefix, q) for q in usable if fits((*prefix, q))]
            if len(found) + len(longer) > most:
                return None
        if not longer:
            break
        found += longer
        level = longer
    return found


def ordered_multisets(free: FreeGpus, kinds: Sequence[Demand], depth: int) -> Iterator[list[Kinds]]:
    """For every multiset of `depth` kinds that packs once, its sensible orders of stages.

    Stages of a type stand together, in up to six orders of the types, with the degrees within a
    type once falling and once rising.
    """
    usable = packing_kinds(free, kinds)
    for chosen in combinations_with_replacement(usable, depth):
        if replicas_by_counting(free, [kinds[q] for q in chosen]) > 0:
            yield sensible_orders(kinds, chosen)


def sensible_orders(kinds: Sequence[Demand], chosen: Sequence[int]) -> list[Kinds]:
    """Orders of a multiset of kinds that keep each type together."""
    by_type: dict[str, list[int]] = {}
    for q in chosen:
        by_type.setdefault(kinds[q].gpu, []).append(q)
    found: dict[Kinds, None] = {}
    for number, order in enumerate(permutations(by_type)):
        if number == MOST_TYPE_ORDERS:
            break
        for falling in (True, False):
            sequence: list[int] = []
            for gpu in order:
                sequence += sorted(by_type[gpu], key=lambda q: kinds[q].tp, reverse=falling)
            found[tuple(sequence)] = None
    return list(found)
