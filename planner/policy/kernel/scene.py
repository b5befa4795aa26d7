"""What stays the same through all episodes on one composition, as arrays for compiled code."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from planner.kernel.tables import (
    ACTIVATION,
    BUS,
    EMBEDDING,
    EP,
    ETP,
    FRAMEWORK,
    GPU,
    HEAD,
    HOST,
    KIND_GPU,
    MS,
    NIC,
    STATE,
    STATE_ALONE,
    TP,
    TRANSIENT,
    Compiled,
)
from planner.kernel.tables import GPUS as NODE_GPUS
from planner.policy.features import LEVELS, MOST_DEPTH, MOST_TEMPLATES, STATES, TOKENS

Array = Any

_CARD = 12.5e6  # bytes/ms, the network card that others are compared with
_BUS = 50e6  # bytes/ms


LEAST, GPUS, LARGEST = 0, 1, 2  # of type_int
TYPE_OF, LEVEL_OF = 0, 1  # of kind_int
WITHIN, FIRST, LAST, ALONE = 0, 1, 2, 3  # of fit: (s == 0) + 2 * (s == d - 1) of stage s of d


class Scene(NamedTuple):
    """Indices: g GPU type, e level (degree 2**e), q kind, j micro-batches in flight.

    W: experts spread over at most 2**w devices; 1 for models without.
    """

    kind: Array  # (G, LEVELS) kind index, -1 where the type has no rows of the degree
    type_int: Array  # (3, G) lowest level (-1 for none), GPUs, largest node
    kind_int: Array  # (2, Q) g; e, -1 for a degree that is no power of two
    rate: Array  # (Q,) blocks per ms and GPU over the fastest
    best_rate: Array  # (G,)
    fit: Array  # (4, Q, MOST_DEPTH + 1, W) blocks that fit, beside embedding and head at the ends
    tail: Array  # (Q, MOST_DEPTH + 1, W) blocks that so many last stages of a kind hold
    whole_rate: float  # of all GPUs at their best, in blocks per ms over the fastest
    token: Array  # (G, TOKENS) with 0 where the episode fills in
    world: Array  # (STATES,) with 0 where the episode fills in
    samples: float  # of the global batch
    ideal_ms: float  # every GPU at its best rate on blocks alone
    sync: float  # gradient synchronisation of the whole model over ideal_ms
    blocks: int
    depth: int  # D_max
    templates: int


def scene_of(compiled: Compiled) -> tuple[Scene, Array]:
    """The scene of a compiled problem, and the summary vector of features.SUMMARY."""
    tables = compiled.tables
    types, kinds = tables.gpu_real.shape[1], tables.kind_int.shape[1]
    node_gpu, node_gpus = tables.node_int[GPU], tables.node_int[NODE_GPUS]
    blocks = int(tables.blocks)
    mix = tables.before[-1] / blocks  # share of each kind of block
    widest = int(node_gpus.max())
    kind = np.full((types, LEVELS), -1, np.int64)
    level_of = np.full(kinds, -1, np.int64)
    for q in range(kinds):
        tp = int(tables.kind_int[TP, q])
        if tp & (tp - 1) == 0 and tp <= min(widest, 1 << (LEVELS - 1)) and _usable(tables, q):
            level_of[q] = tp.bit_length() - 1
            kind[tables.kind_int[KIND_GPU, q], level_of[q]] = q
    has = kind >= 0
    least = np.where(has.any(axis=1), has.argmax(axis=1), -1)
    gpus = np.bincount(node_gpu, node_gpus, types).astype(np.int64)
    largest = np.array([node_gpus[node_gpu == g].max() for g in range(types)])
    block_ms = _mixed(tables.block[MS], mix)  # (P, Q, B, X)
    per_sample = block_ms / tables.size[None, None, :, None]
    rate = np.zeros(kinds)
    for q in range(kinds):
        found = per_sample[:, q][np.isfinite(per_sample[:, q])]
        if len(found):
            rate[q] = 1.0 / (found.min() * tables.kind_int[TP, q])
    best_rate = np.array(
        [max((rate[q] for q in kind[g] if q >= 0), default=0.0) for g in range(types)]
    )
    fastest = max(best_rate.max(), 1e-30)
    whole_rate = max(float((gpus * best_rate).sum()), 1e-30)
    ideal_ms = tables.global_batch * blocks / whole_rate
    fit = _fits(tables, kinds, mix)
    gradients = tables.gradient_embedding + tables.gradient_head
    gradients += float(tables.gradient.sum(axis=0) @ tables.before[-1])
    nic = np.array([np.median(tables.node_real[NIC][node_gpu == g]) for g in range(types)])
    card = max(float(np.median(tables.node_real[NIC])), 1e-30)
    sync = min(2.0 * gradients / card / ideal_ms, 4.0)
    head_ms, quickest = _least(tables.end[HEAD, MS]), _least(per_sample)
    world, summary = _world(tables, gpus, best_rate / fastest, fit, kind, least, sync)
    world[14] = min(head_ms / quickest, 8.0) / 8.0 if quickest > 0 else 0.0
    token = np.zeros((types, TOKENS))
    for g in range(types):
        if least[g] < 0:
            continue
        low, high = kind[g, least[g]], kind[g][has[g]][-1]
        token[g, 0] = gpus[g] / gpus.sum()
        token[g, 3] = best_rate[g] / fastest
        token[g, 4] = np.log(max(best_rate[g] / fastest, 1e-3)) / 2
        token[g, 5] = fit[WITHIN, low, 1, -1] / blocks
        token[g, 6] = fit[WITHIN, low, 8, -1] / blocks
        token[g, 7] = fit[WITHIN, high, 1, -1] / blocks
        token[g, 8] = rate[high] / max(best_rate[g], 1e-30)
        token[g, 9] = np.log2(largest[g]) / 3
        token[g, 14] = np.clip(np.log10(nic[g] / _CARD), -2, 2)
        bus = tables.node_real[BUS][node_gpu == g]
        known = bus[np.isfinite(bus)]
        token[g, 15] = np.clip(np.log10(known.max() / _BUS), -2, 2) if len(known) else 0
        block_ms = 1 / max(rate[low] * tables.kind_int[TP, low], 1e-30)
        token[g, 16] = min(float(tables.gpu_real[HOST, g]) / block_ms, 4) / 4
        token[g, 17] = min(2.0 * gradients / max(nic[g], 1e-30) / ideal_ms, 4) / 4
    scene = Scene(
        kind=kind,
        type_int=np.array([least, gpus, largest], np.int64),
        kind_int=np.array([tables.kind_int[KIND_GPU], level_of], np.int64),
        rate=rate / fastest,
        best_rate=best_rate / fastest,
        fit=fit,
        tail=_tails(fit),
        whole_rate=whole_rate / fastest,
        token=token,
        world=world,
        samples=float(tables.global_batch),
        ideal_ms=float(ideal_ms),
        sync=float(sync),
        blocks=blocks,
        depth=min(blocks, MOST_DEPTH, int(gpus.sum())),
        templates=min(MOST_TEMPLATES, int(gpus.sum())),
    )
    return scene, summary


def ends_of(stage: Array, depth: Array) -> Array:
    """Which rows of `fit` hold for stages of templates of these depths."""
    return (stage == 0) * FIRST + (stage == depth - 1) * LAST


def _least(figures: Array) -> float:
    """The least known figure, 0 where none is known."""
    known = figures[np.isfinite(figures)]
    return float(known.min()) if len(known) else 0.0


def _usable(tables: Any, q: int) -> bool:
    pools = [p for p in range(len(tables.pool_ok)) if tables.pool_ok[p, q]]
    return bool(pools) and bool(np.isfinite(tables.block[MS][pools, q]).any())


def _mixed(figures: Array, mix: Array) -> Array:
    """Figures of a mean block; NaN where a kind of block that the model has lacks a row."""
    return (np.where(mix > 0, figures, 0.0) * mix).sum(axis=-1)


def _fits(tables: Any, kinds: int, mix: Array) -> Array:
    state, kept = _mixed(tables.block[STATE], mix), _mixed(tables.block[ACTIVATION], mix)
    transient = np.where(mix > 0, tables.block[TRANSIENT], 0.0).max(axis=-1)
    shards = tables.tile[EP] * tables.tile[ETP]
    spreads = 1 + int(np.log2(shards.max()))
    fit = np.zeros((4, kinds, MOST_DEPTH + 1, spreads))
    flight = np.arange(1, MOST_DEPTH + 1)
    ends: tuple[tuple[int, ...], ...] = ((), (EMBEDDING,), (HEAD,), (EMBEDDING, HEAD))
    for q in range(kinds):
        limit = tables.pool_limit - tables.gpu_real[FRAMEWORK, tables.kind_int[KIND_GPU, q]]
        for end, layers in enumerate(ends):
            held = saved = np.zeros((len(limit), 1))  # by pool, then micro-batch size
            once = transient[:, q]
            for layer in layers:
                alone = end == ALONE and layer == HEAD
                held = held + tables.end[layer, STATE_ALONE if alone else STATE, :, q]
                saved = saved + tables.end[layer, ACTIVATION, :, q]
                once = np.maximum(once, tables.end[layer, TRANSIENT, :, q][:, :, None])
            room = (limit[:, None, None] - once - held[:, :, None])[..., None]
            room = room - saved[:, :, None, None] * flight
            blocks = np.floor(room / (state[:, q][..., None] + kept[:, q][..., None] * flight))
            most = np.where(np.isfinite(blocks), blocks, 0.0).max(axis=(0, 1))  # (X, in flight)
            for w in range(spreads):
                allowed = most[shards <= 1 << w]
                if len(allowed):
                    fit[end, q, 1:, w] = np.clip(allowed.max(axis=0), 0, tables.blocks)
    return fit


def _tails(fit: Array) -> Array:
    """Blocks that the last j stages hold where all are of one kind, (Q, MOST_DEPTH + 1, W)."""
    each = fit[WITHIN].copy()
    each[:, 1] = fit[LAST, :, 1]  # the last stage of all, beside the head
    return np.asarray(each.cumsum(axis=1))


def _world(
    tables: Any, gpus: Array, rate: Array, fit: Array, kind: Array, least: Array, sync: float
) -> tuple[Array, Array]:
    total = float(gpus.sum())
    blocks = float(tables.blocks)
    sizes = tables.node_int[NODE_GPUS].astype(float)
    uneven = float(sizes.std() / sizes.mean())
    fit = fit[WITHIN, :, :, -1]
    times = sum(gpus[g] * fit[kind[g, least[g]], 4] for g in range(len(gpus)) if least[g] >= 0)
    fits = float(np.clip(np.log2(max(times, 1e-3) / blocks), -4, 8)) / 5
    moe = float(tables.experts > 1)
    world = np.zeros(STATES)
    world[0] = np.log2(total) / 10
    world[1] = len(gpus) / 6
    world[2] = uneven
    world[6] = np.log2(blocks) / 7
    world[7] = np.clip(np.log2(tables.global_batch / total) / 5, -2, 2)
    world[8] = fits
    world[9] = sync / 4
    world[21] = moe
    shares = np.sort(gpus / total)[::-1]
    top = np.zeros(3)
    top[: min(3, len(shares))] = shares[:3]
    slow = rate[rate > 0]
    summary = np.array(
        [
            np.log2(total) / 10,
            len(gpus) / 6,
            uneven,
            *top,
            float((shares**2).sum()),
            np.log(slow.max() / slow.min()) / 2 if len(slow) else 0.0,
            np.log(max(float((gpus * rate).sum()) / total, 1e-3)),
            fits,
            np.log2(blocks) / 7,
            sync / 4,
            moe,
        ]
    )
    return world, summary
