"""Episodes of the policy on one composition, many side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.kernel.engine import NO_CEILING
from planner.kernel.state import BATCH
from planner.policy.composition import Composition
from planner.policy.features import DEGREES, DEPTHS, LEVELS, STATES, TYPES
from planner.policy.kernel.episode import (
    close_templates,
    open_templates,
    set_depth,
    take,
    view_degrees,
    view_depth,
    view_types,
)
from planner.policy.kernel.rolls import AIM, COUNT, STAGE, TRIED, Rolls, new_rolls
from planner.policy.kernel.scene import LEVEL_OF, TYPE_OF
from planner.policy.network import Conditioned, log_probabilities
from planner.policy.start import Start

Array = Any


@dataclass(frozen=True)
class Decision:
    """One head asked for many episodes at once.

    rows: (n,) episodes. template, stage: (n,) where in the plan. state (n, STATES), tokens
    (n, G, TOKENS), candidates (n, C, F), mask (n, C), choice (n,), log_probability (n,) of the
    choice under the policy that was asked.
    """

    head: str
    rows: Array
    template: Array
    stage: Array
    state: Array
    tokens: Array
    candidates: Array
    mask: Array
    choice: Array
    log_probability: Array


Chooser = Callable[[str, Array, Array, Array], Array | None]
"""Given head, rows, log-probabilities (n, C) and mask: choices that are forced, else -1."""


@dataclass
class Episodes:
    """Finished episodes and, where asked for, every decision they took."""

    composition: Composition
    rolls: Rolls
    decisions: list[Decision]

    @property
    def best_ms(self) -> Array:
        """Shortest iteration over the prefixes of each episode, inf where none fits, (R,)."""
        times = np.where(self.rolls.times > 0, self.rolls.times, np.inf)
        return times.min(axis=1)

    def best_prefix(self, row: int) -> int:
        """How many templates of an episode make its shortest iteration; 1 where none fits."""
        times = self.rolls.times[row]
        return int(np.where(times > 0, times, np.inf).argmin()) + 1

    def start(self, row: int, count: int) -> Start:
        """The first templates of an episode, to walk from; priced, as they were filled."""
        rolls = self.rolls
        return Start(
            tuple(
                (
                    tuple(int(q) for q in rolls.choices[row, k, 1 : 1 + rolls.choices[row, k, 0]]),
                    0,
                    int(rolls.shape[row, BATCH, k]),
                    int(rolls.order[row, k]),
                    (),
                )
                for k in range(count)
            ),
            float(rolls.times[row, count - 1]),
        )

    @property
    def last_ms(self) -> Array:
        """Iteration with all templates that fit, inf where none does, (R,)."""
        last = np.maximum(self.rolls.whole[:, COUNT] - 1, 0)
        found = self.rolls.times[np.arange(len(last)), last]
        return np.where(self.rolls.whole[:, COUNT] > 0, found, np.inf)


class Asked:
    """The heads, asked for many episodes at once; what they decide is kept where told so."""

    def __init__(
        self,
        network: Conditioned,
        rolls: Rolls,
        draw: np.random.Generator,
        force: Chooser | None,
        keep: bool,
        temperatures: Array | None = None,
    ) -> None:
        self.network, self.rolls, self.draw = network, rolls, draw
        self.temperatures: Array = None if temperatures is None else np.float32(temperatures)
        self.force, self.keep = force, keep
        self.decisions: list[Decision] = []
        width = 2 * network.films["trunk1"][0].shape[0]
        self._types = np.zeros((len(rolls.whole), width), np.float32)

    def look(self, rows: Array) -> None:
        """Encode the types as these episodes now find them."""
        self._types[rows] = self.network.types(self.rolls.token[rows])

    def decide(self, head: str, rows: Array, state: Array, candidates: Array, mask: Array) -> Array:
        """A choice for each row, (n,), sampled or forced."""
        hidden = self.network.trunk(state, self._types[rows])
        scores = self.network.scores(head, hidden, candidates)
        if self.temperatures is not None and head != "depth":
            scores = scores / self.temperatures[rows][:, None]
        logp = log_probabilities(scores, mask)
        choice = _sample(logp, self.draw)
        if self.force is not None:
            said = self.force(head, rows, logp, mask)
            if said is not None:
                choice = np.where(said >= 0, said, choice)
        if self.keep:
            rolls = self.rolls
            self.decisions.append(
                Decision(
                    head,
                    rows.copy(),
                    rolls.whole[rows, TRIED].copy(),
                    rolls.whole[rows, STAGE].copy(),
                    state,
                    rolls.token[rows].astype(np.float32),
                    candidates,
                    mask,
                    choice,
                    logp[np.arange(len(rows)), choice],
                )
            )
        return choice


def run_episodes(
    composition: Composition,
    network: Conditioned,
    count: int,
    draw: np.random.Generator,
    *,
    force: Chooser | None = None,
    keep: bool = False,
    temperatures: Array | None = None,
    spent: Callable[[], bool] | None = None,
    most_evaluations: int = NO_CEILING,
) -> Episodes:
    """Sample `count` plans, every prefix of them priced.

    An episode ends with STOP, with a template that fits nowhere, with the most templates, or where
    no GPU is left. force: choices to take instead of sampled ones. keep: record all decisions.
    temperatures: (count,) that the scores of types and degrees are divided by in each episode, 1
    without them. Depths are drawn as the policy says: they are what makes plans differ.
    spent: asked before each template; True ends all episodes there. most_evaluations: where the
    engine's count must stop; templates beyond it count as not fitting.
    """
    engine, scene = composition.engine, composition.scene
    tables, room = engine.tables, engine.room
    rolls = new_rolls(tables, scene, count)
    types = scene.kind.shape[0]
    asked = Asked(network, rolls, draw, force, keep, temperatures)
    decide = asked.decide

    def blank(n: int, choices: int, features: int) -> tuple[Array, Array, Array]:
        return (
            np.empty((n, STATES), np.float32),
            np.empty((n, choices, features), np.float32),
            np.zeros((n, choices), np.bool_),
        )

    rows = np.arange(count)
    while len(rows) and not (spent is not None and spent()):
        open_templates(tables, scene, rolls, rows, room)
        asked.look(rows)
        state, candidates, mask = blank(len(rows), scene.depth + 1, DEPTHS)
        view_depth(scene, rolls, rows, state, candidates, mask)
        # Without a depth there is nothing to decide: no GPU is left, or the most templates stand.
        some = mask[:, 1:].any(axis=1)
        if not some.all():
            rows, state, candidates, mask = rows[some], state[some], candidates[some], mask[some]
            if not len(rows):
                break
        depths = decide("depth", rows, state, candidates, mask)
        rows, depths = rows[depths > 0], depths[depths > 0]
        set_depth(rolls, rows, depths)
        going = rows
        while len(going):
            state, candidates, mask = blank(len(going), types, TYPES)
            view_types(scene, rolls, going, state, candidates, mask)
            chosen = decide("type", going, state, candidates, mask)
            state, candidates, mask = blank(len(going), LEVELS, DEGREES)
            view_degrees(scene, rolls, going, chosen, state, candidates, mask)
            levels = decide("degree", going, state, candidates, mask)
            take(scene, rolls, going, chosen, levels)
            going = going[rolls.whole[going, STAGE] < rolls.whole[going, AIM]]
        fits = np.zeros(len(rows), np.bool_)
        close_templates(tables, scene, rolls, rows, most_evaluations, room, fits)
        rows = rows[fits & (rolls.whole[rows, COUNT] < scene.templates)]
    return Episodes(composition, rolls, asked.decisions)


def _sample(logp: Array, draw: np.random.Generator) -> Array:
    """One choice a row by its probabilities: the largest of logp plus Gumbel noise."""
    noise = draw.gumbel(size=logp.shape)
    return np.argmax(np.where(np.isfinite(logp), logp + noise, -np.inf), axis=1)


def forced_plans(plans: Array, composition: Composition) -> Chooser:
    """Choices that lay given plans: (R, K, 1 + D) depth and kinds a template, -1 where none is.

    After its last template a plan says STOP.
    """
    scene = composition.scene
    at = np.zeros(len(plans), np.int64)
    stage = np.zeros(len(plans), np.int64)

    def force(head: str, rows: Array, logp: Array, mask: Array) -> Array:
        said = np.empty(len(rows), np.int64)
        for a, i in enumerate(rows):
            k = at[i]
            row = plans[i, k] if k < plans.shape[1] else None
            if head == "depth":
                said[a] = 0 if row is None or row[0] < 1 else row[0]
                stage[i] = 0
                continue
            assert row is not None
            q = row[1 + stage[i]]
            if head == "type":
                said[a] = scene.kind_int[TYPE_OF, q]
                continue
            said[a] = scene.kind_int[LEVEL_OF, q]
            stage[i] += 1
            if stage[i] == row[0]:
                at[i] += 1
        return said

    return force


def choices_of(structures: list[list[list[int]]], composition: Composition) -> Array:
    """Plans, each a list of templates, each a list of kinds, as the array of `forced_plans`."""
    scene = composition.scene
    plans = np.full((len(structures), scene.templates, 1 + scene.depth), -1, np.int64)
    for i, templates in enumerate(structures):
        for k, kinds in enumerate(templates):
            plans[i, k, 0] = len(kinds)
            plans[i, k, 1 : 1 + len(kinds)] = kinds
    return plans


def parameters_of(weights: Mapping[str, Array], composition: Composition) -> Conditioned:
    """The network of these weights on a composition."""
    return Conditioned.of(weights, composition.summary)
