"""Pricing a given plan by the profiles of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.cost import price
from planner.missing import completing_command
from planner.problem import Problem
from planner.profiles import ProfileSet, load_profiles
from specs.cluster import Cluster
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
    profiles = plan_profiles(store, plan, source=source)
    problem = Problem(plan.model, plan.workload, plan.cluster, profiles, headroom)
    try:
        return plan.with_prediction(price(problem, plan))
    except ProfileMissing as error:
        gpus = [gpu for gpu in plan.cluster.gpus_by_type if gpu in used_cluster(plan).gpus_by_type]
        command = completing_command(gpus, plan.model, plan.workload, plan.cluster)
        raise ProfileMissing(f"{error}: run `{command}`") from None


def plan_profiles(store: Store, plan: Plan, *, source: Source | None = None) -> ProfileSet:
    """The profile rows for the GPU types that a plan uses, complete or not."""
    return load_profiles(
        store, plan.model, plan.workload, used_cluster(plan), source=source, complete=False
    )


def used_cluster(plan: Plan) -> Cluster:
    """The nodes that a plan holds GPUs of."""
    used = {place.node for _, _, _, place in plan.places()}
    return Cluster(
        plan.cluster.name, tuple(node for node in plan.cluster.nodes if node.name in used)
    )
