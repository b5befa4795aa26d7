"""Every planner by name: one file each, one function `plan` in each."""

from __future__ import annotations

from planner.baselines import espresso, exhaustive, random, sailor
from planner.result import Planner
from specs.errors import PlanError

PLANNERS: dict[str, Planner] = {
    "espresso": espresso.plan,
    "exhaustive": exhaustive.plan,
    "random": random.plan,
    "sailor": sailor.plan,
}
DEFAULT_PLANNER = "exhaustive"  # until the learned one lands (DESIGN section 10)


def planner_named(name: str) -> Planner:
    """The planner of that name. Raises PlanError that lists the names for any other."""
    found = PLANNERS.get(name)
    if found is None:
        raise PlanError(f"no planner {name!r}, expected one of: {', '.join(PLANNERS)}")
    return found
