"""Whether a layer row can be true: no negative figures, and no card beats its datasheet."""

from __future__ import annotations

import math

from specs.gpu import gpu_type
from specs.layer import LayerKind, LayerType
from specs.layout import tensors_of
from specs.profile import LayerProfile
from specs.workload import DType, Recompute

PEAK_TOLERANCE = 1.05  # clocks above the datasheet's boost, rounding in the file (DESIGN section 5)


def peak_tflops(gpu: str, dtype: DType) -> float | None:
    """Dense matrix peak of a GPU type in TFLOP/s, None for a `cpu`.

    16-bit: the datasheet's. fp32: half of it, the TF32 rate of Ampere and later; an upper limit
    on cards without TF32.
    """
    sheet = gpu_type(gpu).datasheet
    if sheet is None:
        return None
    return sheet.tflops / 2 if dtype is DType.FP32 else sheet.tflops


def forward_flops(layer: LayerType, tokens: int, tp: int) -> float:
    """Floating-point operations that a forward pass of one rank cannot do without.

    2 * weights * tokens / tp; of routed experts the top_k that each token visits (of a discovered
    family, whose routing is its own, none). Attention scores, norms and loss come on top, so a
    rate from this count is a lower limit of the true one. An embedding is a look-up: 0.
    """
    if layer.kind is LayerKind.EMBEDDING:
        return 0.0
    weights = float(layer.parameters)
    if layer.flag("tensors"):
        weights -= sum(
            math.prod(tensor.shape) for tensor in tensors_of(layer) if ".experts." in tensor.name
        )
    if layer.expert_parameters:
        weights += layer.expert_parameters * layer.shape("top_k") / layer.shape("experts")
    return 2.0 * weights * tokens / tp


_TIMES = ("forward_ms", "backward_ms", "comm_ms", "update_ms")
_SPREADS = ("forward_mad_ms", "backward_mad_ms", "comm_mad_ms", "update_mad_ms")
_SIZES = ("activation_bytes", "transient_bytes", "parameter_bytes", "expert_parameter_bytes")


def complaint(row: LayerProfile, layer: LayerType) -> str | None:
    """Why a row of this layer type cannot be true, or None.

    Refused are: a figure that is negative or no number, a forward pass of 0 ms, and a forward or
    backward pass above 1.05 of the card's peak (DESIGN section 5).
    """
    for name in (*_TIMES, *_SPREADS, *_SIZES):
        value = getattr(row, name)
        if value is not None and (not math.isfinite(value) or value < 0):
            return f"{name} is {value:g}, expected a number of at least 0"
    if row.forward_ms == 0:
        return "forward_ms is 0: the pass was not timed"
    if row.samples < 1:
        return f"samples is {row.samples}, expected at least 1"
    peak = peak_tflops(row.key.gpu, row.key.dtype)
    flops = forward_flops(layer, row.key.micro_batch * row.key.seq_len, row.key.tp)
    if peak is None or flops == 0:
        return None
    backward = 3 if row.key.recompute is Recompute.FULL else 2
    for name, ms, work in (
        ("forward_ms", row.forward_ms, flops),
        ("backward_ms", row.backward_ms, backward * flops),
    ):
        if ms == 0:
            return f"{name} is 0: the pass was not timed"
        rate = work / ms / 1e9  # FLOP/ms -> TFLOP/s
        if rate > PEAK_TOLERANCE * peak:
            return (
                f"{name} is {ms:g}: at least {rate:.0f} TFLOP/s, above {PEAK_TOLERANCE:g} x the "
                f"{row.key.dtype.value} peak of {row.key.gpu}, {peak:g} TFLOP/s"
            )
    return None


def median_deviation(values: list[float]) -> float:
    """Median absolute deviation; of two values half their distance.

    Raises ValueError for an empty list.
    """
    if not values:
        raise ValueError("a spread needs at least one value")
    middle = _median(values)
    return _median([abs(value - middle) for value in values])


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2
