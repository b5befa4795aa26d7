"""Everything within a stated space: proven best on small clusters, as far as it goes on large ones.

Own design: no paper. The space is sequences of up to three templates, each filled behind those
before it, with any order of stages, any number of replicas, both placements, any micro-batch size.

Small clusters (no more sequences of stages than SMALL): the whole space is exhausted. Branches are
cut where `planner.kernel.explore.best_further` proves that no plan behind them is faster than the
best one known, which a short local search provides first. What is said to be proven is.

Larger ones, by shares of an effort: all multisets of (GPU type, TP) as a single template, by
growing depth, stages of a type together; a second and a third template behind the best of them,
also with replicas given up; then local moves, best first. Only the certificate is proof there.
The effort is a number of evaluations that follows from the budget alone, so that the answer does
not depend on how busy the host is unless the budget's seconds run out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.bound import closed_bound
from planner.enumeration import (
    Kinds,
    all_sequences,
    ordered_multisets,
    packing_kinds,
)
from planner.floors import Floors
from planner.kernel.engine import MOST_STAGES, NO_CEILING, Engine
from planner.local_moves import FEWER, Genotype, LocalMoves
from planner.packing import FreeGpus
from planner.problem import Problem
from planner.result import Budget, PlanResult
from planner.search import Search

MOST_TEMPLATES = 3
SMALL = 60_000  # sequences of stages
EFFORT_PER_S = 40_000  # evaluations for each second of the budget; a core does several times that
DEFAULT_EFFORT = 1_200_000
SINGLES, FURTHER = 0.3, 0.5  # shares of the effort that are used up when these phases end
BEAM = 48  # plans that get a further template
CLIMBED = 12  # plans of several templates that are climbed from
CHUNK = 512  # structures filled between two looks at the clock, at most
LOOK_S = 0.3
FIRST_EFFORT = 20_000  # evaluations of local search before a small cluster is exhausted


def plan(problem: Problem, budget: Budget, seed: int) -> PlanResult:
    """The best plan of the space that the budget reaches.

    The reason says what was covered. seed: not used, nothing is drawn.
    """
    engine = Engine(problem, templates=MOST_TEMPLATES, stages=MOST_STAGES)
    engine.compile()
    return _Exhaustion(problem, budget, engine).run()


class _Exhaustion:
    """One search."""

    def __init__(self, problem: Problem, budget: Budget, engine: Engine) -> None:
        self.problem = problem
        self.engine = engine
        self.search = Search(problem, "exhaustive", budget)
        self.free = FreeGpus.of(problem)
        self.usable = packing_kinds(self.free, engine.kinds)
        self.effort = budget.evaluations or (
            int(budget.seconds * EFFORT_PER_S) if budget.seconds else DEFAULT_EFFORT
        )
        self.singles: dict[Kinds, float] = {}
        self.further: list[tuple[float, Genotype]] = []  # the best of several templates

    def run(self) -> PlanResult:
        """Exhaust the space if it is small, else search it."""
        most = min(self.engine.depth, self.problem.model.blocks)
        sequences = all_sequences(self.free, self.engine.kinds, most, SMALL)
        if sequences is None:
            return self.run_large(most)
        self.improve(FIRST_EFFORT, [(((q,), 0),) for q in self.usable])
        return self.run_small(sequences)

    # Small clusters

    def run_small(self, sequences: Sequence[Kinds]) -> PlanResult:
        """Exhaust all templates and those behind them; what was proven stands in the reason."""
        if not sequences:
            self.account()
            return self.search.result(reason="no template packs on this cluster", finished=True)
        structures, depths = _rows(sequences)
        incumbent = self.engine.incumbent(self.search.best_ms)
        worth = gpu_worth(self.problem)
        done, chunk = 0, 1
        while done < len(sequences):
            began = self.search.seconds
            last = min(done + chunk, len(sequences))
            finished = self.engine.explore(
                structures,
                depths,
                worth,
                incumbent,
                templates=self.engine.templates,
                first=done,
                last=last,
                most_evaluations=self.search.budget.evaluations or NO_CEILING,
            )
            self.account()
            if incumbent.best_ms[0] < self.search.best_ms:
                count = int(incumbent.count[0])
                templates = self.engine.templates_laid(count, incumbent.laid)
                self.search.offer(float(incumbent.best_ms[0]), templates)
            if not finished:
                break
            done = last
            if self.search.spent:
                break
            took = self.search.seconds - began
            chunk = max(1, chunk // 2) if took > LOOK_S else min(2 * chunk, CHUNK)
        space = (
            f"plans of up to {self.engine.templates} templates: every order of stages, number of "
            "replicas, placement and micro-batch"
        )
        if done == len(sequences):
            return self.search.result(
                reason=f"the best of all {space}, proven by exhaustion", finished=True
            )
        return self.search.result(
            reason=f"{done / len(sequences):.1%} of all first templates exhausted, of {space}",
            finished=False,
        )

    # Large clusters

    def run_large(self, most_stages: int) -> PlanResult:
        """Single templates, further ones behind the best, local moves."""
        depth, whole = self.fill_singles(most_stages)
        ranked = sorted(self.singles, key=lambda kinds: self.singles[kinds])
        self.add_further(ranked[:BEAM])
        improved = self.improve(self.effort, self.starts(ranked))
        part = "" if whole else f", part of depth {depth}"
        reason = (
            f"all multisets of (GPU type, TP) to depth {depth if whole else depth - 1}{part} as "
            f"single templates; up to {MOST_TEMPLATES} templates from the best "
            f"{min(BEAM, len(ranked))}; local moves{', until none helps' if improved else ''}"
        )
        return self.search.result(reason=reason, finished=not self.search.spent)

    def fill_singles(self, most_stages: int) -> tuple[int, bool]:
        """Fill single templates by growing depth; the depth reached, and whether to its end."""
        depth = 0
        for depth in range(1, most_stages + 1):
            batch: list[Kinds] = []
            any_packs = False
            for orders in ordered_multisets(self.free, self.engine.kinds, depth):
                any_packs = True
                batch += orders
                if len(batch) >= CHUNK:
                    self.fill_batch(batch)
                    batch = []
                    if self.used_up(SINGLES):
                        return depth, False
            if batch:
                self.fill_batch(batch)
            if not any_packs:
                return depth - 1, True
        return depth, True

    def fill_batch(self, batch: Sequence[Kinds]) -> None:
        """Fill structures as the first template."""
        structures, depths = _rows(batch)
        fewer = np.zeros(len(batch), np.int64)
        done, times = self.engine.fill_many(
            0, structures, depths, fewer, most_evaluations=self.effort
        )
        self.account()
        for i in np.flatnonzero(times[:done] >= 0):
            self.singles[batch[int(i)]] = float(times[i])
        best = np.where(times[:done] >= 0, times[:done], np.inf)
        if len(best) and best.min() < self.search.best_ms:
            fastest = int(best.argmin())
            self.engine.prepare(0)
            self.engine.fill_kinds(0, batch[fastest])
            self.search.offer(float(best[fastest]), self.engine.templates_laid(1))

    def add_further(self, beam: Sequence[Kinds]) -> None:
        """Fill a second and a third template behind the best, with replicas given up or not."""
        candidates = [kinds for kinds in self.singles if len(kinds) <= 4]
        candidates += sorted(self.singles, key=self.singles.__getitem__)[:256]
        candidates = list(dict.fromkeys(candidates))
        if not candidates:
            return
        structures, depths = _rows(candidates)
        zeros = np.zeros(len(candidates), np.int64)
        level: list[tuple[float, Genotype]] = [
            (self.singles[kinds], ((kinds, fewer),)) for kinds in beam for fewer in FEWER
        ]
        for k in range(1, MOST_TEMPLATES):
            found: list[tuple[float, Genotype]] = []
            for _, genotype in level:
                if self.used_up(FURTHER):
                    break
                if not self.lay(genotype):
                    continue
                done, times = self.engine.fill_many(
                    k, structures, depths, zeros, most_evaluations=self.effort
                )
                self.account()
                times = np.where(times[:done] >= 0, times[:done], np.inf)
                for i in np.argsort(times, kind="stable")[:4]:
                    if np.isfinite(times[i]):
                        found.append((float(times[i]), (*genotype, (candidates[i], 0))))
            for took, genotype in sorted(found)[:4]:
                if took < self.search.best_ms and self.lay(genotype):
                    self.search.offer(took, self.engine.templates_laid(len(genotype)))
            level = sorted(found)[:BEAM]
            self.further += level[:8]

    def used_up(self, share: float) -> bool:
        """Whether this share of the effort, or of the seconds, is used up."""
        seconds = self.search.budget.seconds
        return self.engine.evaluations >= share * self.effort or (
            seconds is not None and self.search.seconds >= share * seconds
        )

    def lay(self, genotype: Genotype) -> bool:
        """Fill the templates of a plan, ready for one behind them; False where one does not fit."""
        for k, (kinds, fewer) in enumerate(genotype):
            self.engine.prepare(k)
            if self.engine.fill_kinds(k, kinds, fewer) < 0:
                return False
        return True

    # Both

    def improve(self, ceiling: int, starts: Sequence[Genotype]) -> bool:
        """Climb from each of these plans, then go on best first; True when no move helps."""

        def offer(took: float, genotype: Genotype) -> None:
            if took < self.search.best_ms:
                self.account()
            self.search.offer(took, self.engine.templates_laid(len(genotype)))

        def spent() -> bool:
            return self.engine.evaluations >= ceiling or self.search.spent

        moves = LocalMoves(self.engine, self.usable, offer, spent, MOST_TEMPLATES)
        whole = all(moves.climb(start) for start in starts) and moves.run()
        self.account()
        return whole

    def starts(self, ranked: Sequence[Kinds]) -> list[Genotype]:
        """Plans to improve: the best of several templates, the best single ones of each depth."""
        by_depth: dict[int, list[Kinds]] = {}
        for kinds in ranked:
            by_depth.setdefault(len(kinds), []).append(kinds)
        found = [(self.singles[k], ((k, 0),)) for same in by_depth.values() for k in same[:1]]
        return [genotype for _, genotype in sorted(found + sorted(self.further)[:CLIMBED])]

    def account(self) -> None:
        """Bring evaluations and rejections of the engine to the search."""
        tally = self.engine.tally()
        self.search.absorb(tally.evaluations, tally.rejected, tally.closest)


def _rows(sequences: Sequence[Kinds]) -> tuple[np.ndarray, np.ndarray]:
    """Structures as one array, and their depths."""
    depths = np.array([len(sequence) for sequence in sequences], np.int64)
    rows = np.zeros((len(sequences), int(depths.max())), np.int64)
    for i, sequence in enumerate(sequences):
        rows[i, : len(sequence)] = sequence
    return rows, depths


def gpu_worth(problem: Problem) -> np.ndarray:
    """Per node of the cluster, what one of its GPUs trains at most, in samples/ms.

    pi_c / Y of planner/bound.py: at the prices of its linear program any replica spends at least
    Y per sample. A class of nodes without profiles trains nothing.
    """
    floors = Floors.of(problem)
    bound = closed_bound(problem, floors)
    if not 0 < bound.work_ms < np.inf:
        # Nothing fits anywhere, or the linear program says nothing: cut nothing.
        return np.full(len(problem.cluster.nodes), np.inf)
    per_sample = bound.work_ms / problem.workload.global_batch
    prices: dict[tuple[object, ...], float] = {}
    for kind, price in zip(floors.classes, bound.prices, strict=True):
        key = (kind.gpu, kind.topology, kind.size)
        prices[key] = max(prices.get(key, 0.0), price)
    return np.array(
        [
            prices.get((node.gpu, node.intra_node, node.gpus), 0.0) / per_sample
            for node in problem.cluster.nodes
        ]
    )
