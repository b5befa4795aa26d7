"""The layer split: the contiguous one whose slowest stage is fastest, within memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from planner.baselines.metis.inputs import Prefix
from planner.kernel.jit import compiled

Array = Any  # numpy arrays
TIME = -1.0  # a ceiling that is the slowest stage's time, not a size


@dataclass(frozen=True)
class StageLimits:
    """What a stage may hold of the layers.

    times: of each distinct replica. memory: of each, with its room.
    """

    times: tuple[Prefix, ...]
    memory: tuple[tuple[Prefix, float], ...]

    @cached_property
    def _rows(self) -> Array:
        return np.array([*self.times, *(prefix for prefix, _ in self.memory)])

    @cached_property
    def _ceilings(self) -> Array:
        rooms = [max(room, 0.0) for _, room in self.memory]
        return np.array([*(TIME for _ in self.times), *rooms])

    def free(self, first: int, end: int) -> float:
        """The least room that is left, in bytes."""
        return min(room - memory[end] + memory[first] for memory, room in self.memory)


def balanced(
    stages: Sequence[StageLimits], layers: int, *, memory: bool = True
) -> tuple[int, ...] | None:
    """First layer of each stage and the end, of the split whose slowest stage is fastest.

    Every stage holds a layer. By dynamic programming over stages and ends: exact. None where memory
    allows none; memory=False leaves it out. (Metis itself deals sevenths of layers and repairs;
    this is what that aims at.)
    """
    if len(stages) > layers:
        return None
    if memory:
        rows = np.concatenate([stage._rows for stage in stages])
        ceilings = np.concatenate([stage._ceilings for stage in stages])
        counts = [len(stage.times) + len(stage.memory) for stage in stages]
    else:
        rows = np.concatenate([stage._rows[: len(stage.times)] for stage in stages])
        counts = [len(stage.times) for stage in stages]
        ceilings = np.full(len(rows), TIME)
    bounds = np.zeros(len(stages) + 1, np.int64)
    if not _balance(rows, ceilings, np.cumsum([0, *counts]), bounds):
        return None
    return tuple(int(bound) for bound in bounds)


@compiled
def _balance(rows: Array, ceilings: Array, starts: Array, bounds: Array) -> bool:
    """Fill in the bounds of the best split; whether there is one.

    rows (R, L + 1): what the first layers add up to, of stage s in starts[s]..starts[s + 1].
    """
    layers = rows.shape[1] - 1
    stages = starts.shape[0] - 1
    best = np.full((stages + 1, layers + 1), np.inf)
    best[0, 0] = 0.0
    origin = np.zeros((stages + 1, layers + 1), np.int64)
    for s in range(stages):
        for end in range(s + 1, layers - (stages - s - 1) + 1):
            for first in range(end - 1, s - 1, -1):
                slowest = best[s, first]
                fits = True
                hopeless = False
                for r in range(starts[s], starts[s + 1]):
                    size = rows[r, end] - rows[r, first]
                    if ceilings[r] == TIME:
                        # From here to the left this stage only takes longer.
                        hopeless = hopeless or size >= best[s + 1, end]
                        slowest = max(slowest, size)
                    elif size > ceilings[r]:
                        fits = False
                if hopeless or not fits:
                    break
                if slowest < best[s + 1, end]:
                    best[s + 1, end] = slowest
                    origin[s + 1, end] = first
    if best[stages, layers] == np.inf:
        return False
    bounds[stages] = layers
    for s in range(stages, 0, -1):
        bounds[s - 1] = origin[s, bounds[s]]
    return True
