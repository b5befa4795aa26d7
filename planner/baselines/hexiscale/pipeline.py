"""One pipeline of HexiScale: its stages, their layers, and what it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations

import numpy as np
from numpy.typing import NDArray

from planner.baselines.hexiscale.inputs import Inputs, TimesKey

Floats = NDArray[np.float64]
Devices = tuple[int, ...]

# TP degrees that so many GPUs of one machine may be split into, as released.
SPLITS: dict[int, tuple[tuple[int, ...], ...]] = {
    1: ((1,),),
    2: ((2,), (1, 1)),
    3: ((2, 1), (1, 1, 1)),
    4: ((4,), (2, 2), (2, 1, 1)),
    5: ((4, 1), (2, 2, 1)),
    6: ((4, 2), (2, 2, 2)),
    7: ((4, 2, 1), (2, 2, 2, 1)),
    8: ((8,), (4, 4), (4, 2, 2)),
}


@dataclass(frozen=True)
class Pipe:
    """Devices of every stage, and its blocks."""

    stages: tuple[Devices, ...]
    blocks: tuple[int, ...]


def layer_quota(memory: Sequence[float], blocks: int) -> list[int]:
    """Blocks of every stage, one at a time in turn while its share stays within that of its memory.

    Once every stage would exceed its share, the rest goes to the stages with most memory first, one
    each. memory: of each stage, any unit.
    """
    count, total = len(memory), sum(memory)
    quota = [0] * count
    over = [False] * count
    ranking = np.argsort(memory)[::-1].tolist()
    left, i, rank = blocks, 0, 0
    while left:
        s = i % count
        over[s] = (quota[s] + 1) / blocks > memory[s] / total
        if all(over):
            quota[ranking[rank % count]] += 1
            rank += 1
            left -= 1
        elif not over[s]:
            quota[s] += 1
            left -= 1
        i += 1
    return quota


def gpipe_ms(stage_ms: Sequence[float], micro_batches: int) -> float:
    """Sum over the m + p - 1 columns of a pipeline of the slowest stage at work in each.

    stage_ms: forward and backward of one micro-batch with the send that follows, shape (p,).
    """
    depth = len(stage_ms)
    ramp = min(depth, micro_batches) - 1
    total = 0.0
    rising = falling = 0.0
    for column in range(ramp):
        rising = max(rising, stage_ms[column])
        falling = max(falling, stage_ms[depth - 1 - column])
        total += rising + falling
    if micro_batches >= depth:
        return total + (micro_batches - depth + 1) * max(stage_ms)
    for first in range(depth - micro_batches + 1):
        total += max(stage_ms[first : first + micro_batches])
    return total


def send_ms(inputs: Inputs, sender: Devices, receiver: Devices, micro_batch: int) -> float:
    """Both directions of one activation between two stages.

    2 * the least over (d, e) of bytes / B_de + the sum over the receiver's other devices f of
    bytes / (TP B_ef): one device sends, the one that receives spreads it in its TP group. The
    devices of a stage share a machine, so any pair is the least.
    """
    nbytes = inputs.sent_bytes(micro_batch)
    took = nbytes / inputs.bandwidth.item(sender[0], receiver[0])
    tp = len(receiver)
    if tp > 1:
        took += (tp - 1) * nbytes / (tp * inputs.bandwidth.item(receiver[0], receiver[1]))
    return 2 * took


def stage_times(
    inputs: Inputs, stages: Sequence[Devices], blocks: Sequence[int], micro_batch: int
) -> list[float]:
    """Each stage's layers and the send that follows; infinite for times that are not known."""
    found = []
    last = len(stages) - 1
    for s, (devices, n) in enumerate(zip(stages, blocks, strict=True)):
        key = TimesKey(int(inputs.gpu[devices[0]]), len(devices), micro_batch)
        times = inputs.times.get(key)
        if times is None:
            return [np.inf] * len(stages)
        took = n * times.block + (s == 0) * times.first + (s == last) * times.last
        if s < last:
            took += send_ms(inputs, devices, stages[s + 1], micro_batch)
        found.append(took)
    return found


def split_machine(
    inputs: Inputs, devices: Devices, micro_batch: int, m: int, widest: bool = False
) -> list[Devices]:
    """TP groups of devices of one machine: the split that alone would run the model fastest.

    Blocks in proportion to devices, the rest to the last group. More than eight devices are split
    eight by eight. widest: only the split with the fewest groups that has times.
    """
    same = tuple(devices[i] - devices[0] for i in range(len(devices)))
    key = (int(inputs.node[devices[0]]), same, micro_batch, m, widest)
    if key not in inputs.splits:
        found = _split(inputs, devices, micro_batch, m, widest)
        inputs.splits[key] = [tuple(d - devices[0] for d in group) for group in found]
    return [tuple(d + devices[0] for d in group) for group in inputs.splits[key]]


def _split(
    inputs: Inputs, devices: Devices, micro_batch: int, m: int, widest: bool
) -> list[Devices]:
    if len(devices) > max(SPLITS):
        eight = max(SPLITS)
        first = split_machine(inputs, devices[:eight], micro_batch, m, widest)
        return first + split_machine(inputs, devices[eight:], micro_batch, m, widest)
    best: tuple[float, list[Devices]] | None = None
    for degrees in SPLITS[len(devices)]:
        groups, at = [], 0
        for tp in degrees:
            groups.append(devices[at : at + tp])
            at += tp
        blocks = [inputs.blocks * tp // len(devices) for tp in degrees]
        blocks[-1] += inputs.blocks - sum(blocks)
        took = gpipe_ms(stage_times(inputs, groups, blocks, micro_batch), m)
        if took < np.inf and (best is None or (took < best[0] and not widest)):
            best = (took, groups)
    return [(device,) for device in devices] if best is None else best[1]


def block_orders(inputs: Inputs, blocks: Sequence[Devices]) -> list[list[Devices]]:
    """The orders with the highest total bandwidth between neighbours; most often several tie."""

    def width(order: Sequence[Devices]) -> float:
        return sum(float(inputs.bandwidth[np.ix_(a, b)].sum()) for a, b in pairwise(order))

    orders = [(width(order), list(order)) for order in permutations(blocks)]
    most = max(total for total, _ in orders)
    return [order for total, order in orders if total >= most * (1 - 1e-9)]


def pipe_of(inputs: Inputs, blocks: Sequence[Devices], micro_batch: int, m: int) -> Pipe | None:
    """The fastest pipeline over blocks of devices; None where stages have no room for their layers.

    A single block is ordered by its GPU types. Of the orders that tie the fastest counts. Where
    layers in proportion to memory do not fit, they are dealt by how many fit; where the splits of
    machines that are fastest have no room, the widest ones are tried: fewer stages keep less.
    """
    if len(blocks) == 1:
        types = sorted({int(inputs.gpu[d]) for d in blocks[0]})
        blocks = [tuple(d for d in blocks[0] if inputs.gpu[d] == t) for t in types]
    for widest, by_room in ((False, False), (False, True), (True, False), (True, True)):
        found: tuple[float, Pipe] | None = None
        for order in block_orders(inputs, blocks):
            pipe = _pipe(inputs, order, micro_batch, m, widest, by_room)
            if pipe is None:
                continue
            took = gpipe_ms(stage_times(inputs, pipe.stages, pipe.blocks, micro_batch), m)
            if found is None or took < found[0]:
                found = (took, pipe)
        if found is not None:
            return found[1]
    return None


def _pipe(
    inputs: Inputs,
    blocks: Sequence[Devices],
    micro_batch: int,
    m: int,
    widest: bool,
    by_room: bool,
) -> Pipe | None:
    """The pipeline in one order; a stage that gets no layer is left out.

    by_room: layers in proportion to how many fit instead of to memory.
    """
    groups: list[Devices] = []
    for devices in blocks:
        for node in sorted({int(inputs.node[d]) for d in devices}):
            here = tuple(d for d in devices if inputs.node[d] == node)
            groups += split_machine(inputs, here, micro_batch, m, widest)
    memory = [float(sum(inputs.memory[d] for d in devices)) for devices in groups]
    if by_room:
        memory = [float(n) for n in _room(inputs, groups, micro_batch, m)]
        if sum(memory) < inputs.blocks:
            return None
    quota = layer_quota(memory, inputs.blocks)
    stages = [devices for devices, n in zip(groups, quota, strict=True) if n]
    counts = [n for n in quota if n]
    room = _room(inputs, stages, micro_batch, m)
    if any(n > most for n, most in zip(counts, room, strict=True)):
        return None
    return Pipe(tuple(stages), tuple(counts))


def _room(inputs: Inputs, stages: Sequence[Devices], micro_batch: int, m: int) -> list[int]:
    """Blocks that fit on each stage."""
    depth = len(stages)
    return [
        inputs.most_blocks(int(inputs.gpu[devices[0]]), len(devices), micro_batch, s, depth, m)
        for s, devices in enumerate(stages)
    ]


def sync_ms(inputs: Inputs, pipes: Sequence[Pipe]) -> float:
    """Gradients of all blocks among all pipelines, one block after the other.

    The devices that hold a block are aligned, those of the smaller TP degrees repeated; for each of
    the largest over the smallest degree groups of n devices: 2 * the most over i of the sum over
    j != i of bytes / (smallest degree * n * B_ij).
    """
    if len(pipes) == 1:
        return 0.0
    owners = []
    for pipe in pipes:
        owners.append([s for s, n in enumerate(pipe.blocks) for _ in range(n)])
    known: dict[tuple[int, ...], float] = {}
    total = 0.0
    for block in range(inputs.blocks):
        key = tuple(owner[block] for owner in owners)
        if key not in known:
            stages = [pipe.stages[s] for pipe, s in zip(pipes, key, strict=True)]
            known[key] = _block_sync_ms(inputs, stages)
        total += known[key]
    return total


def _block_sync_ms(inputs: Inputs, stages: Sequence[Devices]) -> float:
    degrees = [len(devices) for devices in stages]
    most, least = max(degrees), min(degrees)
    total = 0.0
    for shard in range(most // least):
        group = [devices[shard // (most // len(devices))] for devices in stages]
        slow = 1 / inputs.bandwidth[np.ix_(group, group)]
        np.fill_diagonal(slow, 0.0)
        total += 2 * inputs.gradient_bytes / (least * len(group)) * float(slow.sum(axis=1).max())
    return total
