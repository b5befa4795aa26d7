"""A set of structural templates as local moves begin from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Start:
    """Structural templates with how each is filled, and the iteration time of the plan.

    templates: (kinds, replicas given up, micro-batch index, placement, tilings) each; tilings of
    the experts of each stage as planner.policy.kernel.lean, empty where all are to be priced.
    iteration_ms: inf where it was not priced yet or does not fit.
    """

    templates: tuple[tuple[tuple[int, ...], int, int, int, tuple[int, ...]], ...]
    iteration_ms: float
