"""Random valid templates under the same masks and fill as the learned planner: the baseline.

Own design: no paper. Depth, GPU type and TP degree of every stage are drawn all but evenly among
those that masks allow, template after template until STOP is drawn or nothing more fits; every
prefix is priced.
"""

from __future__ import annotations

from planner.policy.network import initial_parameters
from planner.policy.planning import Planning, Schedule
from planner.problem import Problem
from planner.result import Budget, PlanResult

DEFAULT_EVALUATIONS = 2_000  # where a budget names no ceiling: a random search has no natural end
SCHEDULE = Schedule(rollouts=16, batch=16, goes_on=True)


def plan(problem: Problem, budget: Budget, seed: int) -> PlanResult:
    """The best of random plans within the budget; the same for the same seed.

    Where the budget names neither seconds nor evaluations, 2,000 evaluations are drawn.
    """
    if budget.seconds is None and budget.evaluations is None:
        budget = Budget(evaluations=DEFAULT_EVALUATIONS)
    # Untrained, the network is all but indifferent: masks alone shape these plans.
    return Planning(problem, "random", budget, seed, SCHEDULE).run(initial_parameters(0))
