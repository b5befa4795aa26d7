"""Recipes: every number of a training, and the parts that an ablation can leave out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specs.errors import PlanError

PAPER_PARTS = {
    "clip": "the clipped objective; without it, plain policy gradient",
    "pcgrad": "gradient surgery between compositions",
    "film": "conditioning on the composition",
    "forced-depth": "the first depth drawn evenly with falling probability",
    "uniform-type": "one rollout a group draws its GPU types evenly",
    "entropy": "entropy per decision",
    "sil": "self-imitation from the best plans met",
    "neighbour-sil": "self-imitation also from the three nearest compositions",
    "first-step-penalty": "a first template that does not fit costs",
}
DEFAULT_PARTS = {
    "teacher": "annealed plans, imitated before reinforcement",
    "local-moves": "local moves improve the best rollout for the self-imitation",
    "risk": "in the last third only what is among the best of its group counts",
    "centred-stages": "stages compared within rollouts of their own first depth",
}
PARTS = PAPER_PARTS | DEFAULT_PARTS
FILL_PARTS = frozenset({"teacher", "local-moves"})  # these lay templates by masks and fill


@dataclass(frozen=True)
class Recipe:
    """What a training does; steps are updates of reinforcement."""

    name: str
    parts: frozenset[str]
    steps: int = 300
    compositions: int = 8  # a step
    rollouts: int = 32  # a composition
    epochs: int = 2
    clip: float = 0.2
    most_norm: float = 0.5
    stop_kl: float = 0.05
    learning_rate: float = 1e-3
    last_learning_rate: float = 1e-4
    entropy: float = 0.01
    last_entropy: float = 0.001
    forced: float = 0.8
    last_forced: float = 0.25
    most_weight: float = 2.0  # of a forced choice
    imitation: float = 0.75  # weight of the self-imitation
    imitation_every: int = 1
    penalty: float = 0.05
    moves: int = 1000  # of the best rollout of each group
    risk_from: float = 2 / 3
    pool: int = 4000  # compositions in all
    teacher_moves: int = 3000  # of a walk
    teacher_walks: tuple[int, ...] = (3, 2)  # of each round: after each all plans are imitated
    teacher_epochs: int = 16  # of each round
    teacher_rate: float = 2e-3
    teacher_batch: int = 32

    def has(self, part: str) -> bool:
        """Whether a part is on."""
        return part in self.parts

    def between(self, first: float, last: float, step: int) -> float:
        """A value that goes from first to last over the steps, geometrically."""
        share = step / max(1, self.steps - 1)
        return float(first * (last / first) ** share)


def recipe_of(name: str, steps: int | None = None, ablate: Sequence[str] = ()) -> Recipe:
    """The recipe `paper` or `default`, less the ablated parts. Raises PlanError for other names."""
    if name == "paper":
        recipe = Recipe(
            "paper", frozenset(PAPER_PARTS), learning_rate=3e-3, last_learning_rate=3e-4
        )
    elif name == "default":
        recipe = Recipe("default", frozenset(PARTS))
    else:
        raise PlanError(f"no recipe {name!r}, expected paper or default")
    for part in ablate:
        if part not in recipe.parts:
            raise PlanError(
                f"recipe {name} has no part {part!r} to leave out, expected one of: "
                f"{', '.join(sorted(recipe.parts))}"
            )
    recipe = replace(recipe, parts=recipe.parts - set(ablate))
    return recipe if steps is None else replace(recipe, steps=steps)
