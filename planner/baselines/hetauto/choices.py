"""The decisions of HetAuto's tree: depth of a template, then GPU type and TP of every stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from planner.kernel.engine import Engine
from planner.lookup import host_row
from planner.memory import limit_bytes

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
STOP = 0  # as a depth: no further template
SAME, NEW, BACK = 4.0, 1.0, 0.1  # weight of the type of the stage before, of a new one, of a return


@dataclass(frozen=True)
class Partial:
    """A template that is being decided. free: GPUs left by node, after its stages."""

    depth: int
    kinds: tuple[int, ...]
    free: tuple[int, ...]

    @property
    def done(self) -> bool:
        """Whether every stage is decided."""
        return len(self.kinds) == self.depth


class Choices:
    """What may follow a state, with weights from principles.

    Masks: a TP group lies inside a node that has profiles and GPUs for it; a prefix is left out
    where the GPUs that it could still get cannot hold the model's weights, gradients and
    optimizer. Weights: shallow before deep, equal types next to each other.
    """

    def __init__(self, engine: Engine) -> None:
        problem = engine.problem
        self.engine = engine
        self.kinds = engine.kinds
        nodes = problem.cluster.nodes
        self.types = [kind.gpu for kind in self.kinds]
        self.tp = [kind.tp for kind in self.kinds]
        profiled = {(key.gpu, key.tp, key.topology) for key in problem.profiles.layers}
        self.usable = [
            [
                i
                for i, node in enumerate(nodes)
                if node.gpu == kind.gpu
                and node.gpus >= kind.tp
                and {(kind.gpu, kind.tp, node.intra_node), (kind.gpu, kind.tp, None)} & profiled
            ]
            for kind in self.kinds
        ]
        self.room = [
            kind.tp
            * max(
                (
                    limit_bytes(problem, nodes[i]) - host_row(problem, kind.gpu).framework_bytes
                    for i in usable
                ),
                default=0.0,
            )
            for kind, usable in zip(self.kinds, self.usable, strict=True)
        ]
        self.need = problem.model.parameters * problem.workload.state_bytes_per_parameter

    def start(self, free: Sequence[int]) -> Partial:
        """A template of which nothing is decided, on the GPUs that others leave."""
        return Partial(-1, (), tuple(int(n) for n in free))

    def depths(self, start: Partial, first: bool) -> tuple[list[int], Floats]:
        """Depths a template may have, and their weights; STOP among them but for the first."""
        widest = max(
            (
                room
                for room, usable, tp in zip(self.room, self.usable, self.tp, strict=True)
                if any(start.free[i] >= tp for i in usable)
            ),
            default=0.0,
        )
        found = [] if first else [STOP]
        if widest > 0:
            most = min(self.engine.depth, sum(start.free))
            found += range(max(1, int(np.ceil(self.need / widest))), most + 1)
        weights = np.array([1.0 if depth == STOP else 1 / depth for depth in found])
        return found, weights

    def stages(self, partial: Partial) -> tuple[list[int], Floats]:
        """Kinds that the next stage may be of, and their weights."""
        open_kinds = [
            q
            for q, usable in enumerate(self.usable)
            if any(partial.free[i] >= self.tp[q] for i in usable)
        ]
        widest = max((self.room[q] for q in open_kinds), default=0.0)
        held = sum(self.room[q] for q in partial.kinds)
        later = partial.depth - len(partial.kinds) - 1
        found = [q for q in open_kinds if held + self.room[q] + later * widest >= self.need]
        used = {self.types[q] for q in partial.kinds}
        weights = []
        for q in found:
            before = partial.kinds[-1] if partial.kinds else q
            if self.types[q] == self.types[before]:
                weights.append(SAME if q == before else NEW)
            else:
                weights.append(BACK if self.types[q] in used else NEW)
        return found, np.array(weights)

    def add(self, partial: Partial, q: int) -> Partial:
        """The template with one stage more, in the node with the fewest free GPUs that do."""
        fitting = [i for i in self.usable[q] if partial.free[i] >= self.tp[q]]
        node = min(fitting, key=lambda i: partial.free[i])
        free = list(partial.free)
        free[node] -= self.tp[q]
        return Partial(partial.depth, (*partial.kinds, q), tuple(free))

    def features(self, kinds: Sequence[int], earlier: int) -> Floats:
        """What the forest reads of a template: depth, changes of type, shares and TP by type."""
        names = list(dict.fromkeys(self.types))
        found = [float(earlier), float(len(kinds))]
        found.append(float(sum(self.types[a] != self.types[b] for a, b in pairwise(kinds))))
        found.append(sum(self.room[q] for q in kinds) / self.need)
        for name in names:
            here = [q for q in kinds if self.types[q] == name]
            found.append(len(here) / len(kinds))
            found.append(float(sum(self.tp[q] for q in here)))
            places = [i for i, q in enumerate(kinds) if self.types[q] == name]
            found.append(float(np.mean(places)) / len(kinds) if places else -1.0)
        return np.array(found)
