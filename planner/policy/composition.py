"""A composition: one planning problem, made ready for episodes and local moves."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from planner.filled import FilledTemplate
from planner.kernel.engine import Engine
from planner.kernel.state import new_laid, new_room
from planner.policy.features import MOST_DEPTH, MOST_TEMPLATES
from planner.policy.kernel.rolls import Rolls
from planner.policy.kernel.scene import LEAST, Scene, scene_of
from planner.problem import Problem

Array = Any


class Composition:
    """A cluster with a workload and its profiles: the kernel's arrays and the policy's view.

    summary: what FiLM is conditioned on, and what similar compositions are found by.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.engine = Engine(problem, templates=MOST_TEMPLATES, stages=MOST_DEPTH)
        self.scene: Scene
        self.summary: Array
        self.scene, self.summary = scene_of(self.engine.compiled)

    def beside(self) -> Composition:
        """The same for another thread: its own room to work in, all else shared."""
        other = copy(self)
        engine = other.engine = copy(self.engine)
        engine.laid = new_laid(engine.tables, engine.templates, engine.depth)
        engine.room = new_room(engine.tables, engine.templates, engine.depth)
        return other

    @property
    def plannable(self) -> bool:
        """Whether any GPU type has a degree with profiles."""
        return bool((self.scene.type_int[LEAST] >= 0).any())

    def forget(self) -> None:
        """Begin the count of evaluations and refusals anew."""
        room = self.engine.room
        room.why[:] = 0
        room.tally[:] = 0
        room.no_rows[:] = 0
        room.closest[:] = np.inf

    def throughput(self, iteration_ms: Array) -> Array:
        """Throughput over the ideal: every GPU at its best rate on blocks, and nothing else.

        The same for all plans of a composition, so that what is learned does not depend on its
        size. (The proven bound of DESIGN section 13 takes a linear program; this one is free.)
        """
        return self.scene.ideal_ms / iteration_ms

    def laid(self, rolls: Rolls, i: int, count: int) -> list[FilledTemplate]:
        """The first `count` templates of episode i."""
        mine = self.engine.laid
        mine.shape[:], mine.stage[:], mine.node[:] = rolls.shape[i], rolls.stage[i], rolls.node[i]
        return self.engine.templates_laid(count)
