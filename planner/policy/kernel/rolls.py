"""Arrays of many episodes that run side by side, and the plans that they lay."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from planner.kernel.jit import compiled
from planner.kernel.state import Laid
from planner.kernel.tables import GPUS, Tables
from planner.policy.features import LEVELS, MOST_DEPTH, TOKENS
from planner.policy.kernel.scene import Scene

Array = Any


# Rows of the arrays below.
COUNT, TRIED, AIM, STAGE, PACKS, HELD = 0, 1, 2, 3, 4, 5  # of whole
COVER, SPEED_SUM, SLOWEST, QUICKEST, GAIN = 0, 1, 2, 3, 4  # of real
SLOTS, DEMAND = 0, 1  # of group
GPUS_FREE, LARGEST_FREE = 0, 1  # of free


class Rolls(NamedTuple):
    """R episodes, their plans laid as in planner.kernel.state.Laid.

    whole: templates that fit; templates chosen, with the one that failed; depth of the template
    being chosen, stages chosen of it, replicas of them that pack, GPUs of one replica. real:
    blocks that those stages can hold at most, sum, least and most of their speeds; gain of the
    last template. group: TP groups that the free GPUs hold, and groups' worth of the stages so
    far. free: free GPUs, and the most on one node.
    """

    shape: Array  # (R, 3, K)
    stage: Array  # (R, 3, K, D + 1)
    node: Array  # (R, K, GPUs)
    times: Array  # (R, K) iteration in ms with the first k + 1 templates, -1 where it fits nowhere
    order: Array  # (R, K) placement of each template, as in planner.kernel.packing
    choices: Array  # (R, K, 1 + D) depth, then kinds, as chosen, also of a template that failed
    whole: Array  # (R, 6)
    real: Array  # (R, 5)
    group: Array  # (R, 2, G, LEVELS)
    free: Array  # (R, 2, G)
    token: Array  # (R, G, TOKENS)
    rest: Array  # (R, D + 1) blocks that the last j stages can hold at most


def new_rolls(tables: Tables, scene: Scene, count: int) -> Rolls:
    """Room for so many episodes, none begun."""
    gpus, types = int(tables.node_int[GPUS].sum()), tables.gpu_real.shape[1]
    k, d = scene.templates, scene.depth

    def whole(*shape: int) -> Array:
        return np.zeros((count, *shape), np.int64)

    def real(*shape: int) -> Array:
        return np.zeros((count, *shape), np.float64)

    return Rolls(
        shape=whole(3, k),
        stage=whole(3, k, d + 1),
        node=whole(k, gpus),
        times=np.full((count, k), -1.0),
        order=whole(k),
        choices=np.full((count, k, 1 + d), -1, np.int64),
        whole=whole(6),
        real=real(5),
        group=whole(2, types, LEVELS),
        free=whole(2, types),
        token=real(types, TOKENS),
        rest=real(MOST_DEPTH + 1),
    )


@compiled
def laid_of(rolls: Rolls, i: int) -> Laid:
    """The templates of episode i, as a view."""
    return Laid(rolls.shape[i], rolls.stage[i], rolls.node[i])
