"""Annealed plans to imitate, on all cores: one walk a composition."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from planner.policy.composition import Composition
from planner.policy.network import initial_parameters
from planner.policy.rollout import parameters_of, run_episodes
from planner.policy.training.decisions import plan_of_row
from planner.policy.walks import Walker
from planner.problem import Problem

Array = Any
PlanKinds = tuple[tuple[int, ...], ...]

HOT, COLD = 0.03, 0.0005
ROLLOUTS = 24

_asked: list[Problem] = []  # what forked workers inherit
_how: dict[str, int] = {}


def teacher_plans(
    problems: Sequence[Problem], moves: int, seed: int, workers: int
) -> Iterator[tuple[int, list[PlanKinds], int]]:
    """(number of the problem, good plans, evaluations) of each, as they are found.

    The best of some untrained rollouts is annealed. workers: processes; they are forked, so this
    comes before torch starts threads.
    """
    global _asked, _how
    _asked, _how = list(problems), {"moves": moves, "seed": seed}
    if workers == 1:
        for number in range(len(problems)):
            yield _teach(number)
        return
    # Fork: profiles of hundreds of problems are not sent to the workers one by one.
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        yield from pool.imap_unordered(_teach, range(len(problems)))


def _teach(number: int) -> tuple[int, list[PlanKinds], int]:
    composition = Composition(_asked[number])
    seed = _how["seed"] * 1_000_003 + number
    draw = np.random.default_rng(seed)
    plans = annealed_plans(composition, initial_parameters(0), _how["moves"], draw)
    return number, plans, composition.engine.evaluations


def annealed_plans(
    composition: Composition,
    parameters: Mapping[str, Array],
    moves: int,
    draw: np.random.Generator,
    best_of: int = ROLLOUTS,
    spent: Callable[[], bool] | None = None,
) -> list[PlanKinds]:
    """Plans of one walk from the best of some rollouts, the best first; none where none fits."""
    network = parameters_of(parameters, composition)
    episodes = run_episodes(composition, network, best_of, draw, spent=spent)
    times = episodes.best_ms
    row = int(times.argmin())
    if not np.isfinite(times[row]):
        return []
    prefixes = np.where(episodes.rolls.times[row] > 0, episodes.rolls.times[row], np.inf)
    plan = plan_of_row(episodes, row, int(prefixes.argmin()) + 1)
    walker = Walker(composition)
    end, best = walker.walk(
        walker.start(plan, [0] * len(plan)),
        moves,
        HOT,
        COLD,
        int(draw.integers(1 << 31)),
        # With experts a move prices many tilings: it is the plans priced that are rationed.
        ration=2 * moves,
    )
    found = [tuple(kinds for kinds, *_ in start.templates) for start in (best, end)]
    return list(dict.fromkeys(plan for plan in found if plan))
