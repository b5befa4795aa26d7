"""Episodes can be replayed, repeated, and begun far from what was trained on."""

import numpy as np
import pytest

from planner.policy.composition import Composition
from planner.policy.kernel.rolls import COUNT
from planner.policy.network import initial_parameters
from planner.policy.rollout import choices_of, forced_plans, parameters_of, run_episodes
from planner.policy.training.decisions import plan_of_row
from tests.planner.policy.compositions import random_composition


@pytest.fixture(scope="module")
def composition() -> Composition:
    return random_composition(np.random.default_rng(11))


def test_replayed_plans_have_the_log_probabilities_of_their_sampling(
    composition: Composition,
) -> None:
    network = parameters_of(initial_parameters(2), composition)
    first = run_episodes(composition, network, 16, np.random.default_rng(1), keep=True)
    tried = first.rolls.whole[:, 1]
    plans = [[list(k) for k in plan_of_row(first, i, int(tried[i]))] for i in range(16)]
    again = run_episodes(
        composition,
        network,
        16,
        np.random.default_rng(99),
        force=forced_plans(choices_of(plans, composition), composition),
        keep=True,
    )
    sampled = {
        (d.head, int(r), int(k), int(s)): float(p)
        for d in first.decisions
        for r, k, s, p in zip(d.rows, d.template, d.stage, d.log_probability, strict=True)
    }
    replayed = {
        (d.head, int(r), int(k), int(s)): float(p)
        for d in again.decisions
        for r, k, s, p in zip(d.rows, d.template, d.stage, d.log_probability, strict=True)
    }
    assert replayed.keys() == sampled.keys()
    assert max(abs(replayed[key] - sampled[key]) for key in sampled) < 1e-5
    assert np.array_equal(first.rolls.times, again.rolls.times)


def test_the_same_seed_gives_the_same_plans(composition: Composition) -> None:
    network = parameters_of(initial_parameters(2), composition)
    one, two = (
        run_episodes(composition, network, 8, np.random.default_rng(4)).rolls.times
        for _ in range(2)
    )
    other = run_episodes(composition, network, 8, np.random.default_rng(5)).rolls.times
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)


def test_no_plan_is_priced_beyond_the_ceiling_on_evaluations(composition: Composition) -> None:
    network = parameters_of(initial_parameters(2), composition)
    before = composition.engine.evaluations
    episodes = run_episodes(
        composition, network, 64, np.random.default_rng(4), most_evaluations=before + 20
    )
    # The template that reaches the ceiling still looks at its sizes and placements.
    assert composition.engine.evaluations - before < 20 + 10
    assert (episodes.rolls.whole[:, COUNT] > 0).sum() < 20
