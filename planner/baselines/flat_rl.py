"""Flat reinforcement learning: one policy over all six raw knobs, without masks, fill or moves.

Reconstruction of what the paper compares with (DESIGN section 10): the network, state and training
of `arachne` by the recipe `paper`, but each template is a depth, per stage a GPU type, a TP degree
and a number of blocks, a DP degree and a micro-batch size, all drawn from the policy. What is
drawn may be no plan; that share is part of the answer's reason. Ours: the policy sees what the
masks of `arachne` are made of, as features; GPUs are packed by stage; experts are sharded by the
TP degree alone. It plans by sampling and keeps the best prefix of a sample.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from planner.compiling import ensure_compiled
from planner.kernel.engine import NO_CEILING
from planner.policy.composition import Composition
from planner.policy.flat.rollout import run_flat_episodes
from planner.policy.kernel.rolls import COUNT, TRIED
from planner.policy.network import Conditioned
from planner.policy.rollout import parameters_of
from planner.policy.weights import FLAT_KIND, shipped_weights
from planner.problem import Problem
from planner.result import Budget, PlanResult
from planner.search import Search

ROLLOUTS = 1024  # eight times those of `arachne`, for there are no moves after them
BATCH = 32
UNPROFILED = "no profile of the degree chosen"


def plan(problem: Problem, budget: Budget, seed: int) -> PlanResult:
    """The best of 1,024 samples within the budget; the same for the same seed and ceiling."""
    return sample(problem, budget, seed, shipped_weights(FLAT_KIND).parameters, ROLLOUTS)


def sample(
    problem: Problem,
    budget: Budget,
    seed: int,
    parameters: Mapping[str, Any],
    rollouts: int | None,
) -> PlanResult:
    """The best prefix of so many samples of a flat policy; None: as many as the budget allows."""
    ensure_compiled(problem)
    began = time.perf_counter()
    composition = Composition(problem)
    engine, network = composition.engine, parameters_of(parameters, composition)
    ready_s = time.perf_counter() - began
    if composition.plannable:
        _load_code(composition, network)
    search = Search(problem, "flat-rl", budget, time.perf_counter() - ready_s)
    if not composition.plannable:
        return search.result(reason="no GPU type has profiles", finished=True)
    draw = np.random.default_rng(seed)
    done = tried = valid = unprofiled = 0

    def spent() -> bool:
        tally = engine.tally()
        rejected = {UNPROFILED: unprofiled} if unprofiled else {}
        search.absorb(tally.evaluations, tally.rejected | rejected, tally.closest)
        return search.spent

    most = NO_CEILING if budget.evaluations is None else budget.evaluations
    while not spent() and (rollouts is None or done < rollouts):
        episodes = run_flat_episodes(
            composition, network, BATCH, draw, spent=spent, most_evaluations=most
        )
        done += BATCH
        whole = episodes.rolls.whole
        tried, valid = tried + int(whole[:, TRIED].sum()), valid + int(whole[:, COUNT].sum())
        unprofiled += episodes.unprofiled
        spent()
        for row in np.argsort(episodes.best_ms, kind="stable"):
            best = float(episodes.best_ms[row])
            if not np.isfinite(best):
                break
            times = np.where(episodes.rolls.times[row] > 0, episodes.rolls.times[row], np.inf)
            count = int(times.argmin()) + 1
            search.offer(best, composition.laid(episodes.rolls, int(row), count))
    share = 1 - valid / max(tried, 1)
    return search.result(
        reason=f"{done:,} samples; {share:.0%} of their {tried:,} templates were invalid",
        finished=not search.spent,
    )


def _load_code(composition: Composition, network: Conditioned) -> None:
    """Have all compiled code loaded, or compiled, before the clock of the search runs."""
    run_flat_episodes(composition, network, 4, np.random.default_rng(0))
    composition.forget()
