"""Walks of a model with experts: tilings are hints, and prices those of the cost model."""

import numpy as np
import pytest

from benchmarks.held_out import even, trained
from planner.cost import price_filled
from planner.kernel.state import DEPTH, EVALUATIONS, TILING
from planner.policy.composition import Composition
from planner.policy.kernel.hinted import price_hinted
from planner.policy.kernel.lean import ANY
from planner.policy.walks import Walker
from planner.problem import Problem


@pytest.fixture(scope="module")
def composition() -> Composition:
    one = trained("mixtral-8x7b")
    cluster = even("even", {"h100": 32, "a100-80gb": 16}, 4)
    return Composition(Problem(one.model, one.workload, cluster, one.profiles))


def first_plan(composition: Composition) -> list[list[int]]:
    kinds = [(kind.gpu, kind.tp) for kind in composition.engine.kinds]
    fast, large = kinds.index(("h100", 2)), kinds.index(("a100-80gb", 1))
    return [[fast] * 6 + [large] * 3]


def test_a_plan_of_a_walk_costs_what_the_cost_model_says(composition: Composition) -> None:
    walker = Walker(composition)
    start = walker.start(first_plan(composition), [0])
    for seed in range(3):
        end, best = walker.walk(start, 300, 0.03, 0.001, seed)
        for found in (end, best):
            templates = walker.templates(found)
            prediction = price_filled(composition.problem, templates)
            assert prediction.fits
            assert prediction.iteration_ms == pytest.approx(found.iteration_ms, rel=1e-9)


def test_a_walk_goes_on_from_its_end_at_the_same_price(composition: Composition) -> None:
    walker = Walker(composition)
    end, _ = walker.walk(walker.start(first_plan(composition), [0]), 200, 0.03, 0.01, 7)
    again, _ = walker.walk(end, 0, 0.01, 0.01, 0)
    assert again.iteration_ms == pytest.approx(end.iteration_ms, rel=1e-12)


def test_hints_are_taken_and_cost_one_price(composition: Composition) -> None:
    walker, engine = Walker(composition), composition.engine
    _, best = walker.walk(walker.start(first_plan(composition), [0]), 0, 0.01, 0.01, 0)
    templates = walker.templates(best)
    depth = int(engine.laid.shape[DEPTH, 0])
    tiles = np.full(engine.depth, ANY, np.int64)
    tiles[:depth] = engine.laid.stage[TILING, 0, :depth]
    kept = tiles[:depth].copy()
    before = engine.room.why[EVALUATIONS]
    took = price_hinted(engine.tables, engine.laid, 0, tiles, engine.room)
    assert engine.room.why[EVALUATIONS] == before + 1
    assert list(engine.laid.stage[TILING, 0, :depth]) == list(kept)
    assert took == pytest.approx(best.iteration_ms, rel=2e-3)
    assert templates[0].depth == depth


def test_a_walk_ends_with_its_ration_of_prices(composition: Composition) -> None:
    walker, engine = Walker(composition), composition.engine
    before = engine.evaluations
    walker.walk(walker.start(first_plan(composition), [0]), 5000, 0.03, 0.001, 0, ration=400)
    # the last move may price all tilings, in every size and placement
    assert 400 < engine.evaluations - before < 800
