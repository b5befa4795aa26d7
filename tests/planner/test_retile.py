"""Re-tiling: the layout stays, the tiling is the best, and a dense plan has nothing to tile."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from planner.assemble import assemble
from planner.baselines import planner_named
from planner.cost import price
from planner.experts import moe_layer, tilings
from planner.filled import FilledPlan
from planner.problem import Problem
from planner.result import Budget, Status
from planner.retile import retiled
from specs.errors import PlanError, ProfileMissing
from specs.plan import Plan
from tests.planner.random_problems import random_filled, random_problem


def untiled_plan(seed: int) -> tuple[Problem, Plan] | None:
    """A random plan of a model with experts, found without the expert dimension."""
    problem = random_problem(seed, "moe")
    result = planner_named("random")(
        replace(problem, expert_tiling=False), Budget(evaluations=40), 0
    )
    return None if result.plan is None else (problem, result.plan)


SEEDS = [seed for seed in range(24) if untiled_plan(seed) is not None]


def test_there_are_plans_to_tile() -> None:
    assert len(SEEDS) >= 6


@pytest.mark.parametrize("seed", SEEDS)
def test_only_the_tiling_changes_and_it_is_never_slower(seed: int) -> None:
    found = untiled_plan(seed)
    assert found is not None
    problem, plan = found
    result = retiled(problem, plan)
    assert result.status is Status.OK
    assert result.plan is not None
    assert result.plan.prediction is not None
    assert plan.prediction is not None
    assert result.plan.prediction.fits
    assert result.plan.prediction.iteration_ms <= plan.prediction.iteration_ms
    assert result.plan.prediction == price(problem, result.plan)
    assert bare(result.plan) == bare(plan)


def bare(plan: Plan) -> Plan:
    """The plan without tiling and prediction."""
    return replace(
        plan,
        prediction=None,
        templates=tuple(
            replace(t, stages=tuple(replace(s, ep=1, etp=1) for s in t.stages))
            for t in plan.templates
        ),
    )


def test_of_one_stage_the_tiling_is_the_best_of_all() -> None:
    checked = 0
    for seed in range(60):
        problem = random_problem(seed, "moe")
        draw = random.Random(seed)
        template = random_filled(draw, problem, {})
        if template is None or template.depth != 1 or template.replicas < 2:
            continue
        stage = template.stages[0]
        nodes = [row[0] for row in template.nodes]
        moe = moe_layer(problem.model, stage)
        assert moe is not None
        times = []
        for ep, etp in tilings(moe.shape("experts"), moe.shape("expert_ffn"), stage.tp, nodes):
            tiled = replace(template, stages=(replace(stage, ep=ep, etp=etp),))
            try:
                plan = assemble(problem, [tiled], "someone")
            except (PlanError, ProfileMissing):
                continue
            assert plan.prediction is not None
            if plan.prediction.fits:
                times.append(plan.prediction.iteration_ms)
        try:
            given = assemble(problem, [template], "someone")
        except (PlanError, ProfileMissing):
            continue
        result = retiled(problem, given)
        if times and result.plan is not None and result.plan.prediction is not None:
            # Its shares of the batch are those of its own tiling, which may cost a micro-batch.
            same = FilledPlan.of(result.plan).templates[0].stages[0]
            assert (same.gpu, same.tp) == (stage.gpu, stage.tp)
            assert result.plan.prediction.iteration_ms <= min(times) * (1 + 1e-9)
            checked += 1
    assert checked >= 3


def test_a_plan_without_experts_has_nothing_to_tile() -> None:
    problem = random_problem(3, "dense")
    plan = planner_named("random")(problem, Budget(evaluations=40), 0).plan
    assert plan is not None
    result = retiled(problem, plan)
    assert (result.status, result.plan) == (Status.UNSUPPORTED, None)
