"""What the heads of the flat policy see: every choice there is, legal or not.

The features of planner/policy/features.py, worked out for all candidates at once. Where the
structured policy has a mask, this one has only the feature that the mask is made of.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.kernel.state import DEPTH
from planner.policy.composition import Composition
from planner.policy.features import (
    BLOCK_SHARES,
    DEGREES,
    DEPTHS,
    LEVELS,
    MICRO_BATCHES,
    REPLICA_COUNTS,
    STATES,
    TOKENS,
    TYPES,
)
from planner.policy.kernel.episode import view_depth
from planner.policy.kernel.rolls import (
    AIM,
    COUNT,
    COVER,
    DEMAND,
    GPUS_FREE,
    HELD,
    LARGEST_FREE,
    PACKS,
    SLOTS,
    SPEED_SUM,
    STAGE,
    TRIED,
    Rolls,
)
from planner.policy.kernel.scene import (
    ALONE,
    FIRST,
    GPUS,
    LARGEST,
    LAST,
    LEAST,
    LEVEL_OF,
    TYPE_OF,
    WITHIN,
    Scene,
    ends_of,
)

Array = Any

SHARES = (0.25, 0.5, 0.625, 0.75, 0.875, 1.0, 1.125, 1.25, 1.5, 1.75, 2.0, 3.0)
"""Blocks of a stage over an even split, before all of them are scaled to the model's blocks."""
MOST_REPLICAS = 256
_ANY = 1 << 40


class FlatView:
    """Candidates of every head for episodes of one composition.

    share, split: (R, D) shares of the stages chosen so far, of the template being chosen, and the
    blocks that come of them once all are.
    """

    def __init__(self, composition: Composition, rolls: Rolls, share: Array, split: Array) -> None:
        self.scene: Scene = composition.scene
        self.rolls = rolls
        self.share, self.split = share, split
        self.sizes = composition.engine.tables.size
        gpus = int(self.scene.type_int[GPUS].sum())
        self.most_replicas = min(gpus, MOST_REPLICAS, int(self.scene.samples))
        self._widest = int(self.scene.type_int[LARGEST].max())

    def state(self, rows: Array) -> Array:
        """The state vectors, (n, STATES), as the structured policy sees them."""
        depths = self.scene.depth + 1
        found = np.empty((len(rows), STATES), np.float32)
        candidates = np.empty((len(rows), depths, DEPTHS), np.float32)
        mask = np.empty((len(rows), depths), np.bool_)
        view_depth(self.scene, self.rolls, rows, found, candidates, mask)
        return found

    def depths(self, rows: Array) -> tuple[Array, Array]:
        """STOP and every depth: features (n, D_max + 1, DEPTHS), and all but a STOP at once."""
        scene, rolls, count = self.scene, self.rolls, self.rolls.whole[rows, COUNT]
        out = np.zeros((len(rows), scene.depth + 1, DEPTHS), np.float32)
        out[:, 0, 0] = 1.0
        d = np.arange(1, scene.depth + 1)[None, :]
        each_free = rolls.free[rows, GPUS_FREE]
        free = each_free.sum(axis=1)[:, None]
        node = np.maximum(rolls.free[rows, LARGEST_FREE].max(axis=1), 1)[:, None]
        most = np.minimum(scene.depth, self._groups_left(rows))[:, None]
        rest = rolls.rest[rows, 1 : scene.depth + 1]
        enough = (rest >= scene.blocks) & (d <= most)
        least = np.where(enough.any(axis=1), enough.argmax(axis=1) + 1, 0)[:, None]
        pipes = np.maximum(free // d, 1)
        divided = np.where(each_free[:, :, None] % d[None] == 0, each_free[:, :, None], 0)
        turns = np.maximum(scene.samples / pipes, 1.0)
        new = out[:, 1:]
        new[:, :, 1] = d / 32
        new[:, :, 2] = np.log2(d) / 5
        new[:, :, 3] = np.log2(1.0 + pipes) / 8
        new[:, :, 4] = (free % d) / np.maximum(free, 1)
        new[:, :, 5] = np.minimum(rest / scene.blocks, 4.0) / 4
        new[:, :, 6] = np.ceil(scene.blocks / d) * d / scene.blocks - 1.0
        new[:, :, 7] = np.log2(d / np.maximum(least, 1)) / 5
        new[:, :, 8] = np.log2(d / node) / 5
        new[:, :, 9] = (d - 1) / (turns + d - 1)
        new[:, :, 10] = divided.sum(axis=1) / np.maximum(free, 1)
        new[:, :, 11] = np.minimum(scene.sync / d, 2.0) / 2
        before = np.where(count > 0, rolls.shape[rows, DEPTH, np.maximum(count - 1, 0)], 0)
        before = before[:, None]
        new[:, :, 12] = d == before
        new[:, :, 13] = np.where(before > 0, np.log2(d / np.maximum(before, 1)) / 5, 0.0)
        whole = np.arange(1, scene.depth + 1)
        after, cover = self._alike(rows, np.broadcast_to(whole, (len(rows), len(whole))))
        holds = (scene.kind >= 0) & (after > 0) & (cover >= scene.blocks)
        rates = after * d[:, :, None, None] * self._speeds() / scene.whole_rate
        new[:, :, 14] = np.where(holds, rates, 0.0).max(axis=(2, 3))
        new[:, :, 15] = holds.any(axis=(2, 3))
        mask = np.ones((len(rows), scene.depth + 1), np.bool_)
        mask[:, 0] = count > 0
        return out, mask

    def types(self, rows: Array) -> tuple[Array, Array]:
        """Every GPU type of the cluster: features (n, G, TYPES), all allowed."""
        scene, rolls = self.scene, self.rolls
        n, types = len(rows), scene.kind.shape[0]
        out = np.zeros((n, types, TYPES), np.float32)
        out[:, :, :TOKENS] = rolls.token[rows]
        d, s = rolls.whole[rows, AIM], rolls.whole[rows, STAGE]
        per_stage, mean = scene.blocks / d, self._mean_speed(rows)
        low = np.maximum(scene.type_int[LEAST], 0)
        g = np.arange(types)
        after = self._after(rows)[:, g, low]
        now = np.where(s[:, None] > 0, rolls.whole[rows, PACKS][:, None], after)
        of_type = self._types_so_far(rows)
        same = (of_type[:, None, :] == g[None, :, None]).sum(axis=2)
        before = np.where(s > 0, of_type[np.arange(n), np.maximum(s - 1, 0)], -1)
        has = scene.kind >= 0
        speed = self._speeds()
        end, ahead = ends_of(s, d)[:, None, None], (d - s)[:, None, None]
        fit = np.where(has[None], scene.fit[end, scene.kind[None], ahead, -1], 0.0)
        free = np.maximum(rolls.free[rows, GPUS_FREE].sum(axis=1), 1)
        new = out[:, :, TOKENS:]
        new[:, :, 0] = np.log2(1.0 + after) / 8
        new[:, :, 1] = after / np.maximum(now, 1)
        held = rolls.whole[rows, HELD][:, None] + (1 << low)[None, :]
        new[:, :, 2] = held * after / free[:, None]
        new[:, :, 3] = before[:, None] == g
        new[:, :, 4] = same > 0
        new[:, :, 5] = same / np.maximum(s, 1)[:, None]
        new[:, :, 6] = np.minimum(fit.max(axis=2) / per_stage[:, None], 3.0) / 3
        new[:, :, 7] = np.minimum(fit[:, g, low] / per_stage[:, None], 3.0) / 3
        new[:, :, 8] = np.log(np.maximum(speed.max(axis=1)[None], 1e-3) / mean[:, None]) / 2
        slots = rolls.group[rows, SLOTS][:, g, low]
        new[:, :, 9] = (slots - rolls.group[rows, DEMAND][:, g, low]) / np.maximum(slots, 1)
        new[:, :, 10] = (np.minimum(self._groups_left(rows) / d, 4.0) / 4)[:, None]
        new[:, :, 11] = (s == d - 1)[:, None]
        replicas, cover = self._all_alike(rows)
        sums = rolls.real[rows, SPEED_SUM][:, None, None] + (d - s)[:, None, None] * speed
        rates = replicas * sums / scene.whole_rate
        held = np.where(has, np.minimum(cover / scene.blocks, 1.0), -1.0)
        best = np.lexsort((rates, held), axis=2)[:, :, -1:]
        new[:, :, 12] = np.minimum(fit.max(axis=2) / self._due(rows)[:, None], 3.0) / 3
        new[:, :, 13] = np.take_along_axis(held, best, 2)[:, :, 0]
        new[:, :, 14] = np.log2(1.0 + np.take_along_axis(replicas, best, 2)[:, :, 0]) / 8
        new[:, :, 15] = np.minimum(np.take_along_axis(rates, best, 2)[:, :, 0], 1.5)
        return out, np.ones((n, types), np.bool_)

    def degrees(self, rows: Array, chosen: Array) -> tuple[Array, Array]:
        """Every degree up to the largest node of the cluster: features (n, LEVELS, DEGREES)."""
        scene, rolls, n = self.scene, self.rolls, len(rows)
        d, s = rolls.whole[rows, AIM], rolls.whole[rows, STAGE]
        kind = scene.kind[chosen]
        has = kind >= 0
        tp = 1 << np.arange(LEVELS)
        after = self._after(rows)[np.arange(n), chosen]
        now = np.where(s[:, None] > 0, rolls.whole[rows, PACKS][:, None], after)
        rate = np.where(has, scene.rate[kind], 0.0)
        speed = rate * tp
        free = np.maximum(rolls.free[rows, GPUS_FREE].sum(axis=1), 1)[:, None]
        fit = scene.fit[ends_of(s, d)[:, None], kind, (d - s)[:, None], -1]
        fits = np.where(has, fit, 0.0) / (scene.blocks / d)[:, None]
        so_far = self._kinds_so_far(rows)
        last = np.where(s > 0, so_far[np.arange(n), np.maximum(s - 1, 0)], -1)
        out = np.zeros((n, LEVELS, DEGREES), np.float32)
        out[:, :, 0] = np.arange(LEVELS) / 3
        out[:, :, 1] = np.log2(1.0 + after) / 8
        out[:, :, 2] = after / np.maximum(now, 1)
        out[:, :, 3] = (rolls.whole[rows, HELD][:, None] + tp) * after / free
        out[:, :, 4] = np.minimum(fits, 3.0) / 3
        out[:, :, 5] = rate / np.maximum(scene.best_rate[chosen], 1e-30)[:, None]
        mean = self._mean_speed(rows)[:, None]
        out[:, :, 6] = np.where(has, np.log(np.maximum(speed, 1e-3) / mean) / 2, 0.0)
        out[:, :, 7] = speed / np.maximum(speed.max(axis=1), 1e-30)[:, None]
        out[:, :, 8] = has & (kind == last[:, None])
        out[:, :, 9] = tp / scene.type_int[LARGEST, chosen][:, None]
        out[:, :, 10] = tp / np.maximum(rolls.free[rows, LARGEST_FREE, chosen], 1)[:, None]
        groups = rolls.group[rows, SLOTS, chosen] * tp
        out[:, :, 11] = groups / np.maximum(rolls.free[rows, GPUS_FREE, chosen], 1)[:, None]
        level = np.where(last >= 0, scene.kind_int[LEVEL_OF, last], -1)
        out[:, :, 12] = level[:, None] == np.arange(LEVELS)
        out[:, :, 13] = fits >= 1
        out[:, :, 14] = has & (so_far[:, None, :] == kind[:, :, None]).any(axis=2)
        out[:, :, 15] = (scene.best_rate[chosen] / scene.rate.max())[:, None]
        out[:, :, 16] = (s == d - 1)[:, None]
        out[:, :, 17] = (s == 0)[:, None]
        replicas, cover = (x[np.arange(n), chosen] for x in self._all_alike(rows))
        sums = rolls.real[rows, SPEED_SUM][:, None] + (d - s)[:, None] * speed
        out[:, :, 18] = np.minimum(np.where(has, fit, 0.0) / self._due(rows)[:, None], 3.0) / 3
        out[:, :, 19] = np.where(has, np.minimum(cover / scene.blocks, 2.0) / 2, 0.0)
        out[:, :, 20] = np.log2(1.0 + replicas) / 8
        out[:, :, 21] = (rolls.whole[rows, HELD][:, None] + (d - s)[:, None] * tp) * replicas / free
        out[:, :, 22] = np.minimum(replicas * sums / scene.whole_rate, 1.5)
        mask = np.broadcast_to(tp <= self._widest, (n, LEVELS)).copy()
        return out, mask

    def blocks(self, rows: Array) -> tuple[Array, Array]:
        """Every share of the blocks for the stage taken last: features (n, C, BLOCK_SHARES)."""
        scene, rolls, n = self.scene, self.rolls, len(rows)
        d, s = rolls.whole[rows, AIM], rolls.whole[rows, STAGE] - 1
        q = rolls.choices[rows, rolls.whole[rows, TRIED], 1 + s]
        share = np.array(SHARES)[None, :]
        even = (scene.blocks / d)[:, None]
        before = np.arange(self.share.shape[1])[None, :] < s[:, None]
        so_far = np.where(before, self.share[rows], 0.0)
        speeds = self._speeds_so_far(rows)
        speed = np.maximum(speeds[np.arange(n), s], 1e-3)[:, None]
        count = np.maximum(s, 1)
        took = (so_far / np.maximum(speeds, 1e-3)).sum(axis=1) / count
        took = np.where(s > 0, took, 1.0 / speed[:, 0])[:, None]
        mean = np.maximum(self._mean_speed(rows), 1e-3)[:, None]
        fit = scene.fit[ends_of(s, d), q, d - s, -1][:, None] / (share * even)
        out = np.zeros((n, len(SHARES), BLOCK_SHARES), np.float32)
        out[:, :, 0] = share / 4
        out[:, :, 1] = np.log2(share) / 2
        out[:, :, 2] = np.minimum(fit, 3.0) / 3
        out[:, :, 3] = fit >= 1
        out[:, :, 4] = np.log(share / speed / took) / 2
        out[:, :, 5] = np.log2(share * mean / speed) / 2
        out[:, :, 6] = np.where(s > 0, so_far.sum(axis=1) / count, 1.0)[:, None] / 2
        out[:, :, 7] = (s == 0)[:, None]
        out[:, :, 8] = (s == d - 1)[:, None]
        return out, np.ones((n, len(SHARES)), np.bool_)

    def replicas(self, rows: Array) -> tuple[Array, Array]:
        """Every DP degree: features (n, C, REPLICA_COUNTS)."""
        rolls, n = self.rolls, len(rows)
        free = np.maximum(rolls.free[rows, GPUS_FREE].sum(axis=1), 1)[:, None]
        held, packs = rolls.whole[rows, HELD][:, None], rolls.whole[rows, PACKS][:, None]
        r = np.arange(1, self.most_replicas + 1)[None, :]
        out = np.zeros((n, self.most_replicas, REPLICA_COUNTS), np.float32)
        out[:, :, 0] = np.log2(r) / 8
        out[:, :, 1] = np.minimum(r * held / free, 4.0) / 2
        out[:, :, 2] = np.log2(r / np.maximum(packs, 0.5)) / 4
        out[:, :, 3] = r <= packs
        out[:, :, 4] = r == packs
        out[:, :, 5] = np.log2(np.maximum(self.scene.samples / r, 0.5)) / 8
        return out, np.ones((n, self.most_replicas), np.bool_)

    def micro_batches(self, rows: Array, replicas: Array) -> tuple[Array, Array]:
        """Every micro-batch size with profiles: features (n, B, MICRO_BATCHES)."""
        scene, rolls, n = self.scene, self.rolls, len(rows)
        d = rolls.whole[rows, AIM][:, None]
        size = self.sizes[None, :]
        turns = np.maximum(scene.samples / (replicas[:, None] * size), 1.0)
        stages = np.arange(self.split.shape[1])[None, :]
        q = self._kinds_so_far(rows)
        in_flight = np.clip(d - stages, 1, scene.fit.shape[2] - 1)
        room = scene.fit[ends_of(stages, d), q, in_flight, -1] / np.maximum(self.split[rows], 1)
        tightest = np.where(stages < d, room, np.inf).min(axis=1)[:, None]
        out = np.zeros((n, len(self.sizes), MICRO_BATCHES), np.float32)
        out[:, :, 0] = np.log2(size) / 4
        out[:, :, 1] = np.log2(turns) / 8
        out[:, :, 2] = (d - 1) / (turns + d - 1)
        out[:, :, 3] = size / self.sizes.max()
        out[:, :, 4] = np.minimum(tightest, 3.0) / 3
        out[:, :, 5] = np.log2(d) / 5
        return out, np.ones((n, len(self.sizes)), np.bool_)

    # What several of them read

    def _after(self, rows: Array) -> Array:
        """Replicas that pack with one more stage of each type and level, (n, G, LEVELS)."""
        slots, demand = self.rolls.group[rows, SLOTS], self.rolls.group[rows, DEMAND]
        packs = np.where(self.rolls.whole[rows, STAGE] > 0, self.rolls.whole[rows, PACKS], _ANY)
        out = np.empty_like(slots)
        for e in range(LEVELS):
            wanted = demand[:, :, : e + 1] + (1 << (e - np.arange(e + 1)))
            most = (slots[:, :, : e + 1] // wanted).min(axis=2)
            out[:, :, e] = np.minimum(most, packs[:, None])
        return out

    def _all_alike(self, rows: Array) -> tuple[Array, Array]:
        """`_alike` for the depths chosen, each (n, G, LEVELS)."""
        after, cover = self._alike(rows, self.rolls.whole[rows, AIM][:, None])
        return after[:, 0], cover[:, 0]

    def _alike(self, rows: Array, depths: Array) -> tuple[Array, Array]:
        """Replicas and blocks if all stages to come are of one kind, each (n, C, G, LEVELS).

        depths: (n, C) of the template, above the stages chosen.
        """
        scene, rolls = self.scene, self.rolls
        s = rolls.whole[rows, STAGE][:, None]
        left = depths - s
        slots, demand = rolls.group[rows, SLOTS], rolls.group[rows, DEMAND]
        packs = np.where(s > 0, rolls.whole[rows, PACKS][:, None], _ANY)
        after = np.empty((*left.shape, *slots.shape[1:]), np.int64)
        for e in range(LEVELS):
            many = left[:, :, None, None] << (e - np.arange(e + 1))
            wanted = demand[:, None, :, : e + 1] + many
            most = (slots[:, None, :, : e + 1] // wanted).min(axis=3)
            after[..., e] = np.minimum(most, packs[:, :, None])
        ahead, kind = left[:, :, None, None], scene.kind[None, None]
        cover = rolls.real[rows, COVER][:, None, None, None] + scene.tail[kind, ahead, -1]
        more = ahead > 1
        first = scene.fit[np.where(more, FIRST, ALONE), kind, ahead, -1]
        first = first - scene.fit[np.where(more, WITHIN, LAST), kind, ahead, -1]
        return after, cover + np.where(s[:, :, None, None] == 0, first, 0.0)

    def _due(self, rows: Array) -> Array:
        """Blocks that each stage still to choose must hold on average, (n,)."""
        left = self.rolls.whole[rows, AIM] - self.rolls.whole[rows, STAGE]
        over = self.scene.blocks - self.rolls.real[rows, COVER]
        return np.maximum(over, 0.5) / np.maximum(left, 1)

    def _speeds(self) -> Array:
        """Speed of a stage of every kind, 0 where there is none, (G, LEVELS)."""
        has = self.scene.kind >= 0
        return np.where(has, self.scene.rate[self.scene.kind] * (1 << np.arange(LEVELS)), 0.0)

    def _groups_left(self, rows: Array) -> Array:
        """Stages of the least degrees that still pack beside one replica so far, (n,)."""
        least = self.scene.type_int[LEAST]
        g, low = np.arange(len(least)), np.maximum(least, 0)
        slots, demand = self.rolls.group[rows, SLOTS], self.rolls.group[rows, DEMAND]
        spare = np.maximum(slots[:, g, low] - demand[:, g, low], 0)
        return np.where(least[None, :] >= 0, spare, 0).sum(axis=1)

    def _mean_speed(self, rows: Array) -> Array:
        s = self.rolls.whole[rows, STAGE]
        return np.where(s > 0, self.rolls.real[rows, SPEED_SUM] / np.maximum(s, 1), 1.0)

    def _kinds_so_far(self, rows: Array) -> Array:
        """Kinds of the stages chosen, -1 behind them, (n, D)."""
        s = self.rolls.whole[rows, STAGE]
        kinds = self.rolls.choices[rows, self.rolls.whole[rows, TRIED], 1:]
        return np.where(np.arange(kinds.shape[1])[None, :] < s[:, None], kinds, -1)

    def _types_so_far(self, rows: Array) -> Array:
        kinds = self._kinds_so_far(rows)
        return np.where(kinds >= 0, self.scene.kind_int[TYPE_OF, kinds], -1)

    def _speeds_so_far(self, rows: Array) -> Array:
        kinds = self._kinds_so_far(rows)
        tp = 1 << np.maximum(self.scene.kind_int[LEVEL_OF, kinds], 0)
        return np.where(kinds >= 0, self.scene.rate[kinds] * tp, 1.0)
