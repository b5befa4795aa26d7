"""The two spaces that the same training works in: structural templates, and all raw knobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.policy.composition import Composition
from planner.policy.flat.rollout import flat_plan, forced_flat, run_flat_episodes
from planner.policy.network import FLAT_HEADS, HEADS
from planner.policy.rollout import Chooser, Episodes, choices_of, forced_plans, run_episodes
from planner.policy.training.decisions import plan_of_row
from planner.policy.weights import FLAT_KIND, KIND

Plan = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Space:
    """What a policy chooses.

    planner: whose it is. kind: of its weights file. run: samples episodes, as
    planner.policy.rollout.run_episodes. plan: the first templates of an episode, as numbers.
    forced: choices that lay given plans anew.
    """

    planner: str
    kind: str
    heads: Mapping[str, int]
    run: Callable[..., Episodes]
    plan: Callable[[Any, int, int], Plan]
    forced: Callable[[Sequence[Plan], Composition], Chooser]


def _forced(plans: Sequence[Plan], composition: Composition) -> Chooser:
    choices = choices_of([[list(kinds) for kinds in plan] for plan in plans], composition)
    return forced_plans(choices, composition)


STRUCTURAL = Space("arachne", KIND, HEADS, run_episodes, plan_of_row, _forced)
FLAT = Space("flat-rl", FLAT_KIND, FLAT_HEADS, run_flat_episodes, flat_plan, forced_flat)
SPACES = {space.planner: space for space in (STRUCTURAL, FLAT)}
