"""Plans laid anew under the masks, with the decisions that lead to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.policy.composition import Composition
from planner.policy.kernel.rolls import COUNT
from planner.policy.network import initial_parameters
from planner.policy.rollout import parameters_of
from planner.policy.training.decisions import gather, of_row
from planner.policy.training.memory import Remembered
from planner.policy.training.space import Plan, Space

Array = Any


@dataclass(frozen=True)
class Laying:
    """Plans of one composition that are to be laid anew."""

    space: Space
    plans: Sequence[Plan]


def lay_anew(composition: Composition, asked: Laying) -> tuple[Array, list[Remembered]]:
    """The summary of a composition, and `replayed` of the plans."""
    return composition.summary, replayed(asked.space, composition, asked.plans)


def replayed(space: Space, composition: Composition, plans: Sequence[Plan]) -> list[Remembered]:
    """Those of the plans that the masks allow and that fit, with their decisions.

    A plan that a mask forbids, or that rollouts would fill otherwise than it was found, teaches
    nothing and is left out.
    """
    # What is legal and what is seen does not depend on the network that is asked.
    network = parameters_of(initial_parameters(0, space.heads), composition)
    episodes = space.run(
        composition,
        network,
        len(plans),
        np.random.default_rng(0),
        force=space.forced(plans, composition),
        keep=True,
    )
    gathered = gather(episodes.decisions)
    times = episodes.last_ms
    found = []
    for row, plan in enumerate(plans):
        decisions = of_row(gathered, row)
        legal = all(np.isfinite(one["log_probability"]).all() for one in decisions.values())
        if legal and episodes.rolls.whole[row, COUNT] == len(plan):
            throughput = float(composition.throughput(times[row]))
            found.append(Remembered(plan, throughput, decisions))
    return found
