"""Priced random plans of a question: what the planners' plans stand before in a report."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from planner.policy.composition import Composition
from planner.policy.network import initial_parameters
from planner.policy.rollout import parameters_of, run_episodes
from planner.policy.walks import Walker
from planner.problem import Problem


@dataclass(frozen=True, slots=True)
class RandomPlan:
    """A random plan that fits. depth: of its deepest template; gpus: held of each type."""

    iteration_ms: float
    depth: int
    gpus: tuple[tuple[str, int], ...]


def random_plans(problem: Problem, count: int, seed: int = 0) -> list[RandomPlan]:
    """Those of `count` random plans that fit, fastest first; the same for the same seed.

    Rollouts of the untrained network, which is all but indifferent, under the masks and the fill
    of every search; of each the fastest prefix.
    """
    composition = Composition(problem)
    if not composition.plannable or count < 1:
        return []
    network = parameters_of(initial_parameters(0), composition)
    episodes = run_episodes(composition, network, count, np.random.default_rng(seed))
    walker = Walker(composition)
    types = tuple(problem.cluster.gpus_by_type)
    found = []
    for row in np.flatnonzero(np.isfinite(episodes.best_ms)):
        times = episodes.rolls.times[row]
        prefix = int(np.where(times > 0, times, np.inf).argmin()) + 1
        templates = walker.templates(episodes.start(int(row), prefix))
        held: Counter[str] = Counter()
        for template in templates:
            for stage in template.stages:
                held[stage.gpu] += stage.tp * template.replicas
        found.append(
            RandomPlan(
                float(episodes.best_ms[row]),
                max(template.depth for template in templates),
                tuple((gpu, held[gpu]) for gpu in types if held[gpu]),
            )
        )
    return sorted(found, key=lambda plan: plan.iteration_ms)
