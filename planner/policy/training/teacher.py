"""Annealed plans to imitate: walks on a composition, put in a plain order.

How stages stand within a template, and templates within a plan, hardly changes what a plan costs,
so walks leave them in an order by chance. What is taught is the plainest order that costs no more:
stages of a kind side by side, the template that does most first.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.policy.composition import Composition
from planner.policy.kernel.scene import TYPE_OF, WITHIN
from planner.policy.rollout import parameters_of, run_episodes
from planner.policy.start import Start
from planner.policy.training.memory import Remembered
from planner.policy.training.replay import replayed
from planner.policy.training.space import STRUCTURAL
from planner.policy.walks import Walker

Array = Any
PlanKinds = tuple[tuple[int, ...], ...]

HOT, HOT_AGAIN, COLD = 0.03, 0.02, 0.0005
AGAIN = 2  # walks that go on from the best of the others
TAUGHT = 3  # plans of a composition
ROLLOUTS = 24
RATION = 2  # plans priced a move: with experts a move prices many tilings
AS_GOOD = 1.002  # of the iteration time, where the plainer order is taken
MOST_ORDERS = 24


@dataclass(frozen=True)
class Lesson:
    """How a composition is annealed: walks of so many moves each, and a seed.

    parameters: of the network whose rollouts the walks begin from.
    """

    moves: int
    walks: int
    seed: tuple[int, ...]
    parameters: Mapping[str, Array]


@dataclass(frozen=True)
class Taught:
    """Plans for the memory, with the summary of their composition and how many were priced."""

    summary: Array
    plans: list[Remembered]
    evaluations: int


def teach(composition: Composition, lesson: Lesson) -> Taught:
    """Good plans of a composition, none where none fits."""
    before = composition.engine.evaluations
    draw = np.random.default_rng(lesson.seed)
    plans = annealed_plans(composition, lesson, draw)
    taught = replayed(STRUCTURAL, composition, plans) if plans else []
    return Taught(composition.summary, taught, composition.engine.evaluations - before)


def annealed_plans(
    composition: Composition, lesson: Lesson, draw: np.random.Generator
) -> list[PlanKinds]:
    """The best plans of some walks, plain; none where no rollout fits.

    Each walk begins from the best of some rollouts of its own; the best plans so far walk once
    more. Replicas are not given up: rollouts could not lay such a plan.
    """
    if not composition.plannable:
        return []
    network = parameters_of(lesson.parameters, composition)
    walker = Walker(composition)

    def walk(start: Start, heat: float) -> Start:
        moves, seed = lesson.moves, int(draw.integers(1 << 31))
        _, best = walker.walk(start, moves, heat, COLD, seed, ration=RATION * moves, spare=False)
        return best

    found = []
    for _ in range(lesson.walks):
        episodes = run_episodes(composition, network, ROLLOUTS, draw)
        row = int(episodes.best_ms.argmin())
        if np.isfinite(episodes.best_ms[row]):
            found.append(walk(episodes.start(row, episodes.best_prefix(row)), HOT))
    found.sort(key=lambda one: one.iteration_ms)
    found += [walk(one, HOT_AGAIN) for one in found[:AGAIN]]
    found.sort(key=lambda one: one.iteration_ms)
    plans = [tuple(kinds for kinds, *_ in one.templates) for one in found[:TAUGHT]]
    return list(dict.fromkeys(plain(walker, plan) for plan in plans if plan))


def plain(walker: Walker, plan: PlanKinds) -> PlanKinds:
    """The plan with its templates, then the stages of each, in the plainest order as good."""
    alone = {kinds: _price_ms(walker, (kinds,)) for kinds in set(plan)}
    orders: set[PlanKinds] = set(itertools.islice(itertools.permutations(plan), MOST_ORDERS))
    by_first = sorted(orders, key=lambda order: [alone[kinds] for kinds in order])
    plan = _first_as_good(walker, [*by_first, plan])
    for k, kinds in enumerate(plan):
        variants = [(*plan[:k], row, *plan[k + 1 :]) for row in grouped(walker.composition, kinds)]
        plan = _first_as_good(walker, [*variants, plan])
    return plan


def grouped(composition: Composition, kinds: Sequence[int]) -> list[tuple[int, ...]]:
    """The stages with all of a kind side by side, the plainest order of the kinds first.

    Types side by side too, those that hold most blocks first: early stages hold most micro-batches
    in flight. Then every other order of the kinds, up to twenty-four.
    """
    scene = composition.scene
    hold = {q: float(scene.fit[WITHIN, q, 8, -1]) for q in set(kinds)}
    most = {q: max(hold[u] for u in hold if _type(scene, u) == _type(scene, q)) for q in hold}
    plainest = sorted(hold, key=lambda q: (-most[q], _type(scene, q), -hold[q], q))
    orders = itertools.islice(itertools.permutations(plainest), MOST_ORDERS)
    return [tuple(q for q in order for u in kinds if u == q) for order in orders]


def _type(scene: Any, q: int) -> int:
    return int(scene.kind_int[TYPE_OF, q])


def _first_as_good(walker: Walker, plans: Sequence[PlanKinds]) -> PlanKinds:
    """The first of some orders of a plan that costs next to no more than the cheapest."""
    times = [_price_ms(walker, plan) for plan in plans]
    return next(
        (plan for plan, ms in zip(plans, times, strict=True) if ms <= AS_GOOD * min(times)),
        plans[-1],
    )


def _price_ms(walker: Walker, plan: PlanKinds) -> float:
    """Iteration in ms with all templates of a plan, inf where one does not fit."""
    laid, _ = walker.walk(walker.start(plan, [0] * len(plan)), 0, HOT, COLD, 0)
    return laid.iteration_ms if len(laid.templates) == len(plan) else float("inf")
