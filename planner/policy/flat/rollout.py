"""Episodes of the flat policy: every knob is a choice, and what is chosen may be no plan.

A template is, in this order: a depth; for each stage a GPU type, a TP degree and its share of the
blocks; a DP degree; a micro-batch size. There are no masks but that the first depth is no STOP.
Shares are scaled to the model's blocks, or next to no sample would hold just those. GPUs are
packed by stage; experts are sharded by the TP degree alone, for tilings are no knob of it. A
template that has no profiles, does not pack or does not fit the memory ends the episode: it is an
invalid sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from planner.kernel.engine import NO_CEILING
from planner.kernel.fill import prepare, price_laid, refuse
from planner.kernel.packing import STAGE as BY_STAGE
from planner.kernel.packing import pack
from planner.kernel.state import (
    BATCH,
    CODE,
    DEPTH,
    EVALUATIONS,
    FIRST,
    KIND,
    NO_PACKING,
    NO_ROWS,
    REPLICAS,
    TILING,
    TOO_FEW_SAMPLES,
    Laid,
)
from planner.kernel.tables import EP, ETP, TP
from planner.policy.composition import Composition
from planner.policy.features import LEVELS
from planner.policy.flat.views import SHARES, FlatView
from planner.policy.kernel.episode import open_templates, set_depth, take
from planner.policy.kernel.rolls import AIM, COUNT, GAIN, HELD, STAGE, TRIED, new_rolls
from planner.policy.network import Conditioned
from planner.policy.rollout import Asked, Chooser, Episodes

Array = Any
FlatTemplate = tuple[int, ...]
"""Depth; type and degree of each stage as one number; share of each; DP degree; size."""


@dataclass
class FlatEpisodes(Episodes):
    """Finished episodes.

    code (R, K, D): type * LEVELS + level of each stage. share (R, K, D): index of its share of the
    blocks. dealt (R, K, 2): DP degree and index of the micro-batch size. -1 where nothing was
    chosen. unprofiled: templates that asked for a degree without profiles.
    """

    code: Array = field(default_factory=lambda: np.zeros(0))
    share: Array = field(default_factory=lambda: np.zeros(0))
    dealt: Array = field(default_factory=lambda: np.zeros(0))
    unprofiled: int = 0

    def template(self, row: int, k: int) -> FlatTemplate:
        """What was chosen for template k of an episode."""
        depth = int(self.rolls.choices[row, k, 0])
        return (
            depth,
            *(int(x) for x in self.code[row, k, :depth]),
            *(int(x) for x in self.share[row, k, :depth]),
            *(int(x) for x in self.dealt[row, k]),
        )


def run_flat_episodes(
    composition: Composition,
    network: Conditioned,
    count: int,
    draw: np.random.Generator,
    *,
    force: Chooser | None = None,
    keep: bool = False,
    spent: Callable[[], bool] | None = None,
    most_evaluations: int = NO_CEILING,
) -> FlatEpisodes:
    """Sample `count` plans, every prefix of them priced; see planner.policy.rollout.run_episodes.

    An episode ends with STOP, with a template that is invalid, or with the most templates.
    """
    engine, scene = composition.engine, composition.scene
    tables, room = engine.tables, engine.room
    rolls = new_rolls(tables, scene, count)
    found = FlatEpisodes(
        composition,
        rolls,
        [],
        code=np.full((count, scene.templates, scene.depth), -1, np.int64),
        share=np.full((count, scene.templates, scene.depth), -1, np.int64),
        dealt=np.full((count, scene.templates, 2), -1, np.int64),
    )
    share = np.zeros((count, scene.depth))  # of the template being chosen, as its blocks
    split = np.zeros((count, scene.depth), np.int64)
    view = FlatView(composition, rolls, share, split)
    asked = Asked(network, rolls, draw, force, keep)
    rows = np.arange(count)
    while len(rows) and not (spent is not None and spent()):
        open_templates(tables, scene, rolls, rows, room)
        asked.look(rows)
        depths = asked.decide("depth", rows, view.state(rows), *view.depths(rows))
        rows, depths = rows[depths > 0], depths[depths > 0]
        set_depth(rolls, rows, depths)
        share[rows], split[rows] = 0.0, 0
        going, whole = rows, np.ones(count, np.bool_)
        while len(going):
            k, s = rolls.whole[going, TRIED], rolls.whole[going, STAGE]
            types = asked.decide("type", going, view.state(going), *view.types(going))
            levels = asked.decide("degree", going, view.state(going), *view.degrees(going, types))
            found.code[going, k, s] = types * LEVELS + levels
            known = scene.kind[types, levels] >= 0
            for i in going[~known]:
                whole[i] = False
                found.unprofiled += 1
                room.why[EVALUATIONS] += 1
                _ended(rolls, i, -1.0)
            going, k, s = going[known], k[known], s[known]
            types, levels = types[known], levels[known]
            take(scene, rolls, going, types, levels)
            if len(going):
                chosen = asked.decide("blocks", going, view.state(going), *view.blocks(going))
                found.share[going, k, s], share[going, s] = chosen, np.array(SHARES)[chosen]
            going = going[rolls.whole[going, STAGE] < rolls.whole[going, AIM]]
        rows = rows[whole[rows]]
        if not len(rows):
            break
        for i in rows:
            depth = rolls.whole[i, AIM]
            split[i, :depth] = apportioned(share[i, :depth], scene.blocks)
        k = rolls.whole[rows, TRIED]
        replicas = 1 + asked.decide("replicas", rows, view.state(rows), *view.replicas(rows))
        sizes = asked.decide(
            "micro-batch", rows, view.state(rows), *view.micro_batches(rows, replicas)
        )
        found.dealt[rows, k, 0], found.dealt[rows, k, 1] = replicas, sizes
        fits = np.zeros(len(rows), np.bool_)
        for a, i in enumerate(rows):
            if engine.evaluations < most_evaluations:
                took = _price(composition, found, int(i), split[i])
                _ended(rolls, i, took, scene.ideal_ms)
                fits[a] = took >= 0
        rows = rows[fits & (rolls.whole[rows, COUNT] < scene.templates)]
    found.decisions = asked.decisions
    return found


def _ended(rolls: Any, i: int, took: float, ideal_ms: float = 0.0) -> None:
    """Count a template of an episode that was chosen to its end, or as far as it was valid."""
    k = rolls.whole[i, COUNT]
    rolls.whole[i, TRIED] += 1
    rolls.times[i, k] = took
    if took >= 0:
        before = ideal_ms / rolls.times[i, k - 1] if k > 0 else 0.0
        rolls.real[i, GAIN] = min(max(ideal_ms / took - before, -1.0), 1.0)
        rolls.whole[i, COUNT] = k + 1


def _price(composition: Composition, found: FlatEpisodes, i: int, split: Array) -> float:
    """Lay the template just chosen and price the whole plan, in ms; -1 where it is none."""
    engine, rolls = composition.engine, found.rolls
    tables, room = engine.tables, engine.room
    k, depth = int(rolls.whole[i, COUNT]), int(rolls.whole[i, AIM])
    tried = int(rolls.whole[i, TRIED])
    replicas, size = (int(x) for x in found.dealt[i, tried])
    laid = Laid(rolls.shape[i], rolls.stage[i], rolls.node[i])
    kinds = np.ascontiguousarray(rolls.choices[i, tried, 1 : 1 + depth])
    room.why[EVALUATIONS] += 1
    prepare(tables, laid, k, room)
    laid.shape[[DEPTH, REPLICAS, BATCH], k] = depth, replicas, size
    laid.stage[KIND, k, :depth] = kinds
    laid.stage[FIRST, k, 0] = 0
    laid.stage[FIRST, k, 1 : depth + 1] = np.cumsum(split[:depth])
    refused = None
    if laid.shape[REPLICAS, : k + 1].sum() > tables.global_batch:
        refused = TOO_FEW_SAMPLES
    # More groups than GPUs would be written beyond the end of laid.node.
    elif replicas * int(rolls.whole[i, HELD]) > int(engine.free_gpus.sum()) or not pack(
        tables, room, kinds, depth, replicas, BY_STAGE, laid.node[k]
    ):
        refused = NO_PACKING
    for s, q in enumerate(kinds):
        wanted = (1, tables.kind_int[TP, q] if tables.experts > 1 else 1)
        fitting = (tables.tile[EP] == wanted[0]) & (tables.tile[ETP] == wanted[1])
        if refused is None and not fitting.any():
            refused = NO_ROWS
            room.no_rows[q, size] += 1
        laid.stage[TILING, k, s] = fitting.argmax()
    if refused is not None:
        if refused == NO_ROWS:
            room.tally[NO_ROWS] += 1
            return -1.0
        room.why[CODE] = refused
        refuse(room)
        return -1.0
    took = float(price_laid(tables, laid, k + 1, room))
    if took < 0:
        refuse(room)
    return took


def apportioned(shares: Array, blocks: int) -> Array:
    """Blocks of each stage by shares (d,), at least one each: the largest remainders get the rest.

    One block is set aside for each stage, and the others are dealt by what the shares say beyond.
    """
    depth = len(shares)
    wanted = np.maximum(shares / shares.sum() * blocks - 1.0, 0.0)
    if wanted.sum() > 0:
        wanted *= (blocks - depth) / wanted.sum()
    found = np.floor(wanted + 1e-9).astype(np.int64)
    over = blocks - depth - int(found.sum())
    found[np.argsort(found - wanted, kind="stable")[:over]] += 1
    return found + 1


def flat_plan(episodes: FlatEpisodes, row: int, count: int) -> tuple[FlatTemplate, ...]:
    """The first `count` templates of an episode, as they were chosen."""
    return tuple(episodes.template(row, k) for k in range(count))


def forced_flat(plans: Sequence[Sequence[FlatTemplate]], composition: Composition) -> Chooser:
    """Choices that lay given plans; after its last template a plan says STOP."""
    at = [0] * len(plans)
    stage = [0] * len(plans)

    def force(head: str, rows: Array, logp: Array, mask: Array) -> Array:
        said = np.empty(len(rows), np.int64)
        for a, i in enumerate(rows):
            if head == "depth" and at[i] == len(plans[i]):
                said[a] = 0
                continue
            template = plans[i][at[i]]
            depth = template[0]
            if head == "depth":
                said[a], stage[i] = depth, 0
            elif head == "type":
                said[a] = template[1 + stage[i]] // LEVELS
            elif head == "degree":
                said[a] = template[1 + stage[i]] % LEVELS
            elif head == "blocks":
                said[a] = template[1 + depth + stage[i]]
                stage[i] += 1
            elif head == "replicas":
                said[a] = template[-2] - 1
            else:
                said[a] = template[-1]
                at[i] += 1
        return said

    return force
