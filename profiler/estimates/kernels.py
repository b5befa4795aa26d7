"""Time of one kernel from its shape: matrix products, attention, memory-bound operators."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import NamedTuple

from profiler.calibration import AttentionConstants, calibration
from profiler.estimates.devices import Device
from specs.workload import DType

TILE = 128  # rows and columns of a matrix product that one thread block computes


class Gemm(NamedTuple):
    """A matrix product: (m x k) times (k x n)."""

    m: int
    n: int
    k: int


class Attention(NamedTuple):
    """Causal attention of one rank: sequences, their length, heads, and sizes of one head.

    key_dim: of queries and keys; value_dim: of values and outputs.
    """

    batch: int
    seq_len: int
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int


def wave_factor(blocks: int, sms: int) -> float:
    """How much longer thread blocks take because the last wave does not fill the card, at least 1.

    ceil(blocks / sms) * sms / blocks: one block alone takes as long as a full wave.
    """
    return max(1.0, ceil(blocks / sms) * sms / blocks)


def gemm_ms(device: Device, product: Gemm, dtype: DType) -> float:
    """Time of a matrix product, in ms.

    launch + (compute^p + memory^p)^(1/p), a smooth maximum of compute = 2mnk / (peak * eff_compute)
    * wave_factor^wave_exp * (1 + k_half / k) and memory = bytes of all three matrices
    / (bandwidth * eff_mem). Source: six-constant form of profiler/calibration/README.md, 5 to 8 %
    median error held out.
    """
    m, n, k = product
    fit = device.gemm
    wave = wave_factor(ceil(m / TILE) * ceil(n / TILE), device.sms)
    compute = 2 * m * n * k / (device.peak_flop_per_ms(dtype) * fit.eff_compute)
    compute *= wave**fit.wave_exp * (1 + fit.k_half / k)
    nbytes = dtype.bytes * (m * k + k * n + m * n)
    memory = nbytes / (device.memory_bytes_per_ms * fit.eff_mem)
    p = fit.norm_p
    # Scaled by the larger one, so that no power overflows.
    larger, smaller = max(compute, memory), min(compute, memory)
    return float(fit.launch_ms + larger * (1 + (smaller / larger) ** p) ** (1 / p))


def gemm_backward_ms(device: Device, product: Gemm, dtype: DType) -> float:
    """Time of the two products of a matrix product's backward, in ms: (m, k, n) and (n, k, m)."""
    m, n, k = product
    return gemm_ms(device, Gemm(m, k, n), dtype) + gemm_ms(device, Gemm(n, k, m), dtype)


def gemms_ms(device: Device, products: Iterable[Gemm], dtype: DType) -> tuple[float, float]:
    """Forward and backward time of matrix products one after the other, in ms."""
    listed = list(products)
    return (
        sum(gemm_ms(device, product, dtype) for product in listed),
        sum(gemm_backward_ms(device, product, dtype) for product in listed),
    )


def _head_efficiency(fit: AttentionConstants, head_dim: float) -> float:
    """Fraction of peak at a head size: linear between 64 and 128, constant outside."""
    share = min(1.0, max(0.0, (head_dim - 64) / 64))
    return fit.eff_d64 + share * (fit.eff_d128 - fit.eff_d64)


def flash_attention_ms(device: Device, shape: Attention, dtype: DType) -> tuple[float, float]:
    """Forward and backward time of causal flash attention, in ms.

    Forward: launch + max(2 b h s^2 d / (peak * eff) * (1 + s_half / s) * wave_factor^wave_exp,
    bytes / (bandwidth * eff_mem)), d the mean of key and value size. Backward: 2.5 times the
    operations and bytes at a lower efficiency. Source: profiler/calibration/README.md.
    Raises ValueError for a device without a fit.
    """
    fit = device.attention
    if fit is None:
        raise ValueError(f"no flash attention was fitted for {device.gpu.name}")
    head_dim = (shape.key_dim + shape.value_dim) / 2
    s = shape.seq_len
    wave = wave_factor(shape.batch * shape.heads * ceil(s / TILE), device.sms)
    compute = 2 * shape.batch * shape.heads * s * s * head_dim
    compute /= device.peak_flop_per_ms(dtype) * _head_efficiency(fit, head_dim)
    compute *= (1 + fit.s_half / s) * wave**fit.wave_exp
    memory = _attention_bytes(shape, dtype) / (device.memory_bytes_per_ms * fit.eff_mem)
    ratio = calibration().backward_flop_ratio
    return (
        fit.launch_ms + max(compute, memory),
        fit.launch_ms + max(ratio * compute / device.attention_backward, ratio * memory),
    )


def _attention_bytes(shape: Attention, dtype: DType) -> float:
    """Queries, keys, values and outputs, once each."""
    per_token = shape.heads * (shape.key_dim + shape.value_dim)
    per_token += shape.kv_heads * (shape.key_dim + shape.value_dim)
    return float(dtype.bytes * shape.batch * shape.seq_len * per_token)


def unfused_attention_ms(device: Device, shape: Attention, dtype: DType) -> tuple[float, float]:
    """Forward and backward time of attention that writes its scores to memory, in ms.

    Per score 13 bytes forward and 20 backward in 16 bit at 0.80 of bandwidth, and 2 and 4
    products over all scores (the causal half is not skipped) at half of peak. Source: the
    2021-style model of profiler/calibration/README.md.
    """
    known = calibration()
    scores = float(shape.batch * shape.heads) * shape.seq_len**2
    flops = 2 * scores * (shape.key_dim + shape.value_dim)
    rate = device.peak_flop_per_ms(dtype) * known.score_matmul_peak
    width = dtype.bytes / 2
    return (
        memory_op_ms(device, known.score_forward_bytes * scores * width) + flops / rate,
        memory_op_ms(device, known.score_backward_bytes * scores * width) + 2 * flops / rate,
    )


def memory_op_ms(device: Device, nbytes: float) -> float:
    """Time of a memory-bound operator, in ms: launch + nbytes / (0.80 of bandwidth)."""
    known = calibration()
    return known.memory_launch_ms + nbytes / (device.memory_bytes_per_ms * known.memory_efficiency)
