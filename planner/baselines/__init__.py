"""Every planner by name: one file each, one function `plan` in each."""

from __future__ import annotations

from planner.baselines import (
    amp,
    annealing,
    arachne,
    espresso,
    exhaustive,
    flat_rl,
    hetauto,
    hexiscale,
    metis,
    random,
    sailor,
)
from planner.result import Planner
from specs.errors import PlanError

PLANNERS: dict[str, Planner] = {
    "arachne": arachne.plan,
    "amp": amp.plan,
    "annealing": annealing.plan,
    "espresso": espresso.plan,
    "exhaustive": exhaustive.plan,
    "flat-rl": flat_rl.plan,
    "hetauto": hetauto.plan,
    "hexiscale": hexiscale.plan,
    "metis": metis.plan,
    "random": random.plan,
    "sailor": sailor.plan,
}
DEFAULT_PLANNER = "arachne"


def planner_named(name: str) -> Planner:
    """The planner of that name. Raises PlanError that lists the names for any other."""
    found = PLANNERS.get(name)
    if found is None:
        raise PlanError(f"no planner {name!r}, expected one of: {', '.join(PLANNERS)}")
    return found
