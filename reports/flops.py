"""Arithmetic of one layer, to set its time beside a datasheet."""

from __future__ import annotations

from specs.layer import LayerKind, LayerType
from specs.workload import Recompute


def forward_flops(layer: LayerType, micro_batch: int, seq_len: int) -> float:
    """Multiplications and additions of one forward pass of the whole layer.

    2 * weights * tokens for what is multiplied with every token (of routed experts, the top_k that
    a token visits), plus 4 * tokens * S * width of attention for scores and values over the full
    S x S matrix, as Megatron counts (Narayanan et al. 2021, appendix). An embedding looks up: 0.
    Layers that are known only by their number of weights count without attention.
    """
    if layer.kind is LayerKind.EMBEDDING:
        return 0.0
    tokens = float(micro_batch * seq_len)
    weights = float(layer.parameters)
    if layer.expert_parameters:
        weights += layer.expert_parameters * layer.shape("top_k") / layer.shape("experts")
    return 2 * weights * tokens + 2 * tokens * seq_len * _attention_width(layer)


def _attention_width(layer: LayerType) -> float:
    """Summed width of what scores and values are made of: queries plus values, over all heads."""
    shapes = dict(layer.shapes)
    if "heads" not in shapes:
        return 0.0
    heads = layer.shape("heads")
    if shapes.get("attention") == "mla":
        query = layer.shape("nope_dim") + layer.shape("rope_dim")
        return float(heads * (query + layer.shape("value_dim")))
    return 2.0 * heads * layer.shape("head_dim")


def achieved_tflops(
    layer: LayerType,
    *,
    tp: int,
    micro_batch: int,
    seq_len: int,
    recompute: Recompute,
    compute_ms: float,
) -> float | None:
    """TFLOP/s of one rank in forward and backward; None for a layer without arithmetic.

    compute_ms: forward + backward without collectives. A backward is two forwards; with full
    recomputation the forward runs twice. One of tp ranks does 1/tp of the work.
    """
    work = forward_flops(layer, micro_batch, seq_len)
    passes = 4 if recompute is Recompute.FULL else 3
    if work == 0 or compute_ms <= 0:
        return None
    return passes * work / tp / (compute_ms / 1000) / 1e12
