"""Annealed plans and the plain order that they are taught in."""

import itertools
from collections import Counter

import numpy as np
import pytest

from planner.policy.composition import Composition
from planner.policy.network import initial_parameters
from planner.policy.training.replay import replayed
from planner.policy.training.space import STRUCTURAL
from planner.policy.training.teacher import AS_GOOD, Lesson, grouped, plain, teach
from planner.policy.walks import Walker
from tests.planner.policy.compositions import problem_on
from tests.planner.reference import reference_cluster


@pytest.fixture(scope="module")
def composition() -> Composition:
    return Composition(problem_on("llama-3-8b", reference_cluster("mixed-64")))


def test_stages_of_a_kind_stand_side_by_side(composition: Composition) -> None:
    a, b, c = (int(q) for q in composition.scene.kind[composition.scene.kind >= 0][:3])
    orders = grouped(composition, (a, b, a, c, b))
    assert len(orders) == 6  # of three kinds
    assert len(set(orders)) == 6
    for order in orders:
        assert Counter(order) == {a: 2, b: 2, c: 1}
        changes = sum(one != other for one, other in itertools.pairwise(order))
        assert changes == 2


def test_the_plain_order_costs_next_to_no_more(composition: Composition) -> None:
    draw = np.random.default_rng(2)
    walker = Walker(composition)
    usable = composition.scene.kind[composition.scene.kind >= 0]
    compared = 0
    for _ in range(200):
        plan = tuple(
            tuple(int(q) for q in draw.choice(usable, draw.integers(2, 7))) for _ in range(2)
        )
        ((before, fits),) = priced(walker, [plan])
        if not fits:
            continue
        found = plain(walker, plan)
        ((after, fits),) = priced(walker, [found])
        assert fits
        assert after <= AS_GOOD**3 * before  # templates, then the stages of each of two
        assert sorted(map(sorted, found)) == sorted(map(sorted, plan))
        compared += 1
    assert compared > 20


def priced(walker: Walker, plans: list[tuple[tuple[int, ...], ...]]) -> list[tuple[float, bool]]:
    """Iteration in ms with all templates, and whether all of them fit."""
    found = []
    for plan in plans:
        laid, _ = walker.walk(walker.start(plan, [0] * len(plan)), 0, 0.01, 0.01, 0)
        found.append((laid.iteration_ms, len(laid.templates) == len(plan)))
    return found


def test_what_is_taught_can_be_laid_and_is_better_than_chance() -> None:
    composition = Composition(problem_on("qwen3-32b", reference_cluster("mixed-64")))
    taught = teach(composition, Lesson(400, 3, (1,), initial_parameters(0)))
    again = teach(composition, Lesson(400, 3, (1,), initial_parameters(0)))
    assert taught.evaluations > 1000
    assert [one.plan for one in taught.plans] == [one.plan for one in again.plans]
    chance = teach(composition, Lesson(0, 3, (1,), initial_parameters(0)))
    best, other = (max(one.throughput for one in x.plans) for x in (taught, chance))
    assert best > other
    laid = replayed(STRUCTURAL, composition, [one.plan for one in taught.plans])
    assert [one.throughput for one in laid] == [one.throughput for one in taught.plans]
