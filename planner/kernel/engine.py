"""The face of the compiled kernel: structures in, times out; filled templates when asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.compiling import ensure_compiled
from planner.filled import FilledTemplate
from planner.kernel.explore import explore
from planner.kernel.fill import fill, fill_many, prepare, price_laid
from planner.kernel.state import (
    EVALUATIONS,
    FIRST,
    FREE,
    MEMORY,
    NO_LINK,
    NO_PACKING,
    NO_ROWS,
    NO_TURN,
    TOO_FEW_BLOCKS,
    TOO_FEW_SAMPLES,
    Laid,
    new_laid,
    new_room,
)
from planner.kernel.tables import Compiled, compile_problem
from planner.packing import Demand
from planner.problem import Problem
from planner.refusal import NO_PACKING as NO_PACKING_WORDS
from planner.refusal import NO_TURN as NO_TURN_WORDS
from planner.refusal import TOO_FEW_BLOCKS as TOO_FEW_BLOCKS_WORDS
from planner.refusal import TOO_FEW_SAMPLES as TOO_FEW_SAMPLES_WORDS
from planner.refusal import Refusal
from specs.layer import LayerKind
from specs.plan import Stage

Array = Any

MOST_TEMPLATES = 8
MOST_STAGES = 32
NO_CEILING = 1 << 60

_WORDS = {
    NO_LINK: "no link profile between two stages or for gradient synchronisation",
    NO_PACKING: NO_PACKING_WORDS,
    TOO_FEW_SAMPLES: TOO_FEW_SAMPLES_WORDS,
    TOO_FEW_BLOCKS: TOO_FEW_BLOCKS_WORDS,
    NO_TURN: NO_TURN_WORDS,
}


@dataclass(frozen=True)
class Tally:
    """What fills have counted: evaluations, refusals by reason, and the closest memory misses."""

    evaluations: int
    rejected: dict[str, int]
    closest: Refusal | None


@dataclass(frozen=True)
class Incumbent:
    """The best plan that an exploration knows: its time in ms, its templates, how many.

    level, nodes: scratch of the exploration.
    """

    best_ms: Array
    laid: Laid
    count: Array
    level: Array
    nodes: Array


class Engine:
    """Fills and prices for one problem. Not for several threads at once.

    A structure is a row of kind indices (see `kinds`); earlier templates are laid in slots
    0..k-1 of `laid`, and fills go to slot k.
    """

    def __init__(
        self, problem: Problem, *, templates: int = MOST_TEMPLATES, stages: int = MOST_STAGES
    ) -> None:
        self.problem = problem
        self.compiled: Compiled = compile_problem(problem)
        ensure_compiled(problem)
        self.tables = self.compiled.tables
        self.depth = max(1, min(stages, problem.model.blocks, problem.cluster.gpus))
        self.templates = max(1, min(templates, problem.cluster.gpus))
        self.laid = new_laid(self.tables, self.templates, self.depth)
        self.room = new_room(self.tables, self.templates, self.depth)
        self._rows: dict[tuple[int, ...], Array] = {}
        self._index = {kind: q for q, kind in enumerate(self.compiled.kinds)}

    def compile(self) -> None:
        """Make machine code of everything now, or load it, so that no search is timed with it."""
        self.compile_fill()
        self.compile_explore()

    def compile_fill(self) -> None:
        """Of fills and prices."""
        none, width = np.zeros((0, self.depth), np.int64), np.zeros(0, np.int64)
        if len(self.kinds):
            self.prepare(0)
            self.fill_kinds(0, (0,))
        self.fill_many(0, none, width, width)
        self.price(())
        self._forget()

    def compile_explore(self) -> None:
        """Of the exhaustive search."""
        none, width = np.zeros((0, self.depth), np.int64), np.zeros(0, np.int64)
        worth = np.zeros(len(self.tables.node_int[0]))
        self.explore(none, width, worth, self.incumbent(), templates=1, first=0, last=0)
        self._forget()

    def _forget(self) -> None:
        """Count from the start again."""
        self.room.why[EVALUATIONS] = 0
        self.room.tally[:] = 0
        self.room.closest[:] = np.inf
        self.room.no_rows[:] = 0

    @property
    def kinds(self) -> tuple[Demand, ...]:
        """The (GPU type, TP degree) of every kind index."""
        return self.compiled.kinds

    def row(self, structure: Sequence[Demand]) -> Array:
        """A structural template as kind indices."""
        return np.array([self._index[demand] for demand in structure], np.int64)

    def lay(self, templates: Sequence[FilledTemplate]) -> None:
        """Put filled templates into the first slots."""
        for k, template in enumerate(templates):
            self._lay(k, template)
        prepare(self.tables, self.laid, len(templates), self.room)

    def _lay(self, k: int, template: FilledTemplate) -> None:
        laid: Laid = self.laid
        batch = list(self.tables.size).index(template.micro_batch)
        laid.shape[:, k] = template.depth, template.replicas, batch
        first = 0
        for s, stage in enumerate(template.stages):
            tiling = self.compiled.tilings.index((stage.ep, stage.etp))
            laid.stage[:, k, s] = self._index[Demand(stage.gpu, stage.tp)], first, tiling
            first = min(stage.layers.stop - 1, self.problem.model.blocks)
        laid.stage[FIRST, k, template.depth] = first
        flat = [node for row in template.nodes for node in row]
        laid.node[k, : len(flat)] = flat

    def price(self, templates: Sequence[FilledTemplate]) -> float:
        """Iteration time of filled templates in ms, -1 where they are no plan that fits."""
        self.lay(templates)
        return float(price_laid(self.tables, self.laid, len(templates), self.room))

    def fill(self, k: int, structure: Array, fewer: int = 0) -> float:
        """Fill slot k behind the templates in the slots before it.

        The iteration of the whole plan in ms, -1 where nothing fits. `prepare` or `lay` must have
        been called since the earlier slots changed.
        """
        return float(fill(self.tables, self.laid, k, structure, len(structure), fewer, self.room))

    def fill_kinds(self, k: int, kinds: tuple[int, ...], fewer: int = 0) -> float:
        """`fill` of a structure given as kind indices; its row is kept for the next time."""
        row = self._rows.get(kinds)
        if row is None:
            row = self._rows[kinds] = np.array(kinds, np.int64)
        return self.fill(k, row, fewer)

    def prepare(self, k: int) -> None:
        """Count what the first k templates leave free."""
        prepare(self.tables, self.laid, k, self.room)

    def fill_many(
        self,
        k: int,
        structures: Array,
        depths: Array,
        fewer: Array,
        *,
        first: int = 0,
        most_evaluations: int = NO_CEILING,
    ) -> tuple[int, Array]:
        """Fill many structures, each as template k; times in ms from `first` on, and how far.

        structures: (n, D) kind indices. Ends early once `evaluations` reaches the ceiling.
        """
        times = np.full(len(structures), -1.0)
        done = fill_many(
            self.tables,
            self.laid,
            k,
            structures,
            depths,
            fewer,
            first,
            len(structures),
            most_evaluations,
            self.room,
            times,
        )
        return int(done), times

    def explore(
        self,
        structures: Array,
        depths: Array,
        worth: Array,
        incumbent: Incumbent,
        *,
        templates: int,
        first: int,
        last: int,
        most_evaluations: int = NO_CEILING,
    ) -> bool:
        """Exhaust plans of up to `templates` templates whose first is of structures first..last.

        The incumbent is replaced by what is better. worth: see planner/kernel/explore.py. False
        where the ceiling on evaluations ended it.
        """
        return bool(
            explore(
                self.tables,
                self.laid,
                templates,
                structures,
                depths,
                first,
                last,
                worth,
                most_evaluations,
                self.room,
                incumbent.best_ms,
                incumbent.laid,
                incumbent.count,
                incumbent.level,
                incumbent.nodes,
            )
        )

    def incumbent(self, best_ms: float = np.inf) -> Incumbent:
        """A place for the best plan of an exploration, so far one of this iteration time."""
        return Incumbent(
            np.array([best_ms]),
            new_laid(self.tables, self.templates, self.depth),
            np.zeros(1, np.int64),
            np.zeros((4, self.templates), np.int64),
            np.zeros((self.templates, self.laid.node.shape[1]), np.int64),
        )

    @property
    def evaluations(self) -> int:
        """Plans priced or refused since the engine was made."""
        return int(self.room.why[EVALUATIONS])

    @property
    def free_gpus(self) -> Array:
        """GPUs that the templates of the last `prepare` leave free, per node."""
        return self.room.node_int[FREE]

    def template(self, k: int, laid: Laid | None = None) -> FilledTemplate:
        """The filled template in slot k, of this engine's arrangement or another."""
        laid, model = laid or self.laid, self.problem.model
        depth, replicas, batch = (int(figure) for figure in laid.shape[:, k])
        stages = []
        for s in range(depth):
            q, low, x = (int(figure) for figure in laid.stage[:, k, s])
            high = int(laid.stage[FIRST, k, s + 1])
            layers = range(low + 1 if s else 0, high + 1 if s < depth - 1 else high + 2)
            moe = any(model.layers[i].kind is LayerKind.MOE_BLOCK for i in layers)
            kind, tiling = self.kinds[q], self.compiled.tilings[x] if moe else (1, 1)
            stages.append(Stage(kind.gpu, kind.tp, layers, *tiling))
        nodes = laid.node[k, : replicas * depth].reshape(replicas, depth)
        return FilledTemplate(
            int(self.tables.size[batch]),
            tuple(stages),
            tuple(tuple(int(node) for node in row) for row in nodes),
        )

    def templates_laid(self, count: int, laid: Laid | None = None) -> list[FilledTemplate]:
        """The filled templates in the first slots."""
        return [self.template(k, laid) for k in range(count)]

    def tally(self) -> Tally:
        """Evaluations and refusals since the engine was made."""
        counts = self.room.tally
        rejected: dict[str, int] = {}
        for code, words in _WORDS.items():
            if counts[code]:
                rejected[words] = int(counts[code])
        for q, b in zip(*np.nonzero(self.room.no_rows), strict=True):
            kind, size = self.compiled.kinds[q], int(self.tables.size[b])
            words = f"no profile of {kind.gpu} at tp={kind.tp} micro_batch={size}"
            rejected[words] = int(self.room.no_rows[q, b])
        closest: Refusal | None = None
        for s in range(self.depth):
            if counts[MEMORY + s]:
                refusal = Refusal.memory(s, float(self.room.closest[MEMORY + s]))
                rejected[refusal.reason] = int(counts[MEMORY + s])
                if closest is None or refusal.over_bytes < closest.over_bytes:
                    closest = refusal
        ranked = dict(sorted(rejected.items(), key=lambda item: -item[1]))
        assert counts[NO_ROWS] == int(self.room.no_rows.sum())
        return Tally(self.evaluations, ranked, closest)
