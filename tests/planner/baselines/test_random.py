"""The random planner: valid, repeatable, and stopped by its budget."""

import pytest

from planner.baselines import random
from planner.result import Budget, Status
from tests.planner.policy.compositions import ODD, problem_on
from tests.planner.reference import reference_problem

ONE_TEMPLATE = 64  # prices that a template begun before the ceiling may still take


def test_the_same_seed_draws_the_same_and_more_is_never_worse() -> None:
    problem = reference_problem("llama-3-8b", "two-64")
    found = [random.plan(problem, Budget(evaluations=n), 4) for n in (500, 500, 3000)]
    assert found[0].plan == found[1].plan
    assert found[0].evaluations == found[1].evaluations < 500 + ONE_TEMPLATE
    times = [iteration_ms(one) for one in found]
    assert times[2] <= times[0]
    assert found[2].curve[-1][1] == times[2]
    other = random.plan(problem, Budget(evaluations=500), 5)
    assert other.curve != found[0].curve


def iteration_ms(found: object) -> float:
    plan = found.plan  # type: ignore[attr-defined]
    assert plan is not None
    assert plan.prediction is not None
    assert plan.prediction.fits
    return float(plan.prediction.iteration_ms)


def test_without_a_ceiling_it_ends_by_itself() -> None:
    found = random.plan(reference_problem("llama-3-8b", "two-64"), Budget(), 0)
    assert found.evaluations < random.DEFAULT_EVALUATIONS + ONE_TEMPLATE
    assert found.plan is not None


@pytest.mark.parametrize("cluster", ODD)
def test_odd_nodes_have_a_plan_or_a_reason(cluster: object) -> None:
    found = random.plan(problem_on("llama-3-8b", cluster), Budget(evaluations=2000), 1)  # type: ignore[arg-type]
    if found.plan is None:
        assert found.status in (Status.BUDGET, Status.NO_PLAN)
        assert found.reason
    else:
        assert iteration_ms(found) > 0
