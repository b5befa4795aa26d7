"""The learned planner: rollouts of the policy, improved by local moves (DESIGN section 9).

Its schedule comes to an end by itself; `plan_on` begins anew, with what is best so far, until the
budget ends.
"""

from __future__ import annotations

from planner.policy.planning import Planning, default_schedule
from planner.policy.weights import chosen_weights
from planner.problem import Problem
from planner.result import Budget, PlanResult


def plan(problem: Problem, budget: Budget, seed: int) -> PlanResult:
    """The best plan of one schedule; the same for the same seed and ceiling on evaluations."""
    schedule = default_schedule(problem.cluster.gpus)
    return Planning(problem, "arachne", budget, seed, schedule).run(chosen_weights().parameters)


def plan_on(problem: Problem, budget: Budget, seed: int) -> PlanResult:
    """As `plan`, and on and on until the budget ends; never worse than `plan`."""
    ends = budget.seconds is not None or budget.evaluations is not None
    schedule = default_schedule(problem.cluster.gpus, goes_on=ends)
    return Planning(problem, "arachne", budget, seed, schedule).run(chosen_weights().parameters)
