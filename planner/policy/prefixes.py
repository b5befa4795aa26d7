"""Rollouts that begin like good ones: the first choices of a plan are taken, the rest sampled."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.policy.composition import Composition
from planner.policy.kernel.scene import LEVEL_OF, TYPE_OF
from planner.policy.rollout import Chooser

Array = Any


def begun_like(plans: Array, cuts: Array, composition: Composition) -> Chooser:
    """Choices that lay the first stages of given plans, and leave all others to the policy.

    plans: (R, K, 1 + D) depth and kinds a template, -1 where none is, as of
    planner.policy.rollout.choices_of. cuts: (R,) stages taken, counted through the templates; the
    depth of a template is taken with its first stage. A plan without templates takes nothing.
    """
    kind_int = composition.scene.kind_int
    depths = np.maximum(plans[:, :, 0], 0)
    ends = depths.cumsum(axis=1)
    at = np.zeros(len(plans), np.int64)  # stages chosen so far
    template = np.zeros(len(plans), np.int64)

    def force(head: str, rows: Array, logp: Array, mask: Array) -> Array:
        k = np.minimum(template[rows], plans.shape[1] - 1)
        taken = at[rows] < cuts[rows]
        if head == "depth":
            return np.where(taken, depths[rows, k], -1)
        stage = at[rows] - (ends[rows, k] - depths[rows, k])
        kind = plans[rows, k, 1 + np.clip(stage, 0, plans.shape[2] - 2)]
        if head == "type":
            return np.where(taken, kind_int[TYPE_OF, kind], -1)
        at[rows] += 1
        template[rows] += taken & (at[rows] == ends[rows, k])
        return np.where(taken, kind_int[LEVEL_OF, kind], -1)

    return force
