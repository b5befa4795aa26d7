"""Local moves on one composition, from Python: start a walk, go on, read the best plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from planner.filled import FilledTemplate
from planner.kernel.engine import NO_CEILING
from planner.kernel.state import new_laid
from planner.policy.composition import Composition
from planner.policy.kernel.lean import WHOLE
from planner.policy.kernel.moves import BEST, NOW, Sets, lay, new_sets, walk
from planner.policy.kernel.scene import LEVEL_OF, TYPE_OF
from planner.policy.start import Start

Array = Any


class Walker:
    """Walks of simulated annealing; a start is a set of structures, as kind indices."""

    def __init__(self, composition: Composition) -> None:
        self.composition = composition
        engine, scene = composition.engine, composition.scene
        self._kept = new_laid(engine.tables, engine.templates, engine.depth)
        self._sets: Sets = new_sets(scene.templates, scene.depth)
        self._usable = np.flatnonzero(scene.kind_int[LEVEL_OF] >= 0)

    def start(self, structures: Sequence[Sequence[int]], batches: Sequence[int]) -> Start:
        """A place to walk from. batches: index of the micro-batch size to look from, each."""
        return Start(
            tuple(
                (tuple(int(q) for q in kinds), 0, int(batch), 0, ())
                for kinds, batch in zip(structures, batches, strict=True)
            ),
            float("inf"),
        )

    def walk(
        self,
        start: Start,
        moves: int,
        hot: float,
        cold: float,
        seed: int,
        *,
        ration: int = NO_CEILING,
        most_evaluations: int = NO_CEILING,
        spare: bool = True,
    ) -> tuple[Start, Start]:
        """Anneal for so many moves; where the walk ended, and the best set or prefix it met.

        hot, cold: temperatures as shares of the iteration time. ration: evaluations, where the
        walk ends too, cold. most_evaluations: by the engine's own count, where it breaks off.
        spare: whether replicas may be given up, which rollouts never do.
        """
        sets, engine, scene = self._sets, self.composition.engine, self.composition.scene
        self._write(start)
        sets.count[BEST] = 0
        walk(
            engine.tables,
            engine.laid,
            self._kept,
            sets,
            self._usable,
            scene.kind,
            scene.kind_int[TYPE_OF],
            scene.depth,
            moves,
            hot,
            cold,
            seed,
            ration,
            most_evaluations,
            start.iteration_ms == float("inf"),
            spare,
            engine.room,
        )
        return self._read(NOW), self._read(BEST)

    def templates(self, start: Start) -> list[FilledTemplate]:
        """The filled templates of a set that was walked."""
        engine = self.composition.engine
        self._write(start)
        lay(engine.tables, engine.laid, self._sets, NOW, 0, -1.0, False, -1.0, engine.room)
        return engine.templates_laid(int(self._sets.count[NOW]))

    def _write(self, start: Start) -> None:
        sets = self._sets
        sets.count[NOW] = len(start.templates)
        for k, (kinds, fewer, batch, order, tiles) in enumerate(start.templates):
            sets.depth[NOW, k], sets.fewer[NOW, k] = len(kinds), fewer
            sets.batch[NOW, k], sets.order[NOW, k] = batch, order
            sets.kind[NOW, k, : len(kinds)] = kinds
            sets.tile[NOW, k, : len(kinds)] = tiles or WHOLE

    def _read(self, whose: int) -> Start:
        sets = self._sets
        count = int(sets.count[whose])
        experts = self.composition.engine.tables.experts > 1
        templates = tuple(
            (
                tuple(int(q) for q in sets.kind[whose, k, : sets.depth[whose, k]]),
                int(sets.fewer[whose, k]),
                int(sets.batch[whose, k]),
                int(sets.order[whose, k]),
                tuple(int(x) for x in sets.tile[whose, k, : sets.depth[whose, k]])
                if experts
                else (),
            )
            for k in range(count)
        )
        return Start(templates, float(sets.time[whose, count - 1]) if count else float("inf"))
