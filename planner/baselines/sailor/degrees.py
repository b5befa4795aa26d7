"""Where Sailor cuts the model, and which TP and DP degrees it tries (heuristics H1 to H4)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from planner.baselines.sailor.inputs import Figures, FiguresKey, Inputs
from specs.errors import PlanError

Ints = NDArray[np.int64]
SPEEDUP = 1.5  # a step up in TP must shorten a stage by this factor


def stage_starts(layers: int, depth: int) -> Ints:
    """First layer of every stage: floor(layers / depth) each, the rest one each to the last."""
    size, more = divmod(layers, depth)
    sizes = [size + (i >= depth - more) for i in range(depth)]
    return np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64)


def peers_to_try(global_batch: int, micro_batch: int, below: int, falling: bool) -> list[int]:
    """D = 1 and every D below a limit at which ceil(batch / (micro-batch * D)) changes."""
    found = [1]
    current = -(-global_batch // micro_batch)
    for peers in range(2, below):
        micro_batches = -(-global_batch // (micro_batch * peers))
        if micro_batches != current:
            found.append(peers)
            current = micro_batches
    return found[::-1] if falling else found


def fitting_degrees(inputs: Inputs, gpu: int, micro_batch: int, starts: Ints) -> Ints:
    """The smallest TP degree whose memory holds each stage, 0 where none does (H2).

    Memory of stage i of P: what its layers hold all the time, what they keep of one micro-batch
    times P - i, and the constant. Shape (P,).
    """
    depth = len(starts)
    smallest = np.zeros(depth, np.int64)
    in_flight = depth - np.arange(depth)
    for tp in reversed(inputs.tps[gpu]):
        figures = inputs.figures.get(FiguresKey(gpu, micro_batch, tp))
        if figures is None:
            continue
        held = np.add.reduceat(figures.state_bytes, starts)
        kept = np.add.reduceat(figures.kept_bytes, starts) * in_flight
        fits = held + kept + figures.constant_bytes <= inputs.capacity_bytes[gpu]
        smallest[fits] = tp
    return smallest


def scaling_degrees(
    inputs: Inputs, gpu: int, micro_batch: int, starts: Ints, release: bool
) -> Ints:
    """The TP degree up to which every step shortens a stage by SPEEDUP. Shape (P,).

    release: a degree that was not profiled counts as taking no time, as in the released code.
    """
    best = np.zeros(len(starts), np.int64)
    before = np.full(len(starts), np.inf)
    going = np.ones(len(starts), bool)
    for tp in inputs.tps[gpu]:
        figures = inputs.figures.get(FiguresKey(gpu, micro_batch, tp))
        if _profiled(figures):
            assert figures is not None
            times = np.add.reduceat(figures.layer_ms, starts)
        elif release:
            times = np.zeros(len(starts))
        else:
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            going &= before / times >= SPEEDUP
        best[going] = tp
        before = np.where(going, times, before)
    return best


def _profiled(figures: Figures | None) -> bool:
    """Whether times are known; the release has sizes of degrees that it has no times of."""
    return figures is not None and bool(np.all(np.isfinite(figures.layer_ms)))


def degree_choices(inputs: Inputs, micro_batch: int, starts: Ints, release: bool) -> Iterator[Ints]:
    """TP degrees by type and stage, shape (types, P), 0 where a type cannot hold the stage.

    Every type runs at its fitting degree or at its scaling degree where that is larger; all
    combinations. release: of several types the first takes its fitting degree and the others the
    larger one, and a type that cannot hold one stage is not used at all.
    """
    ways: list[list[Ints]] = []
    present = inputs.present
    for t in range(len(inputs.types)):
        fitting = fitting_degrees(inputs, t, micro_batch, starts)
        wide = np.maximum(fitting, scaling_degrees(inputs, t, micro_batch, starts, release))
        wide[fitting == 0] = 0
        if release:
            chosen = fitting if t == 0 and len(present) > 1 else wide
            if not np.all(fitting > 0):
                chosen = np.zeros_like(fitting)
            _refuse_unprofiled(inputs, t, micro_batch, chosen)
            ways.append([chosen])
        elif t not in present:
            ways.append([np.zeros_like(fitting)])
        else:
            ways.append([fitting] if np.array_equal(fitting, wide) else [fitting, wide])
    for chosen_ways in product(*ways):
        choice = np.stack(chosen_ways)
        if np.all(np.any(choice > 0, axis=0)):
            yield choice


def _refuse_unprofiled(inputs: Inputs, gpu: int, micro_batch: int, degrees: Ints) -> None:
    for tp in set(degrees.tolist()) - {0}:
        if not _profiled(inputs.figures.get(FiguresKey(gpu, micro_batch, tp))):
            raise PlanError(
                f"the release crashes here: no times of {inputs.types[gpu]} at tp={tp} "
                f"micro_batch={micro_batch}"
            )
