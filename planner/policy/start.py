"""A set of structural templates as local moves begin from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Start:
    """Structural templates with how each is filled, and the iteration time of the plan.

    templates: (kinds, replicas given up, micro-batch index, placement) each. iteration_ms: inf
    where it was not priced yet or does not fit.
    """

    templates: tuple[tuple[tuple[int, ...], int, int, int], ...]
    iteration_ms: float
