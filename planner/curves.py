"""Search efficiency: which searches are followed by plans priced, how far, and how often.

The paper's figure is up to 32,000 evaluations, hetauto's up to 256,000.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.result import Planner, PlanResult


@dataclass(frozen=True, slots=True)
class CurveOf:
    """A search to follow. evaluations: where it ends; seeds: how often, for a median."""

    planner: str
    evaluations: int = 32_000
    seeds: int = 1


CURVES = (
    CurveOf("random", seeds=3),
    CurveOf("hetauto", evaluations=256_000),
    CurveOf("flat-rl"),
    CurveOf("annealing"),
    CurveOf("arachne"),
)


def curves_of(planners: list[str] | None) -> list[CurveOf]:
    """The searches to follow that are there, of these planners or of all."""
    from planner.baselines import PLANNERS

    return [
        one
        for one in CURVES
        if one.planner in PLANNERS and (planners is None or one.planner in planners)
    ]


def curve_planner(name: str) -> Planner:
    """The search of that name, going on to the ceiling where its own schedule would end before."""
    from planner.baselines import arachne, planner_named

    return arachne.plan_on if name == "arachne" else planner_named(name)


def whole_curve(result: PlanResult) -> tuple[tuple[int, float], ...]:
    """Best so far by evaluations, with where the search ended as the last point."""
    if not result.curve or result.curve[-1][0] >= result.evaluations:
        return result.curve
    return (*result.curve, (result.evaluations, result.curve[-1][1]))
