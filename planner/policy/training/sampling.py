"""A group of rollouts on one composition: what they chose, what it is worth, what is learned.

Without gradients: this is what the workers of a training do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.policy.composition import Composition
from planner.policy.kernel.rolls import COUNT, TRIED
from planner.policy.rollout import Chooser, Episodes, parameters_of
from planner.policy.training.advantages import centred_by, group_advantages, returns_to_go
from planner.policy.training.decisions import distinct_rows, gather
from planner.policy.training.memory import Remembered
from planner.policy.training.objective import forced_weight
from planner.policy.training.recipe import Recipe
from planner.policy.training.replay import replayed
from planner.policy.training.space import Space
from planner.policy.training.teacher import RATION, plain
from planner.policy.walks import Walker

Array = Any

MOVE_HEAT, MOVE_COLD = 0.01, 0.0005


@dataclass(frozen=True)
class Asked:
    """What is sampled, at which step, by the network of these parameters."""

    space: Space
    recipe: Recipe
    step: int
    seed: tuple[int, ...]
    parameters: dict[str, Array]

    @property
    def forced(self) -> float:
        """Share of first depths that are drawn evenly."""
        recipe = self.recipe
        if not recipe.has("forced-depth"):
            return 0.0
        return recipe.between(recipe.forced, recipe.last_forced, self.step)

    @property
    def risk(self) -> bool:
        """Whether only what is among the best of the group counts."""
        recipe = self.recipe
        return recipe.has("risk") and self.step >= recipe.risk_from * recipe.steps


@dataclass(frozen=True)
class Sampled:
    """A group.

    decisions: head -> arrays, as of planner.policy.training.decisions.gather; empty where the
    group teaches nothing. advantages, weights: (n,) of the decisions of a head. last, best: (R,)
    throughput with all templates, and with the best first few. improved: plans for the memory.
    """

    summary: Array
    decisions: dict[str, dict[str, Array]]
    advantages: dict[str, Array]
    weights: dict[str, Array]
    last: Array
    best: Array
    improved: list[Remembered]
    facts: dict[str, float]
    evaluations: int


def sample(composition: Composition, asked: Asked) -> Sampled | None:
    """Rollouts of a group; None where no GPU type of the composition has profiles."""
    if not composition.plannable:
        return None
    recipe, space = asked.recipe, asked.space
    draw = np.random.default_rng(asked.seed)
    before = composition.engine.evaluations
    episodes = space.run(
        composition,
        parameters_of(asked.parameters, composition),
        recipe.rollouts,
        draw,
        force=_exploration(asked, draw),
        keep=True,
    )
    rolls = episodes.rolls
    count, tried = rolls.whole[:, COUNT], rolls.whole[:, TRIED]
    plans = [space.plan(episodes, i, int(tried[i])) for i in range(recipe.rollouts)]
    distinct = distinct_rows(plans)
    improved = _improved(asked, episodes, draw)
    decisions = gather(episodes.decisions)
    advantages = _advantages(asked, episodes, distinct)
    valued = {
        head: tuple(x[arrays["rows"], arrays["template"]] for x in advantages)
        for head, arrays in decisions.items()
    }
    teaches = not np.isnan(advantages[0]).all()
    return Sampled(
        composition.summary,
        decisions if teaches else {},
        {
            head: of_depth if head == "depth" else other
            for head, (of_depth, other) in valued.items()
        },
        {head: _weights(asked, head, arrays) for head, arrays in decisions.items()},
        composition.throughput(episodes.last_ms),
        composition.throughput(episodes.best_ms),
        improved,
        {
            "fits": float((count > 0).mean()),
            "invalid": float(1 - count.sum() / max(int(tried.sum()), 1)),
            "duplicates": float(1 - distinct.mean()),
            "depth": float(rolls.choices[:, 0, 0].mean()),
            "templates": float(count.mean()),
            "best_prefix": float(
                np.mean([episodes.best_prefix(i) for i in range(recipe.rollouts)])
            ),
        },
        composition.engine.evaluations - before,
    )


def _improved(asked: Asked, episodes: Episodes, draw: np.random.Generator) -> list[Remembered]:
    """The best plan of a group, and what local moves make of it."""
    recipe, space = asked.recipe, asked.space
    if not recipe.has("sil"):
        return []
    row = int(episodes.best_ms.argmin())
    if not np.isfinite(episodes.best_ms[row]):
        return []
    plan = space.plan(episodes, row, episodes.best_prefix(row))
    plans = [plan]
    if recipe.has("local-moves"):
        walker = Walker(episodes.composition)
        start = walker.start(plan, [0] * len(plan))
        seed = int(draw.integers(1 << 31))
        _, best = walker.walk(
            start,
            recipe.moves,
            MOVE_HEAT,
            MOVE_COLD,
            seed,
            ration=RATION * recipe.moves,
            spare=False,
        )
        better = tuple(kinds for kinds, *_ in best.templates)
        if better and better != plan:
            plans.append(plain(walker, better))
    return replayed(space, episodes.composition, plans)


def _advantages(asked: Asked, episodes: Episodes, distinct: Array) -> tuple[Array, Array]:
    """Advantages of depths and of stages, (R, K) each, NaN where none is known."""
    rolls = episodes.rolls
    count, tried, depths = rolls.whole[:, COUNT], rolls.whole[:, TRIED], rolls.choices[:, :, 0]
    throughput = np.where(rolls.times > 0, episodes.composition.throughput(np.abs(rolls.times)), 0)
    penalty = asked.recipe.penalty if asked.recipe.has("first-step-penalty") else 0.0
    to_go = returns_to_go(throughput, tried, count, penalty)
    of_depth = np.full(to_go.shape, np.nan)
    for k in range(to_go.shape[1]):
        rows = np.flatnonzero(~np.isnan(to_go[:, k]))
        if len(rows) < 2:
            continue
        found = group_advantages(to_go[rows, k], distinct[rows], risk=asked.risk)
        if found is not None:
            of_depth[rows, k] = found
    of_stage = of_depth.copy()
    if asked.recipe.has("centred-stages"):
        for k in range(to_go.shape[1]):
            rows = np.flatnonzero(~np.isnan(of_depth[:, k]))
            if len(rows):
                of_stage[rows, k] = centred_by(of_depth[rows, k], depths[rows, k], distinct[rows])
    return of_depth, of_stage


def _weights(asked: Asked, head: str, arrays: dict[str, Array]) -> Array:
    """What each decision weighs: less than 1 where it was forced and the policy hardly takes it."""
    weight = np.ones(len(arrays["choice"]))
    even = 1.0 / np.maximum(arrays["mask"].sum(axis=1), 1)
    for i in range(len(weight)):
        forced = 0.0
        if head == "depth" and arrays["template"][i] == 0:
            forced = asked.forced
        elif head == "type" and arrays["rows"][i] == 0 and asked.recipe.has("uniform-type"):
            forced = 1.0
        if forced:
            weight[i] = forced_weight(
                float(arrays["log_probability"][i]), even[i], forced, asked.recipe.most_weight
            )
    return weight


def _exploration(asked: Asked, draw: np.random.Generator) -> Chooser:
    """Choices forced on rollouts: even first depths, and one rollout with even GPU types."""
    first = [True]

    def force(head: str, rows: Array, logp: Array, mask: Array) -> Array | None:
        if head == "depth" and first[0]:
            first[0] = False
            said = np.full(len(rows), -1)
            for a in np.flatnonzero(draw.random(len(rows)) < asked.forced):
                said[a] = draw.choice(np.flatnonzero(mask[a]))
            return said
        if head == "type" and asked.recipe.has("uniform-type"):
            said = np.full(len(rows), -1)
            for a in np.flatnonzero(rows == 0):
                said[a] = draw.choice(np.flatnonzero(mask[a]))
            return said
        return None

    return force
