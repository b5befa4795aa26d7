"""Simulated annealing with restarts: the same fill and moves as the learned planner, no learning.

Own design: no paper. Each restart begins from the best of a few random plans under the policy's
masks and anneals from 3 % to 0.05 % of the iteration time. The honest opponent of `arachne`: what
that wins over this is what was learned.
"""

from __future__ import annotations

from planner.policy.network import initial_parameters
from planner.policy.planning import Planning, Round, Schedule
from planner.problem import Problem
from planner.result import Budget, PlanResult

RESTARTS = 8
SCHEDULE = Schedule(rollouts=16, batch=16, rounds=(Round(1, 4000, 0.03),), restarts=RESTARTS)


def plan(problem: Problem, budget: Budget, seed: int) -> PlanResult:
    """The best plan of eight restarts within the budget; the same for the same seed."""
    # Untrained, the network is all but indifferent: masks alone shape these rollouts.
    untrained = initial_parameters(0)
    return Planning(problem, "annealing", budget, seed, SCHEDULE).run(untrained)
