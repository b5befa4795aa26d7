"""Masks and prices of episodes, held against the readable packing and cost."""

import numpy as np
import pytest

from planner.cost import price_filled
from planner.filled import FilledPlan
from planner.packing import Demand, FreeGpus, Placement, largest_replicas, pack
from planner.policy.composition import Composition
from planner.policy.features import DEGREES, LEVELS, STATES
from planner.policy.kernel.episode import open_templates, set_depth, take, view_degrees
from planner.policy.kernel.rolls import (
    COUNT,
    COVER,
    HELD,
    PACKS,
    SPEED_SUM,
    TRIED,
    new_rolls,
)
from planner.policy.kernel.scene import LEAST
from planner.policy.network import initial_parameters
from planner.policy.rollout import Episodes, parameters_of, run_episodes
from tests.planner.policy.compositions import ODD, problem_on, random_composition


def rolled(composition: Composition, count: int, seed: int) -> Episodes:
    network = parameters_of(initial_parameters(0), composition)
    draw = np.random.default_rng(seed)
    return run_episodes(composition, network, count, draw, keep=True)


def compositions() -> list[Composition]:
    draw = np.random.default_rng(5)
    odd = [Composition(problem_on("llama-3-8b", cluster)) for cluster in ODD]
    return odd + [
        random_composition(draw, model) for model in ("llama-3-8b", "qwen3-32b") for _ in range(4)
    ]


def test_every_prefix_completes_in_ten_thousand_states() -> None:
    states = 0
    for number, composition in enumerate(compositions()):
        episodes = rolled(composition, 64, number)
        for decision in episodes.decisions:
            states += len(decision.rows)
            assert decision.mask.any(axis=1).all()
            rows = np.arange(len(decision.rows))
            assert decision.mask[rows, decision.choice].all()
            assert np.isfinite(decision.log_probability).all()
            assert np.isfinite(decision.candidates).all()
            assert np.isfinite(decision.state).all()
        # What was begun was finished: each chosen template has all its stages.
        for row in range(64):
            for k in range(episodes.rolls.whole[row, TRIED]):
                depth = episodes.rolls.choices[row, k, 0]
                assert (episodes.rolls.choices[row, k, 1 : 1 + depth] >= 0).all()
    assert states > 10_000


def test_what_the_masks_let_through_packs_by_the_readable_packing() -> None:
    for number, composition in enumerate(compositions()[:8]):
        episodes = rolled(composition, 8, number)
        kinds = composition.engine.kinds
        for row in range(8):
            for k in range(episodes.rolls.whole[row, TRIED]):
                laid = composition.laid(episodes.rolls, row, k)
                used = FilledPlan(composition.problem.cluster, tuple(laid)).used
                free = FreeGpus.of(composition.problem, used)
                depth = episodes.rolls.choices[row, k, 0]
                chosen = [kinds[q] for q in episodes.rolls.choices[row, k, 1 : 1 + depth]]
                assert largest_replicas(free, chosen, 1 << 30) >= 1


def test_a_legal_degree_packs_and_leaves_groups_for_the_rest() -> None:
    composition = Composition(problem_on("llama-3-8b", ODD[2]))
    episodes = rolled(composition, 16, 1)
    scene, kinds = composition.scene, composition.engine.kinds
    free = FreeGpus.of(composition.problem)
    checked = 0
    for decision in episodes.decisions:
        if decision.head != "degree":
            continue
        for a, row in enumerate(decision.rows):
            if decision.template[a] > 0:
                continue
            plan = episodes.rolls.choices[row, 0]
            depth, s = int(plan[0]), int(decision.stage[a])
            before = [kinds[q] for q in plan[1 : 1 + s]]
            g = int(composition.engine.tables.kind_int[0, plan[1 + s]])
            for level in range(decision.mask.shape[1]):
                q = scene.kind[g, level]
                if q < 0:
                    assert not decision.mask[a, level]
                    continue
                completes = _completes(free, [*before, kinds[q]], depth, scene, kinds)
                if decision.mask[a, level]:
                    assert completes
                checked += 1
    assert checked > 100


def _completes(
    free: FreeGpus, stages: list[Demand], depth: int, scene: object, kinds: tuple[Demand, ...]
) -> bool:
    """Whether stages of the least degrees bring a template to its depth, tried one by one."""
    if pack(free, stages, 1, Placement.REPLICA) is None:
        return False
    least = [kinds[scene.kind[g, e]] for g, e in enumerate(scene.type_int[LEAST]) if e >= 0]  # type: ignore[attr-defined]
    while len(stages) < depth:
        for kind in least:
            if pack(free, [*stages, kind], 1, Placement.REPLICA) is not None:
                stages = [*stages, kind]
                break
        else:
            return False
    return True


@pytest.mark.parametrize("model", ["llama-3-8b", "qwen3-32b"])
def test_looking_ahead_is_what_comes_of_stages_alike(model: str) -> None:
    """Replicas and blocks that fit, as promised, against taking all stages to come."""
    draw = np.random.default_rng(12)
    checked = 0
    for _ in range(6):
        composition = random_composition(draw, model)
        tables, scene = composition.engine.tables, composition.scene
        rows = np.arange(1)
        for _ in range(20):
            rolls = new_rolls(tables, scene, 1)
            open_templates(tables, scene, rolls, rows, composition.engine.room)
            depth = int(draw.integers(1, min(scene.depth, 12) + 1))
            set_depth(rolls, rows, np.array([depth]))
            state = np.empty((1, STATES), np.float32)
            for s in range(depth):
                g = int(draw.integers(scene.kind.shape[0]))
                seen = np.empty((1, LEVELS, DEGREES), np.float32)
                legal = np.zeros((1, LEVELS), np.bool_)
                view_degrees(scene, rolls, rows, np.array([g]), state, seen, legal)
                if not legal.any():
                    break
                level = int(draw.choice(np.flatnonzero(legal[0])))
                ahead = new_rolls(tables, scene, 1)
                for mine, theirs in zip(ahead, rolls, strict=True):
                    mine[:] = theirs
                for _ in range(s, depth):
                    take(scene, ahead, rows, np.array([g]), np.array([level]))
                promised = seen[0, level, 18:]
                packs, held = max(ahead.whole[0, PACKS], 0), ahead.whole[0, HELD]
                blocks, speeds = ahead.real[0, COVER], ahead.real[0, SPEED_SUM]
                assert promised[1] == pytest.approx(min(blocks / scene.blocks, 2) / 2, rel=1e-5)
                assert promised[2] == pytest.approx(np.log2(1 + packs) / 8, rel=1e-5)
                assert promised[3] == pytest.approx(packs * held / rolls.free[0, 0].sum(), rel=1e-5)
                rates = min(packs * speeds / scene.whole_rate, 1.5)
                assert promised[4] == pytest.approx(rates, rel=1e-5)
                checked += 1
                take(scene, rolls, rows, np.array([g]), np.array([level]))
    assert checked > 200


@pytest.mark.parametrize("model", ["llama-3-8b", "qwen3-32b"])
def test_every_prefix_is_priced_as_the_cost_model_prices_it(model: str) -> None:
    composition = random_composition(np.random.default_rng(3), model)
    episodes = rolled(composition, 20, 2)
    priced = 0
    for row in range(20):
        for k in range(episodes.rolls.whole[row, COUNT]):
            templates = composition.laid(episodes.rolls, row, k + 1)
            prediction = price_filled(composition.problem, templates)
            assert prediction.fits
            assert episodes.rolls.times[row, k] == pytest.approx(prediction.iteration_ms, rel=1e-9)
            priced += 1
    assert priced > 4


def test_a_free_gpu_alone_is_one_stage_or_nothing() -> None:
    composition = Composition(problem_on("llama-3-8b", ODD[0]))
    episodes = rolled(composition, 4, 0)
    assert (episodes.rolls.choices[:, 0, 0] == 1).all()
    assert (episodes.rolls.whole[:, COUNT] == 0).all()  # an H100 does not hold 8B with AdamW
    assert np.isinf(episodes.best_ms).all()
