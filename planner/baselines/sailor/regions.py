"""In which order Sailor fills regions (heuristics H5 and H6)."""

from __future__ import annotations

from itertools import combinations, pairwise, permutations

import numpy as np
from numpy.typing import NDArray

from planner.baselines.sailor.inputs import Inputs

Ints = NDArray[np.int64]


class Regions:
    """The regions of a question and the order of zones within each.

    names: in the order in which they are combined. zones: (regions, most zones of one), those with
    most GPUs first, then -1.
    """

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        used = [z for z, zone in enumerate(inputs.zones) if sum(zone.gpus) > 0]
        self.names = list(dict.fromkeys(inputs.zones[z].region for z in used))
        ordered = []
        for name in self.names:
            here = [z for z in used if inputs.zones[z].region == name]
            ordered.append(sorted(here, key=lambda z: -sum(inputs.zones[z].gpus)))
        most = max((len(zones) for zones in ordered), default=0)
        self.zones: Ints = np.array(
            [zones + [-1] * (most - len(zones)) for zones in ordered], np.int64
        )

    def orders(self, degrees: Ints) -> list[tuple[int, ...]]:
        """Region lists to try, those with the widest narrowest link first.

        Every subset of regions in which at least one type can hold one pipeline, in the order of
        its regions with the best bottleneck between neighbours (first zone of each, groups of one
        GPU). degrees: TP by type and stage.
        """
        needed = degrees.sum(axis=1)
        gpus = np.array([self._gpus(r) for r in range(len(self.names))])
        found: list[tuple[float, tuple[int, ...]]] = []
        for size in range(1, len(self.names) + 1):
            for chosen in combinations(range(len(self.names)), size):
                if not np.any(gpus[list(chosen)].sum(axis=0) >= needed):
                    continue
                best = (float("inf"), chosen)
                if size > 1:
                    by_name = sorted(chosen, key=lambda r: self.names[r])
                    ways = [(self._bottleneck(way), way) for way in permutations(by_name)]
                    best = max(ways, key=lambda way: way[0])  # the first of equals
                found.append(best)
        return [order for _, order in sorted(found, key=lambda way: -way[0])]

    def _gpus(self, region: int) -> tuple[int, ...]:
        zones = [self.inputs.zones[z].gpus for z in self.zones[region] if z >= 0]
        return tuple(sum(column) for column in zip(*zones, strict=True))

    def _bottleneck(self, order: tuple[int, ...]) -> float:
        types = range(len(self.inputs.types))
        return min(
            max(self.inputs.bandwidth(t, 1, self.zones[a][0], self.zones[b][0]) for t in types)
            for a, b in pairwise(order)
        )
