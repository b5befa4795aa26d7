"""The flat policy: every knob is drawn, what is drawn is priced as it is, and it can be trained."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.baselines import PLANNERS, flat_rl
from planner.cost import price_filled
from planner.policy.composition import Composition
from planner.policy.features import DEGREES, DEPTHS, STATES, TYPES
from planner.policy.flat.rollout import (
    FlatEpisodes,
    apportioned,
    flat_plan,
    forced_flat,
    run_flat_episodes,
)
from planner.policy.flat.views import SHARES, FlatView
from planner.policy.kernel.episode import open_templates, set_depth, take, view_degrees, view_depth
from planner.policy.kernel.rolls import COUNT, STAGE, TRIED, new_rolls
from planner.policy.network import FLAT_HEADS, initial_parameters
from planner.policy.rollout import parameters_of
from planner.policy.training.recipe import Recipe, recipe_of
from planner.policy.training.space import FLAT
from planner.policy.training.trainer import Trainer
from planner.policy.weights import (
    FLAT_KIND,
    KIND,
    Weights,
    load_weights,
    save_weights,
    shipped_weights,
)
from planner.problem import Problem
from planner.result import Budget, Status
from specs.errors import PlanError
from tests.planner.policy.compositions import ODD, problem_on, random_composition
from tests.planner.reference import reference_cluster

UNTRAINED = initial_parameters(0, FLAT_HEADS)


def rolled(composition: Composition, count: int, seed: int, **options: Any) -> FlatEpisodes:
    network = parameters_of(UNTRAINED, composition)
    return run_flat_episodes(composition, network, count, np.random.default_rng(seed), **options)


@pytest.fixture(scope="module")
def composition() -> Composition:
    return random_composition(np.random.default_rng(11))


def compositions() -> list[Composition]:
    draw = np.random.default_rng(5)
    odd = [Composition(problem_on("llama-3-8b", cluster)) for cluster in ODD]
    return odd + [random_composition(draw, model) for model in ("llama-3-8b", "qwen3-32b")]


def test_valid_samples_are_priced_as_the_cost_model_prices_them() -> None:
    priced = 0
    for number, one in enumerate(compositions()):
        episodes = rolled(one, 1500, number)
        for row in np.flatnonzero(episodes.rolls.whole[:, COUNT]):
            for k in range(episodes.rolls.whole[row, COUNT]):
                templates = one.laid(episodes.rolls, int(row), k + 1)
                prediction = price_filled(one.problem, templates)
                assert prediction.fits
                assert episodes.rolls.times[row, k] == pytest.approx(
                    prediction.iteration_ms, rel=1e-9
                )
                priced += 1
    assert priced >= 10


def test_the_plan_laid_is_the_one_that_was_chosen() -> None:
    one = Composition(problem_on("llama-3-8b", reference_cluster("two-64")))
    episodes = rolled(one, 1500, 1)
    (row, *_) = np.flatnonzero(episodes.rolls.whole[:, COUNT])
    (template,) = one.laid(episodes.rolls, int(row), 1)
    depth, *rest = episodes.template(int(row), 0)
    assert template.depth == depth
    assert template.replicas == rest[-2]
    assert template.micro_batch == one.engine.tables.size[rest[-1]]
    held = [len(stage.layers) for stage in template.stages]
    held[0], held[-1] = held[0] - 1, held[-1] - 1  # the embedding and the head
    shares = np.array(SHARES)[rest[depth : 2 * depth]]
    assert held == list(apportioned(shares, one.problem.model.blocks))


@pytest.mark.parametrize(
    ("shares", "blocks", "expected"),
    [
        ((1.0, 1.0), 7, [4, 3]),
        # 8 blocks by 1 : 3 are 2 and 6
        ((1.0, 3.0), 8, [2, 6]),
        # 0.25 : 3 : 3 of 5 is 0.2, 2.4, 2.4: one for the first, the rest shared evenly
        ((0.25, 3.0, 3.0), 5, [1, 2, 2]),
        ((2.0, 0.5, 1.0), 3, [1, 1, 1]),
        ((1.0,), 32, [32]),
    ],
)
def test_shares_become_blocks(shares: tuple[float, ...], blocks: int, expected: list[int]) -> None:
    assert list(apportioned(np.array(shares), blocks)) == expected


def test_nothing_is_masked_but_a_stop_at_once(composition: Composition) -> None:
    episodes = rolled(composition, 64, 2, keep=True)
    seen = set()
    for decision in episodes.decisions:
        seen.add(decision.head)
        assert np.isfinite(decision.candidates).all()
        assert np.isfinite(decision.state).all()
        forbidden = ~decision.mask
        if decision.head == "depth":
            assert (forbidden[:, 0] == (decision.template == 0)).all()
            forbidden = forbidden[:, 1:]
        if decision.head == "degree":
            # no node of the cluster is wider
            assert (1 << np.flatnonzero(~forbidden[0])).max() <= 8
            continue
        assert not forbidden.any()
    assert seen == set(FLAT_HEADS)


def test_an_invalid_template_ends_the_episode_and_is_counted() -> None:
    for number, one in enumerate(compositions()):
        before = one.engine.evaluations
        episodes = rolled(one, 64, number)
        whole = episodes.rolls.whole
        assert set(whole[:, TRIED] - whole[:, COUNT]) <= {0, 1}
        assert one.engine.evaluations - before == whole[:, TRIED].sum()
        refused = one.engine.tally().rejected
        assert (
            sum(refused.values()) + episodes.unprofiled >= (whole[:, TRIED] > whole[:, COUNT]).sum()
        )


def test_replayed_plans_have_the_log_probabilities_of_their_sampling(
    composition: Composition,
) -> None:
    first = rolled(composition, 1500, 3, keep=True)
    good = [int(i) for i in np.flatnonzero(first.rolls.whole[:, COUNT])]
    assert good
    plans = [flat_plan(first, i, int(first.rolls.whole[i, COUNT])) for i in good]
    again = rolled(composition, len(good), 99, force=forced_flat(plans, composition), keep=True)
    assert [flat_plan(again, a, len(plan)) for a, plan in enumerate(plans)] == plans
    sampled = {
        (d.head, int(r), int(k), int(s)): float(p)
        for d in first.decisions
        for r, k, s, p in zip(d.rows, d.template, d.stage, d.log_probability, strict=True)
    }
    checked = 0
    for d in again.decisions:
        for r, k, s, p in zip(d.rows, d.template, d.stage, d.log_probability, strict=True):
            if k < len(plans[r]):
                key = (d.head, good[r], int(k), int(s))
                assert float(p) == pytest.approx(sampled[key], abs=1e-5)
                checked += 1
    assert checked > 3 * len(good)


def test_on_legal_choices_both_policies_see_the_same() -> None:
    for one in compositions():
        tables, scene, room = one.engine.tables, one.scene, one.engine.room
        rolls = new_rolls(tables, scene, 3)
        rows, view = np.arange(3), FlatView(one, rolls, *np.zeros((2, 3, scene.depth)))
        open_templates(tables, scene, rolls, rows, room)
        state = np.empty((3, STATES), np.float32)
        seen = np.empty((3, scene.depth + 1, DEPTHS), np.float32)
        legal = np.zeros((3, scene.depth + 1), np.bool_)
        view_depth(scene, rolls, rows, state, seen, legal)
        assert view.depths(rows)[0][legal] == pytest.approx(seen[legal], abs=1e-6)
        assert view.state(rows) == pytest.approx(state)
        depth = int(np.flatnonzero(legal[0])[-1])
        set_depth(rolls, rows, np.full(3, depth))
        for _ in range(min(depth, 3)):
            types = np.full(3, int(scene.kind_int[0, scene.kind[scene.kind >= 0][0]]))
            seen = np.empty((3, 7, DEGREES), np.float32)
            legal = np.zeros((3, 7), np.bool_)
            view_degrees(scene, rolls, rows, types, state, seen, legal)
            if not legal.any():
                break
            assert view.degrees(rows, types)[0][legal] == pytest.approx(seen[legal], abs=1e-6)
            assert view.types(rows)[0].shape == (3, scene.kind.shape[0], TYPES)
            take(scene, rolls, rows, types, legal.argmax(axis=1))
        assert (rolls.whole[:, STAGE] >= 1).all()


def test_the_planner_repeats_itself_and_says_how_much_was_invalid() -> None:
    problem = problem_on("llama-3-8b", reference_cluster("two-64"))
    one, two = (flat_rl.sample(problem, Budget(), 4, UNTRAINED, 256) for _ in range(2))
    assert one.plan is not None
    assert one.plan == two.plan
    assert one.plan.planner == "flat-rl"
    assert one.plan.prediction is not None
    assert one.plan.prediction.fits
    assert "invalid" in one.reason
    assert sum(one.rejected.values()) < one.evaluations
    assert [ms for _, ms in one.curve] == sorted((ms for _, ms in one.curve), reverse=True)
    assert one.curve[-1][1] == pytest.approx(one.plan.prediction.iteration_ms, rel=1e-9)


def test_evaluations_are_a_ceiling() -> None:
    problem = problem_on("llama-3-8b", reference_cluster("two-64"))
    found = flat_rl.sample(problem, Budget(evaluations=100), 0, UNTRAINED, None)
    assert 90 <= found.evaluations <= 100 + 32
    assert found.status in (Status.OK, Status.BUDGET)


def tiny(steps: int) -> Recipe:
    return replace(recipe_of("paper", steps), compositions=2, rollouts=24)


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    return [
        problem_on("llama-3-8b", reference_cluster("two-64")),
        problem_on("llama-3-8b", reference_cluster("uneven-52")),
    ]


def test_training_makes_fewer_samples_invalid(problems: list[Problem]) -> None:
    facts: list[dict[str, Any]] = []
    trainer = Trainer(problems, tiny(12), 3, space=FLAT, report=lambda x: facts.append(dict(x)))
    network = trainer.run()
    assert set(network.arrays()) == set(UNTRAINED)
    assert all(np.isfinite(value).all() for value in network.arrays().values())
    assert 0.5 < facts[0]["invalid"] <= 1
    late = np.mean([one["invalid"] for one in facts[-3:]])
    assert late < np.mean([one["invalid"] for one in facts[:3]])
    assert len(trainer.memory) == 2


def test_the_fill_is_no_part_of_its_training(problems: list[Problem]) -> None:
    with pytest.raises(PlanError, match="use the recipe paper"):
        Trainer(problems, recipe_of("default"), 0, space=FLAT)


def test_the_shipped_weights_say_how_they_were_trained() -> None:
    shipped = shipped_weights(FLAT_KIND)
    assert shipped.record["command"].startswith("arachne-plan train --planner flat-rl")
    assert shipped.record["recipe"] == "paper"
    ours = shipped_weights(KIND).record
    assert shipped.record["steps"] == ours["steps"]
    assert shipped.record["gpus"] == ours["gpus"]
    assert shipped.record["commit"]
    assert set(shipped.parameters) == set(UNTRAINED)


def test_weights_of_the_one_policy_are_refused_for_the_other(tmp_path: Path) -> None:
    file = tmp_path / "flat.safetensors"
    save_weights(file, Weights(UNTRAINED, {}, kind=FLAT_KIND))
    assert load_weights(file, FLAT_KIND).kind == FLAT_KIND
    with pytest.raises(PlanError, match="no weights of this planner"):
        load_weights(file)


def test_the_shipped_policy_plans_better_than_an_untrained_one() -> None:
    problem = problem_on("llama-3-8b", reference_cluster("two-64"))
    trained, untrained = (
        flat_rl.plan(problem, Budget(), 0),
        flat_rl.sample(problem, Budget(), 0, UNTRAINED, flat_rl.ROLLOUTS),
    )
    assert PLANNERS["flat-rl"] is flat_rl.plan
    assert trained.plan is not None
    assert trained.plan.prediction is not None
    best = min((ms for _, ms in untrained.curve), default=float("inf"))
    assert trained.plan.prediction.iteration_ms < best
