"""Self-imitation: the best plans met on every composition, one buffer a depth.

Source: Oh et al., Self-Imitation Learning (ICML 2018), without a critic. Plans are stored with
their raw throughput and the decisions (features, masks) that lead to them; what they weigh is
worked out when they are used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = Any

KEPT_PER_DEPTH = 3
USED = 3  # plans of a composition that are imitated at once
GAP = 0.03  # of throughput below the best, where a plan weighs nothing
NEAREST = 3


@dataclass(frozen=True)
class Remembered:
    """A plan: its templates as kinds, its throughput, and its decisions by head.

    decisions: head -> arrays state, tokens, candidates, mask, choice, template, stage.
    """

    plan: tuple[tuple[int, ...], ...]
    throughput: float
    decisions: Mapping[str, Mapping[str, Array]] = field(repr=False)


class PlanMemory:
    """The best plans of every composition, by the depth of their first template."""

    def __init__(self) -> None:
        self._plans: dict[int, dict[int, list[Remembered]]] = {}
        self._summaries: dict[int, Array] = {}

    def __len__(self) -> int:
        return len(self._plans)

    @property
    def compositions(self) -> list[int]:
        """Numbers of the compositions that have plans, rising."""
        return sorted(self._plans)

    def wants(self, composition: int, plan: tuple[tuple[int, ...], ...], throughput: float) -> bool:
        """Whether a plan would be kept: better than the worst of its depth, and not there yet."""
        held = self._plans.get(composition, {}).get(len(plan[0]), [])
        if any(other.plan == plan for other in held):
            return False
        return len(held) < KEPT_PER_DEPTH or throughput > held[-1].throughput

    def add(self, composition: int, summary: Array, remembered: Remembered) -> None:
        """Keep a plan if it is among the best of its depth."""
        if not self.wants(composition, remembered.plan, remembered.throughput):
            return
        self._summaries[composition] = summary
        held = self._plans.setdefault(composition, {}).setdefault(len(remembered.plan[0]), [])
        held.append(remembered)
        held.sort(key=lambda one: -one.throughput)
        del held[KEPT_PER_DEPTH:]

    def summary(self, composition: int) -> Array:
        """The summary of a composition that has plans."""
        return self._summaries[composition]

    def best(self, composition: int) -> list[tuple[Remembered, float]]:
        """The plans of a composition worth imitating, best first, with weights that sum to 1.

        max(0, 1 - gap / 3 %) of the distance to the best, over the buffers of all depths.
        """
        every = [one for held in self._plans.get(composition, {}).values() for one in held]
        every.sort(key=lambda one: -one.throughput)
        if not every:
            return []
        top = every[0].throughput
        weighed = [
            (one, max(0.0, 1.0 - (1.0 - one.throughput / top) / GAP)) for one in every[:USED]
        ]
        total = sum(weight for _, weight in weighed)
        return [(one, weight / total) for one, weight in weighed if weight > 0]

    def nearest(self, summary: Array, but: Sequence[int] = ()) -> list[int]:
        """The three compositions whose summaries are nearest (Euclidean), nearest first."""
        others = [c for c in self._summaries if c not in set(but)]
        others.sort(key=lambda c: (float(np.sum((self._summaries[c] - summary) ** 2)), c))
        return others[:NEAREST]
