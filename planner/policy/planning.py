"""From a policy to a plan: rollouts, then local moves from the best of them.

The schedule is the same whatever the budget, and the budget only says where it ends: more
evaluations never give a worse plan. Deterministic for a seed and a ceiling on evaluations.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.kernel.engine import NO_CEILING
from planner.policy.composition import Composition
from planner.policy.kernel.rolls import TRIED
from planner.policy.kernel.scene import LEVEL_OF
from planner.policy.network import initial_parameters
from planner.policy.rollout import parameters_of, run_episodes
from planner.policy.start import Start
from planner.policy.walks import Walker
from planner.problem import Problem
from planner.result import Budget, PlanResult
from planner.search import Search

Array = Any


@dataclass(frozen=True)
class Round:
    """Walks from the best distinct starts: how many, moves each, temperatures as shares."""

    starts: int
    moves: int
    hot: float
    cold: float = 0.0005


@dataclass(frozen=True)
class Schedule:
    """Rollouts, rounds of walks after them, how often, and whether to go on to the budget's end.

    restarts: times that the whole is done, each without what was found before. goes_on: after
    them again and again, then also from the best plans so far.
    """

    rollouts: int = 128
    batch: int = 32
    rounds: tuple[Round, ...] = ()
    restarts: int = 1
    goes_on: bool = False

    def __str__(self) -> str:
        return f"{self.rollouts} rollouts" + "".join(f", {r.starts} walks" for r in self.rounds)


def default_schedule(gpus: int, *, goes_on: bool = False) -> Schedule:
    """The schedule of `arachne` on so many GPUs: chosen so that 128 take half a second.

    Four times from new rollouts, for what one of them misses another may find: with the same moves
    this was better than walking on from one set of rollouts. Walks begin hot (2 % of the
    iteration): from 0.4 % they stayed where the policy had begun (both chosen on `selection` of
    benchmarks/held_out.py). Large clusters have more to find, so there they are longer.
    """
    scale = 1.0 if gpus < 256 else 1.5 if gpus < 512 else 2.0
    rounds = (
        Round(4, round(750 * scale), 0.02),
        Round(2, round(2000 * scale), 0.02),
        Round(1, round(3000 * scale), 0.01),
    )
    return Schedule(rollouts=32, batch=32, rounds=rounds, restarts=4, goes_on=goes_on)


USUAL_PRICES = 3.5  # evaluations a template of a rollout without experts, at most about
LEAST_MOVES = 50
SHARE_A_WALK = 0.1  # of what a budget in seconds leaves, the most that one walk may take
FIRST_RATE = 1e6  # evaluations a second and GPU of the cluster, before any is timed
KEPT = 4
ALTERNATIVES_S = 1.0  # a budget that is nearly over does not pay for assembling more than one plan


class Planning:
    """One search for a plan, by the policy of given parameters."""

    def __init__(
        self, problem: Problem, planner: str, budget: Budget, seed: int, schedule: Schedule
    ) -> None:
        began = time.perf_counter()
        self.problem = problem
        self.schedule = schedule
        self.seed = seed
        self.composition = Composition(problem)
        self.engine = self.composition.engine
        self.walker = Walker(self.composition)
        ready_s = time.perf_counter() - began
        if self.composition.plannable:
            _load_code(self.composition, self.walker)
        self.search = Search(problem, planner, budget, time.perf_counter() - ready_s)
        self.found: dict[tuple[Any, ...], Start] = {}
        self.pace: float | None = None  # of what a schedule's moves are scaled by

    def run(self, parameters: Mapping[str, Array]) -> PlanResult:
        """Search, and answer with the best plan met."""
        if not self.composition.plannable:
            return self.search.result(reason="no GPU type has profiles", finished=True)
        turn = 0
        finished = False
        while not self.search.spent:
            finished = self._turn(parameters, turn)
            turn += 1
            if turn >= self.schedule.restarts and not self.schedule.goes_on:
                break
        return self._answer(finished and not self.schedule.goes_on, turn)

    def _turn(self, parameters: Mapping[str, Array], turn: int) -> bool:
        """The whole schedule once; whether it came to its end."""
        draw = np.random.default_rng([self.seed, turn])
        starts = self._rollouts(parameters, draw)
        for round_ in self.schedule.rounds:
            better: list[Start] = []
            if turn >= self.schedule.restarts:  # the best so far walk again, beside what is new
                starts = self._best(max(1, round_.starts // 4)) + starts
            for start in distinct(starts)[: round_.starts]:
                seed = int(draw.integers(1 << 31))
                if self.search.spent:
                    return False
                better.append(self._walk(start, round_, seed))
            starts = better + starts
        return not self.search.spent

    def _rollouts(self, parameters: Mapping[str, Array], draw: np.random.Generator) -> list[Start]:
        network = parameters_of(parameters, self.composition)
        starts: list[Start] = []
        before, templates = self.search.evaluations, 0
        for _ in range(0, self.schedule.rollouts, self.schedule.batch):
            if self.search.spent:
                break
            episodes = run_episodes(
                self.composition,
                network,
                self.schedule.batch,
                draw,
                spent=self._spent,
                most_evaluations=self._ceiling(),
            )
            rolls, times = episodes.rolls, episodes.best_ms
            templates += int(rolls.whole[:, TRIED].sum())
            for row in np.flatnonzero(np.isfinite(times)):
                prefix = np.where(rolls.times[row] > 0, rolls.times[row], np.inf)
                count = int(prefix.argmin()) + 1
                starts.append(episodes.start(int(row), count))
            self._count()
            for start in starts[-self.schedule.batch :]:
                self._offer(start)
        priced = self.search.evaluations - before
        if self.pace is None and templates:
            # With experts a template is priced in many tilings: fewer moves take as long.
            self.pace = min(1.0, USUAL_PRICES * templates / max(priced, 1))
        return starts

    def _walk(self, start: Start, round_: Round, seed: int) -> Start:
        moves = max(min(LEAST_MOVES, round_.moves), round(round_.moves * (self.pace or 1.0)))
        _, best = self.walker.walk(
            start, moves, round_.hot, round_.cold, seed, most_evaluations=self._ceiling()
        )
        self._count()
        if best.templates:
            self._offer(best)
        return min(best, start, key=lambda one: one.iteration_ms)

    def _ceiling(self) -> int:
        """Where the engine's count must stop: by the budget, and by seconds at the rate so far."""
        budget, done = self.search.budget, self.engine.evaluations
        ceiling = NO_CEILING if budget.evaluations is None else budget.evaluations
        if budget.seconds is not None:
            left = max(0.0, budget.seconds - self.search.seconds)
            if done:
                rate = done / max(self.search.seconds, 1e-3)
            else:
                rate = FIRST_RATE / self.problem.cluster.gpus
            ceiling = min(ceiling, done + max(1, int(SHARE_A_WALK * left * rate)))
        return ceiling

    def _spent(self) -> bool:
        self._count()
        return self.search.spent

    def _count(self) -> None:
        self.search.count(self.engine.evaluations - self.search.evaluations, ())

    def _offer(self, start: Start) -> None:
        """Keep a priced set; the curve knows when it is the best."""
        key = start.templates
        if key not in self.found:
            self.found[key] = start
            if len(self.found) > 64 * KEPT:
                self.found = {one.templates: one for one in self._best(16 * KEPT)}
        if start.iteration_ms < self.search.best_ms:
            self.search.best_ms = start.iteration_ms
            self.search.curve.append((self.search.evaluations, start.iteration_ms))

    def _best(self, count: int) -> list[Start]:
        return sorted(self.found.values(), key=lambda one: (one.iteration_ms, one.templates))[
            :count
        ]

    def _answer(self, finished: bool, turns: int) -> PlanResult:
        # Filling a plan again to read it out prices nothing new.
        evaluations, tally = self.engine.evaluations, self.engine.tally()
        seconds = self.search.budget.seconds
        late = seconds is not None and seconds - self.search.seconds < ALTERNATIVES_S
        for start in self._best(1 if late else KEPT):
            self.search.offer(start.iteration_ms, self.walker.templates(start))
        self.search.evaluations = evaluations
        self.search.rejected.update(tally.rejected)
        self.search.closest = tally.closest
        times = f"{turns} times " if turns > 1 else ""
        reason = f"{times}{self.schedule}" + ("" if finished else ", until the budget ended")
        return self.search.result(reason=reason, finished=finished)


def _load_code(composition: Composition, walker: Walker) -> None:
    """Have all compiled code loaded, or compiled, before the clock of the search runs."""
    network = parameters_of(initial_parameters(0), composition)
    run_episodes(composition, network, 1, np.random.default_rng(0), most_evaluations=0)
    kind = int(np.flatnonzero(composition.scene.kind_int[LEVEL_OF] >= 0)[0])
    walker.walk(walker.start([[kind]], [0]), 1, 0.01, 0.01, 0, most_evaluations=0)
    composition.forget()


def distinct(starts: Sequence[Start]) -> list[Start]:
    """The best of every (first depth, multiset of the first template's kinds), best first."""
    seen = set()
    found = []
    for start in sorted(starts, key=lambda one: (one.iteration_ms, one.templates)):
        kinds = tuple(sorted(start.templates[0][0]))
        if kinds not in seen:
            seen.add(kinds)
            found.append(start)
    return found
