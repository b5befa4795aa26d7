"""The compiled kernel equals the readable reference on thousands of random problems."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from planner.cost import price_filled
from planner.fill.template import fill_template
from planner.filled import FilledPlan, FilledTemplate
from planner.kernel.engine import Engine
from planner.problem import Problem
from specs.errors import PlanError, ProfileMissing
from tests.planner.random_problems import random_filled, random_problem, random_structure
from tests.planner.reference import golden_plans, golden_templates, reference_problem

SAME = 1e-12  # relative


def reference_ms(problem: Problem, templates: list[FilledTemplate]) -> float:
    """What the reference says of filled templates, -1 where they are no plan that fits."""
    try:
        prediction = price_filled(problem, templates)
    except (ProfileMissing, PlanError):
        return -1.0
    return prediction.iteration_ms if prediction.fits else -1.0


def prices_of(seed: int, family: str | None = None) -> list[tuple[float, float]]:
    """(reference, kernel) of plans of up to four random templates on a random problem."""
    problem = random_problem(seed, family)
    engine = Engine(problem)
    draw = random.Random(seed + 1)
    found = []
    for _ in range(4):
        templates: list[FilledTemplate] = []
        for _ in range(draw.randint(1, 4)):
            used = FilledPlan(problem.cluster, tuple(templates)).used
            template = random_filled(draw, problem, dict(used))
            if template is not None:
                templates.append(template)
        if templates:
            found.append((reference_ms(problem, templates), engine.price(templates)))
    return found


@pytest.mark.parametrize("start", range(0, 400, 100))
def test_prices_of_random_plans_equal_the_reference(start: int) -> None:
    fitting = 0
    for seed in range(start, start + 100):
        for want, got in prices_of(seed):
            assert got == pytest.approx(want, rel=SAME), seed
            fitting += want > 0
    assert fitting > 50


def fills_of(seed: int, family: str | None = None) -> int:
    """Fill random templates one behind the other, by both; how many fitted."""
    problem = random_problem(seed, family)
    engine = Engine(problem)
    draw = random.Random(seed + 2)
    laid: list[FilledTemplate] = []
    refused: Counter[str] = Counter()
    fitted = 0
    for _ in range(4):
        structure = random_structure(draw, problem)
        fewer = draw.choice([0, 0, 0, 1, 2])
        before = engine.evaluations
        want = fill_template(problem, structure, laid, fewer=fewer)
        engine.lay(laid)
        got = engine.fill(len(laid), engine.row(structure), fewer)
        assert engine.evaluations - before == want.evaluations, (seed, structure)
        refused.update(refusal.reason for refusal in want.refusals)
        short = [r.over_bytes for r in want.refusals if r.reason.startswith("memory")]
        assert all(over > 0 for over in short), (seed, structure)
        if want.best is None:
            assert got == -1.0, (seed, structure)
            continue
        fitted += 1
        template, prediction = want.best
        assert got == pytest.approx(prediction.iteration_ms, rel=SAME), (seed, structure)
        mine = engine.template(len(laid))
        # Another template of the same price is as good; what it costs must be what was said.
        assert reference_ms(problem, [*laid, mine]) == pytest.approx(got, rel=SAME)
        laid.append(template)
    tally = engine.tally()
    assert sum(tally.rejected.values()) == refused.total(), seed
    for reason, count in refused.items():
        if reason.startswith("memory"):
            assert tally.rejected[reason] == count, (seed, reason)
    assert tally.closest is None or tally.closest.over_bytes > 0, seed
    return fitted


@pytest.mark.parametrize("start", range(0, 400, 100))
def test_fills_of_random_structures_equal_the_reference(start: int) -> None:
    assert sum(fills_of(seed) for seed in range(start, start + 100)) > 50


@pytest.mark.long
@pytest.mark.parametrize("family", ["dense", "moe", "mixed"])
def test_thousands_of_random_problems_of_each_family_equal_the_reference(family: str) -> None:
    for seed in range(10_000, 11_500):
        for want, got in prices_of(seed, family):
            assert got == pytest.approx(want, rel=SAME), seed
        fills_of(seed, family)


def test_golden_plans_cost_the_same_compiled() -> None:
    for entry in golden_plans():
        problem = reference_problem(entry["model"], entry["cluster"])
        templates = golden_templates(entry)
        want = price_filled(problem, templates).iteration_ms
        assert Engine(problem).price(templates) == pytest.approx(want, rel=SAME)


def test_refusals_are_counted_by_reason() -> None:
    problem = reference_problem("qwen3-32b", "mixed-128")
    engine = Engine(problem)
    engine.prepare(0)
    structure = random_structure(random.Random(3), problem)[:1]
    assert engine.fill(0, engine.row(structure)) == -1.0
    want = fill_template(problem, structure)
    tally = engine.tally()
    assert tally.evaluations == want.evaluations
    assert sum(tally.rejected.values()) == len(want.refusals)
    assert tally.rejected == {"memory at stage 0": len(want.refusals)}
    assert tally.closest is not None
    least = min(refusal.over_bytes for refusal in want.refusals)
    assert tally.closest.over_bytes == pytest.approx(least)
