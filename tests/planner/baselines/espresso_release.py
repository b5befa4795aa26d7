"""The example of Espresso's release: job, GPU types, and the formulas of its cost tool.

Facts of the public repository icloud-ecnu/Espresso (one commit, c41e195): open_llama_3b_v2, four
GPU types, and what its analytical tool computes for them. Written anew; nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.baselines.espresso.allocator import Allocator, Question
from planner.baselines.espresso.placer import Job

GIB = 1024**3
BLOCKS, HIDDEN, SEQ, VOCABULARY = 26, 3200, 3000, 32000
BATCH, MICRO_BATCHES, SLO_MS = 64, 4, 100_000.0
NETWORK = 2.5 * GIB  # bit/s, of every gradient all-reduce
STATE_BYTES = 2 + 12 + 4
FIT = {1500: (1.3810, 1.0666), 1800: (1.3685, 1.2096)}  # seq_len: factor, GiB


@dataclass(frozen=True)
class Gpu:
    """Figures of one type; placer_efficiency: share of peak FLOPS, where the placer walks."""

    name: str
    usd_per_hour: float
    tflops: float
    gib: float
    hbm_gb_per_s: float
    network_gbit_per_s: float
    placer_efficiency: float
    quota: int


GPUS = (
    Gpu("A30", 4, 165, 24, 933, 2.5, 0.43, 16),
    Gpu("A6000", 6, 154.8, 48, 768, 2.5, 0.47, 8),
    Gpu("A4000", 2, 76, 16, 448, 2.5, 0.55, 16),
    Gpu("3090", 2.5, 142, 24, 936, 1, 0.45, 16),
)
EFFICIENCY, HBM_EFFICIENCY = 0.55, 0.5

block_parameters = 12 * HIDDEN**2 + 2 * HIDDEN
embedding_parameters = VOCABULARY * HIDDEN


def block_s(gpu: Gpu, samples: int, efficiency: float) -> float:
    """Forward of one block: products at a share of peak, two norms in fp32 over device memory."""
    activations = samples * SEQ * HIDDEN
    flops = 24 * activations * HIDDEN + 4 * activations * SEQ
    norms = 2 * 4 * activations / (gpu.hbm_gb_per_s * HBM_EFFICIENCY * 1e9)
    return flops / (gpu.tflops * efficiency * 1e12) + norms


def embedding_s(gpu: Gpu) -> float:
    return VOCABULARY * HIDDEN * 2 / (gpu.hbm_gb_per_s * HBM_EFFICIENCY * 1e9)


def head_s(gpu: Gpu, samples: int) -> float:
    return 2 * SEQ * samples * VOCABULARY * HIDDEN / (gpu.tflops * EFFICIENCY * 1e12)


def stage_bytes(blocks: int, samples: int, kept: int, first: bool, last: bool) -> float:
    """Memory of a stage by the tool, its fit over sequence length applied."""
    activation = 2 * samples * SEQ * HIDDEN
    total = blocks * (STATE_BYTES * block_parameters + kept * activation)
    if first or last:
        total += 0.5 * GIB + STATE_BYTES * embedding_parameters
    if last:
        total += 2 * 2 * VOCABULARY * samples * SEQ
    (short, (a0, b0)), (long, (a1, b1)) = FIT.items()
    reach = (SEQ - short) / (long - short)
    return (a0 + reach * (a1 - a0)) * total + (b0 + reach * (b1 - b0)) * GIB


def fits(gpu: Gpu, blocks: int, samples: int, kept: int, first: bool, last: bool) -> bool:
    return stage_bytes(blocks, samples, kept, first, last) <= gpu.gib * GIB


def most_blocks(gpu: Gpu, depth: int, stage: int, samples: int) -> int:
    kept = min(depth - stage, MICRO_BATCHES)
    found = 0
    while found < BLOCKS and fits(gpu, found + 1, samples, kept, stage == 0, stage == depth - 1):
        found += 1
    return found


def even_split(depth: int) -> list[int]:
    return [BLOCKS // depth + (i < BLOCKS % depth) for i in range(depth)]


def least_gib(depth: int, samples: int) -> float:
    """Memory of the whole model, split evenly."""
    return (
        sum(
            stage_bytes(n, samples, min(depth - i, MICRO_BATCHES), i == 0, i == depth - 1)
            for i, n in enumerate(even_split(depth))
        )
        / GIB
    )


def depths(samples: int) -> tuple[int, int]:
    """Smallest and largest depth up to 8 at which an even split fits some type."""
    fitting = [
        depth
        for depth in range(1, 9)
        if any(
            all(n <= most_blocks(gpu, depth, i, samples) for i, n in enumerate(even_split(depth)))
            for gpu in GPUS
        )
    ]
    return (fitting[0], fitting[-1]) if fitting else (9, 8)


def job(depth: int, dp: int) -> Job:
    samples = BATCH // (dp * MICRO_BATCHES)

    def each(figure: Callable[[Gpu], float]) -> NDArray[np.float64]:
        return np.array([figure(gpu) for gpu in GPUS])

    def sync_ms(parameters: float) -> NDArray[np.float64]:
        return np.full(len(GPUS), 0 if dp == 1 else 1000 * parameters * 2 * 8 / NETWORK)

    def ends(figure: Callable[[Gpu], float]) -> NDArray[np.float64]:
        return np.stack([each(figure), 3 * each(figure)], axis=1)

    forward = each(lambda gpu: 1000 * block_s(gpu, samples, EFFICIENCY))
    bits = 16 * samples * SEQ * HIDDEN
    return Job(
        blocks=BLOCKS,
        micro_batches=MICRO_BATCHES,
        power=each(lambda gpu: gpu.tflops),
        forward_ms=forward,
        backward_ms=3 * forward,
        first_ms=ends(lambda gpu: 1000 * embedding_s(gpu)),
        last_ms=ends(lambda gpu: 1000 * head_s(gpu, samples)),
        send_ms=each(lambda gpu: 0.8 * (depth - 1) * bits / (gpu.network_gbit_per_s * 1e6)),
        sync_ms=sync_ms(block_parameters),
        first_sync_ms=sync_ms(embedding_parameters),
        last_sync_ms=sync_ms(embedding_parameters),
        slack_ms=2.7 * each(lambda gpu: 1000 * block_s(gpu, samples, gpu.placer_efficiency)),
        most=np.array(
            [[most_blocks(gpu, depth, i, samples) for i in range(depth)] for gpu in GPUS]
        ),
        release=True,
    )


def blocks_at_80_percent(gpu: Gpu, samples: int) -> int:
    """Blocks that fit 80 % of a type's memory beside the embedding; -1 for none, as there."""
    found = 0
    while found < BLOCKS and (
        stage_bytes(found + 1, samples, 1, True, False) < 0.8 * gpu.gib * GIB
    ):
        found += 1
    return found or -1


def question(depth: int, dp: int, memory_prune: bool) -> Question:
    """The tree as released; memory_prune: with its test of an unfinished set's memory."""
    samples = BATCH // (dp * MICRO_BATCHES)
    need_gib = least_gib(depth, samples) if memory_prune else 0.0

    def estimate(counts: Sequence[int], blocks: int) -> tuple[float, float]:
        """(USD, seconds) at 35 % of peak and the bubble of an even pipeline."""
        power = dp * sum(n * gpu.tflops for n, gpu in zip(counts, GPUS, strict=True))
        usd = sum(n * gpu.usd_per_hour for n, gpu in zip(counts, GPUS, strict=True)) / 3600
        if dp * sum(n * gpu.gib for n, gpu in zip(counts, GPUS, strict=True)) < need_gib:
            return np.inf, np.inf
        lengths = 1 + SEQ / (6 * HIDDEN)
        if blocks:
            lengths += VOCABULARY / (12 * HIDDEN * blocks)
        tflop = 72 * BATCH * blocks * SEQ * HIDDEN**2 * lengths / 1e12
        share = MICRO_BATCHES / (MICRO_BATCHES + depth - 1) * 0.35
        seconds = tflop / (share * power)
        return (seconds * usd if 1000 * seconds < SLO_MS else np.inf), seconds

    def bound(counts: Sequence[int], missing: int, types: Sequence[int]) -> float:
        found = np.inf
        for g in types:
            filled = list(counts)
            filled[g] += missing
            found = min(found, estimate(filled, BLOCKS)[0])
        return found

    def goes_on(counts: Sequence[int], best: float) -> bool:
        blocks = sum(
            n * blocks_at_80_percent(gpu, samples) for n, gpu in zip(counts, GPUS, strict=True)
        )
        usd, seconds = estimate(counts, blocks)
        return usd <= best and 1000 * seconds <= SLO_MS

    def value(counts: Sequence[int], time_ms: float) -> float:
        usd = sum(n * gpu.usd_per_hour for n, gpu in zip(counts, GPUS, strict=True))
        return usd * dp * time_ms / 1000 / 3600

    return Question(
        depth=depth,
        job=job(depth, dp),
        quota=tuple(gpu.quota // dp for gpu in GPUS),
        value=value,
        bound=bound,
        goes_on=goes_on,
        limit_ms=SLO_MS,
        from_parent=True,
    )


def run(memory_prune: bool) -> Allocator:
    allocator = Allocator()
    for dp in (1, 2, 4, 8):
        if MICRO_BATCHES * dp > BATCH:
            continue
        low, high = depths(BATCH // (dp * MICRO_BATCHES))
        for depth in range(low, high):
            allocator.search(question(depth, dp, memory_prune))
    return allocator
