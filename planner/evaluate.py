"""Pricing a given plan by the profiles of a store."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from planner.cost import price
from planner.missing import completing_command
from planner.problem import Problem
from planner.profiles import load_profiles
from specs.errors import ProfileMissing
from specs.plan import Plan
from specs.profile import Source

if TYPE_CHECKING:
    from db.store import Store


def evaluate_plan(
    store: Store, plan: Plan, *, source: Source | None = None, headroom: float = 0.05
) -> Plan:
    """The plan with its prediction from the store's profiles (DESIGN section 4 says which).

    Only GPU types that the plan uses need profiles. Raises ProfileMissing with the first missing
    key and the command that completes the store.
    """
    problem = plan_problem(store, plan, source=source, headroom=headroom)
    try:
        return plan.with_prediction(price(problem, plan))
    except ProfileMissing as error:
        used = {stage.gpu for template in plan.templates for stage in template.stages}
        gpus = [gpu for gpu in plan.cluster.gpus_by_type if gpu in used]
        command = completing_command(gpus, plan.model, plan.workload, plan.cluster)
        raise ProfileMissing(f"{error}: run `{command}`") from None


def plan_problem(
    store: Store, plan: Plan, *, source: Source | None = None, headroom: float = 0.05
) -> Problem:
    """The planning problem that a plan answers, with the profile rows that there are for it."""
    profiles = load_profiles(
        store, plan.model, plan.workload, plan.cluster, source=source, complete=False
    )
    return Problem(plan.model, plan.workload, plan.cluster, profiles, headroom)


def with_bound(plan: Plan, bound_ms: float | None) -> Plan:
    """The plan with a proven lower bound, in ms, on the iteration time of every plan."""
    if plan.prediction is None or bound_ms is None:
        return plan
    return plan.with_prediction(replace(plan.prediction, bound_iteration_ms=bound_ms))
