"""Trainings small enough to run here: they repeat, resume, and can leave parts out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.policy.training.recipe import PARTS, Recipe, recipe_of
from planner.policy.training.trainer import Trainer
from planner.problem import Problem
from specs.errors import PlanError
from tests.planner.policy.compositions import problem_on
from tests.planner.reference import reference_cluster


def tiny(steps: int = 2, ablate: tuple[str, ...] = (), name: str = "default") -> Recipe:
    return replace(
        recipe_of(name, steps, ablate),
        compositions=2,
        rollouts=6,
        moves=20,
        teacher_moves=50,
        teacher_walks=(2, 1),
        teacher_epochs=1,
        teacher_batch=2,
    )


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    return [
        problem_on("llama-3-8b", reference_cluster("two-64")),
        problem_on("llama-3-8b", reference_cluster("uneven-52")),
        problem_on("qwen3-32b", reference_cluster("mixed-64")),
    ]


def trained(problems: list[Problem], recipe: Recipe, **options: Any) -> dict[str, Any]:
    return Trainer(problems, recipe, 3, **options).run().arrays()


def test_the_same_seed_trains_the_same_network(problems: list[Problem]) -> None:
    one, two = (trained(problems, tiny()) for _ in range(2))
    assert all(np.array_equal(one[name], two[name]) for name in one)


def test_more_workers_train_the_same_network(problems: list[Problem]) -> None:
    one, two = (trained(problems, tiny(), workers=workers) for workers in (1, 2))
    assert all(np.array_equal(one[name], two[name]) for name in one)


def test_every_stage_reports_what_it_does(problems: list[Problem]) -> None:
    facts: list[dict[str, Any]] = []
    trained(problems, tiny(), report=lambda said: facts.append(dict(said)))
    assert list(dict.fromkeys(one["stage"] for one in facts)) == [
        "teacher",
        "imitation",
        "reinforcement",
    ]
    for one in facts:
        if one["stage"] == "reinforcement":
            assert 0 <= one["duplicates"] < 1
            assert 0 < one["best_quality"] <= 1
            assert one["mean_quality"] <= one["best_quality"]
            assert 0 < one["entropy"] <= 1
            assert one["best_prefix"] >= 1


def test_a_killed_training_goes_on_where_it_was(problems: list[Problem], tmp_path: Path) -> None:
    file = tmp_path / "policy.checkpoint.safetensors"
    short = Trainer(problems, replace(tiny(), steps=2), 3, checkpoint=file)
    short.run()
    again = Trainer(problems, replace(tiny(), steps=2), 3, checkpoint=file)
    assert (again.step, again.taught) == (2, 2)
    assert again.evaluations == short.evaluations
    before, after = short.network.arrays(), again.network.arrays()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    again.run()  # nothing is left but to remember
    assert len(again.memory) == len(short.memory) > 0
    for number in range(3):
        one, other = (
            [(plan.plan, plan.throughput, weight) for plan, weight in trainer.memory.best(number)]
            for trainer in (short, again)
        )
        assert one == other
    assert again.spent_before > 0


def test_a_checkpoint_of_another_training_is_refused(
    problems: list[Problem], tmp_path: Path
) -> None:
    file = tmp_path / "policy.checkpoint.safetensors"
    Trainer(problems, tiny(0), 3, checkpoint=file).run()
    with pytest.raises(PlanError, match="another training"):
        Trainer(problems, tiny(0), 4, checkpoint=file)
    file.write_bytes(b"nothing")
    with pytest.raises(PlanError, match="not a readable checkpoint"):
        Trainer(problems, tiny(0), 3, checkpoint=file)


@pytest.mark.parametrize("part", sorted(PARTS))
def test_every_part_can_be_left_out(problems: list[Problem], part: str) -> None:
    recipe = tiny(1, (part,))
    assert not recipe.has(part)
    found = trained(problems, recipe)
    assert all(np.isfinite(value).all() for value in found.values())


def test_the_recipe_of_the_paper_has_no_teacher(problems: list[Problem]) -> None:
    facts: list[dict[str, Any]] = []
    recipe = tiny(1, name="paper")
    trained(problems, recipe, report=lambda said: facts.append(dict(said)))
    assert {one["stage"] for one in facts} == {"reinforcement"}


def test_an_unknown_recipe_or_part_is_refused() -> None:
    with pytest.raises(PlanError, match="expected paper or default"):
        recipe_of("other")
    with pytest.raises(PlanError, match="no part 'teacher'"):
        recipe_of("paper", ablate=("teacher",))


def test_imitation_makes_the_teachers_plans_likelier(problems: list[Problem]) -> None:
    losses: list[float] = []
    recipe = replace(tiny(0), teacher_epochs=60, teacher_batch=3)
    trained(
        problems,
        recipe,
        report=lambda said: losses.append(said["loss"]) if said["stage"] == "imitation" else None,
    )
    assert losses[-1] < 0.7 * losses[0]
