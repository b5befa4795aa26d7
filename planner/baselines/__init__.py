"""Every planner by name: one file each, one function `plan` in each."""

from __future__ import annotations

from planner.baselines import exhaustive, random
from planner.result import Planner

PLANNERS: dict[str, Planner] = {
    "exhaustive": exhaustive.plan,
    "random": random.plan,
}
DEFAULT_PLANNER = "exhaustive"  # until the learned one lands (DESIGN section 10)
