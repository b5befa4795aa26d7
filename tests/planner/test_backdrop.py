"""Random plans behind the planners' own: priced by the cost model, and the same for a seed."""

from __future__ import annotations

from planner.backdrop import random_plans
from planner.baselines import planner_named
from planner.result import Budget
from tests.planner.random_problems import random_problem
from tests.planner.reference import reference_problem


def test_random_plans_fit_and_none_is_faster_than_a_search() -> None:
    problem = reference_problem("llama-3-8b", "uneven-52")
    plans = random_plans(problem, 60, seed=1)
    assert len(plans) > 20
    assert plans == random_plans(problem, 60, seed=1)
    found = planner_named("arachne")(problem, Budget(), 0).plan
    assert found is not None
    assert found.prediction is not None
    assert plans[0].iteration_ms >= found.prediction.iteration_ms
    total = problem.cluster.gpus_by_type
    for plan in plans:
        assert plan.depth >= 1
        assert all(0 < count <= total[gpu] for gpu, count in plan.gpus)


def test_no_plans_are_drawn_where_none_are_asked_for() -> None:
    assert random_plans(random_problem(1, "dense"), 0) == []
