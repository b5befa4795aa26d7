"""Rollouts that begin like given plans."""

import numpy as np

from planner.policy.composition import Composition
from planner.policy.network import initial_parameters
from planner.policy.prefixes import begun_like
from planner.policy.rollout import choices_of, parameters_of, run_episodes
from planner.policy.training.decisions import plan_of_row
from tests.planner.policy.compositions import problem_on, random_composition


def test_the_stages_before_the_cut_are_taken_and_the_rest_is_sampled() -> None:
    composition = random_composition(np.random.default_rng(11))
    network = parameters_of(initial_parameters(0), composition)
    episodes = run_episodes(composition, network, 32, np.random.default_rng(0))
    tried = episodes.rolls.whole[:, 1]
    plans = [plan_of_row(episodes, row, int(tried[row])) for row in range(32)]
    lengths = [sum(len(kinds) for kinds in plan) for plan in plans]
    cuts = np.array([length * (row % 4) // 3 for row, length in enumerate(lengths)])
    choices = choices_of([[list(kinds) for kinds in plan] for plan in plans], composition)
    again = run_episodes(
        composition,
        network,
        32,
        np.random.default_rng(1),
        force=begun_like(choices, cuts, composition),
    )
    others = 0
    for row, (plan, cut) in enumerate(zip(plans, cuts, strict=True)):
        new = plan_of_row(again, row, int(again.rolls.whole[row, 1]))
        flat = [(len(kinds), q) for kinds in plan for q in kinds]
        assert [(len(kinds), q) for kinds in new for q in kinds][:cut] == flat[:cut]
        others += new != plan
    assert others > 8  # those that were cut at once, at the least


def test_a_plan_without_templates_takes_nothing() -> None:
    composition = Composition(
        problem_on("llama-3-8b", random_composition(np.random.default_rng(2)).problem.cluster)
    )
    force = begun_like(choices_of([[], []], composition), np.zeros(2, np.int64), composition)
    rows = np.arange(2)
    for head in ("depth", "type", "degree"):
        assert list(force(head, rows, np.zeros((2, 3)), np.ones((2, 3), bool))) == [-1, -1]  # type: ignore[arg-type]


def test_low_temperatures_repeat_what_is_likeliest_at_each_depth() -> None:
    composition = random_composition(np.random.default_rng(4))
    network = parameters_of(initial_parameters(0), composition)
    found = []
    for temperature in (1.0, 1e-6):
        episodes = run_episodes(
            composition,
            network,
            24,
            np.random.default_rng(0),
            temperatures=np.full(24, temperature),
        )
        first = episodes.rolls.choices[:, 0]
        found.append((len({tuple(row) for row in first}), len(set(first[:, 0]))))
    (drawn, _), (likeliest, depths) = found
    assert drawn > likeliest
    assert likeliest == depths > 1
