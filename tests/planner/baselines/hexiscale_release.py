"""The case on which HexiScale's released planner was run, with its formulas as inputs.

Llama-2 on 3 A100, 3 RTX 4090 and 2 RTX 3090, one machine of each. Units as there: 1 TFLOP is
1024^4, 1 GB is 1024^3; a time is forward and backward in one, with activation recomputation, fp16.
"""

from __future__ import annotations

import numpy as np

from planner.baselines.hexiscale.inputs import Inputs, LayerTimes, TimesKey

TERA, GIB = 1024.0**4, 1024.0**3
A100, RTX_4090, RTX_3090 = range(3)
TFLOPS = (312.0, 165.2, 80.0)
MEMORY_GIB = (80.0, 24.0, 24.0)
INTRA_GB_PER_S = (200.0, 2.0, 2.0)
COUNTS = (3, 3, 2)
SEQ, BYTES, VOCABULARY = 4096, 2, 32000
LLAMA_7B, LLAMA_13B = (32, 4096), (40, 5120)  # layers, hidden


def compute_s(model: tuple[int, int], gpu: int, tp: int, micro_batch: int) -> float:
    layers, hidden = model
    lengths = 1 + SEQ / (6 * hidden) + VOCABULARY / (16 * layers * hidden)
    flops = 96 * micro_batch * SEQ * hidden**2 * lengths
    return flops / (TFLOPS[gpu] * TERA * tp)


def tp_comm_s(model: tuple[int, int], gpu: int, tp: int, micro_batch: int) -> float:
    nbytes = micro_batch * SEQ * model[1] * BYTES
    return 12 * (tp - 1) * nbytes / (tp * INTRA_GB_PER_S[gpu] * GIB)


def stage_gib(
    model: tuple[int, int], layers: int, tp: int, micro_batch: int, first: bool, last: bool
) -> tuple[float, float]:
    """(parameters with gradients and optimizer, activations) of one GPU."""
    hidden = model[1]
    parameters = 12 * layers * hidden**2 / tp
    parameters += last * (hidden + VOCABULARY * hidden) + first * hidden * (VOCABULARY + SEQ)
    activations = micro_batch * SEQ * hidden * (layers / tp + 2)
    return parameters * BYTES * 4 / GIB, activations * BYTES / GIB


def inputs(
    model: tuple[int, int], inter_gb_per_s: float = 0.5, micro_batches: tuple[int, ...] = (2,)
) -> Inputs:
    layers, hidden = model
    gpu = np.repeat(np.arange(3), COUNTS)
    bandwidth = np.full((len(gpu), len(gpu)), inter_gb_per_s * GIB / 1000)
    for a in range(len(gpu)):
        for b in range(len(gpu)):
            if gpu[a] == gpu[b]:
                bandwidth[a, b] = INTRA_GB_PER_S[gpu[a]] * GIB / 1000
    times = {
        TimesKey(t, tp, b): LayerTimes(
            1000 * (compute_s(model, t, tp, b) + tp_comm_s(model, t, tp, b)), 0.0, 0.0
        )
        for t in range(3)
        for tp in (1, 2, 4, 8)
        for b in micro_batches
    }

    def most_blocks(t: int, tp: int, b: int, stage: int, depth: int, m: int) -> int:
        ends = (stage == 0, stage == depth - 1)
        found = 0
        while found < layers and sum(stage_gib(model, found + 1, tp, b, *ends)) <= MEMORY_GIB[t]:
            found += 1
        return found

    return Inputs(
        blocks=layers,
        global_batch=24,
        micro_batches=micro_batches,
        gpu=gpu,
        node=gpu,
        bandwidth=bandwidth,
        power=np.array(TFLOPS)[gpu],
        memory=np.array(MEMORY_GIB)[gpu],
        times=times,
        most_blocks=most_blocks,
        sent_bytes=lambda b: float(b * SEQ * hidden * BYTES),
        gradient_bytes=12.0 * hidden**2 * BYTES,
    )
