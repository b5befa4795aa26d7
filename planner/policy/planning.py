"""From a policy to a plan: rollouts, then local moves from the best of them.

The schedule is the same whatever the budget, and the budget only says where it ends: more
evaluations never give a worse plan. Deterministic for a seed and a ceiling on evaluations.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.compiling import ensure_compiled
from planner.kernel.engine import NO_CEILING
from planner.policy.composition import Composition
from planner.policy.kernel.scene import LEVEL_OF
from planner.policy.network import initial_parameters
from planner.policy.prefixes import begun_like
from planner.policy.rollout import Chooser, choices_of, parameters_of, run_episodes
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
    them again and again, then also from the best plans so far. temperatures: of the rollouts of a
    batch in turn.
    """

    rollouts: int = 128
    batch: int = 32
    rounds: tuple[Round, ...] = ()
    restarts: int = 1
    goes_on: bool = False
    temperatures: tuple[float, ...] = (1.0,)

    def __str__(self) -> str:
        walks = sum(one.starts for one in self.rounds)
        many = f"{walks} walks" if walks > 1 else "a walk"
        improved = f", the best improved by {many} of local moves" if walks else ""
        return f"{self.rollouts} sampled plans{improved}"


def default_schedule(gpus: int, *, goes_on: bool = False) -> Schedule:
    """The schedule of `arachne` on so many GPUs: chosen so that 128 take half a second on 2 cores.

    Eight times from new rollouts, for what one of them misses another may find: with the same moves
    this was better than walking on from one set of rollouts. Under 128 GPUs, where a turn takes
    little, sixteen times. Walks begin hot (2 % of the
    iteration): from 0.4 % they stayed where the policy had begun (both chosen on `selection` of
    benchmarks/held_out.py). Large clusters have more to find, so there they are longer.
    """
    scale = 1.0 if gpus < 256 else 1.5 if gpus < 512 else 2.0
    rounds = (
        Round(4, round(750 * scale), 0.02),
        Round(2, round(2000 * scale), 0.02),
        Round(1, round(3000 * scale), 0.01),
    )
    restarts = 16 if gpus < 128 else 8
    return Schedule(rollouts=32, batch=32, rounds=rounds, restarts=restarts, goes_on=goes_on)


PAIR = 2  # turns that may run side by side: none of them knows what the other finds
RATION = 2.0  # evaluations a move that a walk may take; without experts it takes about 1.4
# With experts an evaluation takes two or three times as long, and on large clusters more.
RATION_OF_EXPERTS, RATION_OF_EXPERTS_ON_MANY, MANY_GPUS = 1.0, 0.65, 512
SHARE_A_WALK = 0.1  # of what a budget in seconds leaves, the most that one walk may take
FIRST_RATE = 1e6  # evaluations a second and GPU of the cluster, before any is timed
KEPT = 4
MOST_KNOWN = 8  # of the best plans so far, that further turns may go on from
ALTERNATIVES_S = 1.0  # a budget that is nearly over does not pay for assembling more than one plan


class Planning:
    """One search for a plan, by the policy of given parameters.

    Turns of the schedule run in pairs, in two threads where there are two cores and no ceiling on
    evaluations; what they find is the same as one after the other.
    """

    def __init__(
        self, problem: Problem, planner: str, budget: Budget, seed: int, schedule: Schedule
    ) -> None:
        ensure_compiled(problem)
        began = time.perf_counter()
        self.problem = problem
        self.schedule = schedule
        self.seed = seed
        self.composition = Composition(problem)
        self.walker = Walker(self.composition)
        ready_s = time.perf_counter() - began
        if self.composition.plannable:
            _load_code(self.composition, self.walker)
        self.search = Search(problem, planner, budget, time.perf_counter() - ready_s)
        self.found: dict[tuple[Any, ...], Start] = {}
        self.threads = PAIR if budget.evaluations is None and _cores() >= PAIR else 1
        self.walkers = [self.walker]
        if self.threads > 1:
            self.walkers.append(Walker(self.composition.beside()))

    def run(self, parameters: Mapping[str, Array]) -> PlanResult:
        """Search, and answer with the best plan met."""
        if not self.composition.plannable:
            return self.search.result(reason="no GPU type has profiles", finished=True)
        restarts, turn, finished = self.schedule.restarts, 0, False
        while not self.search.spent and (turn < restarts or self.schedule.goes_on):
            pair = range(turn, turn + PAIR)
            if turn < restarts:
                pair = range(turn, min(turn + PAIR, restarts))
            known = self._best(MOST_KNOWN) if turn >= restarts else []
            finished = True
            for one in self._turns(parameters, pair, known):
                finished = self._take(one) and finished
            turn = pair.stop
        return self._answer(finished and not self.schedule.goes_on, turn)

    def _turns(
        self, parameters: Mapping[str, Array], pair: range, known: list[Start]
    ) -> Iterator[Turn]:
        """The turns of a pair, each as soon as those before it are done."""
        if self.threads == 1:
            for number in pair:
                if self.search.spent:
                    return
                turn = Turn(self, self.walker, number, known)
                turn.run(parameters)
                yield turn
            return
        turns = [
            Turn(self, walker, number, known)
            for walker, number in zip(self.walkers, pair, strict=False)
        ]
        with ThreadPoolExecutor(1) as pool:
            others = [pool.submit(turn.run, parameters) for turn in turns[1:]]
            try:
                turns[0].run(parameters)
            except BaseException:
                for turn in turns:  # such as Ctrl-C: the other thread ends at its next look
                    turn.ended = True
                raise
            for other in others:
                other.result()
        yield from turns

    def _take(self, turn: Turn) -> bool:
        """Take over what a turn found; whether it came to its end."""
        before = self.search.evaluations
        for evaluations, start in turn.met:
            self._offer(start, before + evaluations)
        self.search.count(turn.evaluations, ())
        return not turn.ended

    def _offer(self, start: Start, evaluations: int) -> None:
        """Keep a priced set; the curve knows when it is the best."""
        key = start.templates
        if key not in self.found:
            self.found[key] = start
            if len(self.found) > 64 * KEPT:
                self.found = {one.templates: one for one in self._best(16 * KEPT)}
        if start.iteration_ms < self.search.best_ms:
            self.search.best_ms = start.iteration_ms
            self.search.curve.append((evaluations, start.iteration_ms))

    def _best(self, count: int) -> list[Start]:
        return sorted(self.found.values(), key=lambda one: (one.iteration_ms, one.templates))[
            :count
        ]

    def _answer(self, finished: bool, turns: int) -> PlanResult:
        # Filling a plan again to read it out prices nothing new.
        evaluations = self.search.evaluations
        tallies = [walker.composition.engine.tally() for walker in self.walkers]
        seconds = self.search.budget.seconds
        late = seconds is not None and seconds - self.search.seconds < ALTERNATIVES_S
        for start in self._best(1 if late else KEPT):
            self.search.offer(start.iteration_ms, self.walker.templates(start))
        self.search.evaluations = evaluations
        for tally in tallies:
            self.search.rejected.update(tally.rejected)
            closest = self.search.closest
            if tally.closest is not None and (
                closest is None or tally.closest.over_bytes < closest.over_bytes
            ):
                self.search.closest = tally.closest
        times = f"{turns} searches of " if turns > 1 else ""
        reason = f"{times}{self.schedule}" + ("" if finished else ", until the budget ended")
        return self.search.result(reason=reason, finished=finished)


class Turn:
    """The whole schedule once, from new rollouts, on one walker.

    met: (evaluations of this turn so far, priced set), in their order. ended: by the budget.
    """

    def __init__(self, planning: Planning, walker: Walker, number: int, known: list[Start]) -> None:
        self.search, self.schedule = planning.search, planning.schedule
        self.walker, self.composition = walker, walker.composition
        self.engine = walker.composition.engine
        self.number, self.known = number, known
        self.draw = np.random.default_rng([planning.seed, number])
        self.first = self.engine.evaluations
        budget = self.search.budget.evaluations
        self.most = NO_CEILING
        if budget is not None:
            self.most = self.first + max(0, budget - self.search.evaluations)
        self.first_rate = FIRST_RATE / planning.problem.cluster.gpus
        self.ration = RATION
        if self.engine.tables.experts > 1:
            many = planning.problem.cluster.gpus >= MANY_GPUS
            self.ration = RATION_OF_EXPERTS_ON_MANY if many else RATION_OF_EXPERTS
        self.met: list[tuple[int, Start]] = []
        self.ended = False

    @property
    def evaluations(self) -> int:
        """Of this turn so far."""
        return self.engine.evaluations - self.first

    def run(self, parameters: Mapping[str, Array]) -> None:
        """Rollouts, then all rounds, unless the budget ends before."""
        starts = self._rollouts(parameters)
        for round_ in self.schedule.rounds:
            better: list[Start] = []
            if self.known:  # the best so far walk again, beside what is new
                starts = self.known[: max(1, round_.starts // 4)] + starts
            for start in distinct(starts)[: round_.starts]:
                seed = int(self.draw.integers(1 << 31))
                if self._spent():
                    return
                better.append(self._walk(start, round_, seed))
            starts = better + starts
            self.known = [min([*better, *self.known], key=_rank)] if self.known else []
        self._spent()

    def _rollouts(self, parameters: Mapping[str, Array]) -> list[Start]:
        network = parameters_of(parameters, self.composition)
        starts: list[Start] = []
        batch = self.schedule.batch
        for first in range(0, self.schedule.rollouts, batch):
            if self._spent():
                break
            episodes = run_episodes(
                self.composition,
                network,
                batch,
                self.draw,
                force=self._like(starts, batch) if first else None,
                temperatures=np.resize(self.schedule.temperatures, batch),
                spent=self._spent,
                most_evaluations=self._ceiling(),
            )
            for row in np.flatnonzero(np.isfinite(episodes.best_ms)):
                start = episodes.start(int(row), episodes.best_prefix(int(row)))
                starts.append(start)
                self.met.append((self.evaluations, start))
        return starts

    def _like(self, starts: list[Start], batch: int) -> Chooser | None:
        """Half of a further batch begins as the best so far do, each up to a stage by chance."""
        models = distinct(starts)[: max(1, batch // 4)]
        if not models:
            return None
        plans = [[list(kinds) for kinds, *_ in one.templates] for one in models]
        count = batch // 2
        chosen = [plans[i % len(plans)] for i in range(count)] + [[]] * (batch - count)
        stages = np.array([sum(len(kinds) for kinds in plan) for plan in chosen])
        return begun_like(
            choices_of(chosen, self.composition),
            self.draw.integers(0, np.maximum(stages, 1)),
            self.composition,
        )

    def _walk(self, start: Start, round_: Round, seed: int) -> Start:
        _, best = self.walker.walk(
            start,
            round_.moves,
            round_.hot,
            round_.cold,
            seed,
            ration=int(self.ration * round_.moves),
            most_evaluations=self._ceiling(),
        )
        if best.templates:
            self.met.append((self.evaluations, best))
        return min(best, start, key=_rank)

    def _ceiling(self) -> int:
        """Where the engine's count must stop: by the budget, and by seconds at the rate so far."""
        seconds = self.search.budget.seconds
        if seconds is None:
            return self.most
        done = self.engine.evaluations
        left = max(0.0, seconds - self.search.seconds)
        rate = done / max(self.search.seconds, 1e-3) if done else self.first_rate
        return min(self.most, done + max(1, int(SHARE_A_WALK * left * rate)))

    def _spent(self) -> bool:
        if self.search.spent or self.engine.evaluations >= self.most:
            self.ended = True
        return self.ended


def _rank(start: Start) -> tuple[float, Any]:
    return start.iteration_ms, start.templates


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
