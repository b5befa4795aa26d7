"""Memory of one micro-batch through a layer on one rank: what is kept, and the peak above."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from profiler.estimates.blocks import AttentionKernel
from profiler.estimates.shard import Shard
from specs.layer import LayerKind
from specs.workload import DType, Recompute


class Kernels(StrEnum):
    """Whose kernels a layer runs, which decides what autograd keeps.

    eager: the layers of `transformers` as the runtime runs them; RMS norms work on an fp32 copy.
    fused: norms and losses in one kernel each, as Megatron and its like have them.
    """

    EAGER = "eager"
    FUSED = "fused"


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one micro-batch: kept from forward until backward, and the peak above that."""

    activation_bytes: int
    transient_bytes: int


# Tensors of the MLP's width that an activation keeps for its backward, besides its own result,
# which the next product keeps: the input; none, as its result is enough; every step of a formula
# written out in Python.
_KEPT_BY_ACTIVATION = {"relu": 0, "gelu_new": 4, "gelu_fast": 4}
_FP32 = 4


def layer_memory(
    shard: Shard, recompute: Recompute, attention: AttentionKernel, kernels: Kernels
) -> Memory:
    """Memory of one micro-batch through any layer.

    With full recomputation a block keeps its input, and all else passes by during its backward.
    """
    kind = shard.layer.kind
    if kind is LayerKind.EMBEDDING:
        return _embedding(shard, kernels)
    if kind is LayerKind.HEAD:
        return _head(shard, kernels)
    kept = block_kept_bytes(shard, attention, kernels)
    passing = _block_transient_bytes(shard, kernels)
    if recompute is Recompute.NONE:
        return Memory(kept, passing)
    # The input itself is among what the forward keeps, unless a norm keeps its fp32 copy instead.
    copied = _copies_input(shard, kernels)
    again = kept + passing - (0 if copied else shard.activation_bytes)
    return Memory(shard.activation_bytes, again)


def _copies_input(shard: Shard, kernels: Kernels) -> bool:
    return kernels is Kernels.EAGER and shard.dtype is not DType.FP32 and _rms(shard)


def _rms(shard: Shard) -> bool:
    return shard.layer.flag("norm") == "rms"


def _norm_bytes(shard: Shard, width: int, groups: int, kernels: Kernels) -> int:
    """What one norm keeps of each token, with its result, which the product behind it keeps.

    Fused: input and result. Eager RMS: the fp32 input, its scaled copy in the run's precision, the
    result and a statistic in fp32 per group; layer norm: input, result, two statistics.
    """
    e = shard.dtype.bytes
    if kernels is Kernels.FUSED:
        return 2 * e * width
    if _rms(shard):
        return (_FP32 + 2 * e) * width + _FP32 * groups
    return 2 * e * width + 2 * _FP32 * groups


def block_kept_bytes(shard: Shard, attention: AttentionKernel, kernels: Kernels) -> int:
    """Bytes that autograd keeps of a block from forward until backward.

    Per token, in the run's precision: two norms with their results (what the projections keep),
    queries, keys, values and the attention's output, and of the MLP gate, up, activation and
    product (4 widths; 2 without a gate; fewer or more by activation). Eager adds the fp32
    statistics, the norms of heads or latents and the log-sum-exp of attention; unfused attention
    keeps its scores. Rotary positions, which all layers share, are not counted. Equal to what
    saved-tensor hooks report (tests), and with fused kernels to the closed forms of Korthikanti et
    al. (MLSys '23) without dropout masks: s b h (32 + 2 a s / h) on one rank.
    """
    e, eager = shard.dtype.bytes, kernels is Kernels.EAGER
    per_token = 2 * _norm_bytes(shard, shard.hidden, 1, kernels)
    per_token += _attention_bytes(shard, attention, kernels)
    if shard.ffn:
        per_token += e * shard.ffn * _mlp_widths(shard, kernels)
    kept = shard.tokens * per_token
    if shard.layer.kind is LayerKind.MOE_BLOCK:
        kept += _expert_bytes(shard, eager)
    if eager and _has_window(shard):
        kept += e * shard.seq_len**2  # the mask as numbers to add, one for all sequences
    return kept


def _has_window(shard: Shard) -> bool:
    window = shard.layer.flag("window")
    return isinstance(window, int) and window < shard.seq_len


def _attention_bytes(shard: Shard, attention: AttentionKernel, kernels: Kernels) -> int:
    """Bytes per token from the projections' results to the output projection's input."""
    e, local, flag = shard.dtype.bytes, shard.attention, shard.layer.flag
    eager = kernels is Kernels.EAGER
    heads, kv_heads = local.heads, local.kv_heads
    if eager and _has_window(shard):
        kv_heads = heads  # with a mask, keys and values are repeated for every head
    kept = e * heads * (local.key_dim + local.value_dim)
    if shard.is_mla:
        # Values are a view of the second projection's whole result, which so stays whole.
        shape = shard.layer.shape
        views = shape("nope_dim") + local.value_dim if eager else local.value_dim
        kept += e * heads * (local.key_dim + views)
        for rank in (shape("q_rank"), shape("kv_rank")):
            if rank:
                kept += _norm_bytes(shard, rank, 1, kernels)
        if eager and e == _FP32:
            kept += e * shape("rope_dim")  # the norm's input is a view of the whole projection
    else:
        kept += e * kv_heads * (local.key_dim + local.value_dim)
        if flag("qk_norm") and eager:
            # Rotation keeps nothing, so of these norms the result does not stay.
            for count in (local.heads, local.kv_heads):
                width = count * local.key_dim
                kept += _norm_bytes(shard, width, count, kernels) - e * width
    if attention is AttentionKernel.UNFUSED:
        return kept + heads * shard.seq_len * (e + _FP32 if eager and e < _FP32 else e)
    return kept + (_FP32 * heads if eager else 0)


def _mlp_widths(shard: Shard, kernels: Kernels) -> int:
    """How many tensors of the MLP's width are kept."""
    kept = _KEPT_BY_ACTIVATION.get(str(shard.layer.flag("activation")), 1)
    if kernels is Kernels.FUSED:
        kept = min(kept, 1)
    return kept + (3 if shard.gated else 1)


def _expert_bytes(shard: Shard, eager: bool) -> int:
    """What routed experts keep: rows at their input, four widths between, rows at their output.

    Eager keeps the output rows twice, before and after their routing weights.
    """
    e, hidden, top_k = shard.dtype.bytes, shard.hidden, shard.layer.shape("top_k")
    kept = e * shard.expert_rows * (hidden + 4 * shard.expert_width)
    kept += e * shard.own_rows * hidden * (2 if eager else 1)
    if eager:
        # Router: probabilities of all experts, chosen weights and their sum in fp32, indices; per
        # row its token, its place in the order, and its weight.
        kept += shard.own_tokens * (_FP32 * (shard.layer.shape("experts") + top_k + 1) + 8 * top_k)
        kept += shard.own_rows * (2 * 8 + e)
    return kept


def _block_transient_bytes(shard: Shard, kernels: Kernels) -> int:
    """Peak above what is kept, in the backward of a block.

    2 A, the output and its gradient, and two tensors of the MLP's width. Eager, instead of the
    second one, the last product's weight gradient before it is added up where that is larger (of
    routed experts two of all that this rank holds: one is added to the other); or, later, five
    fp32 tensors in the backward of an RMS norm, less what the MLP has let go by then.
    """
    a, e = shard.activation_bytes, shard.dtype.bytes
    ffn, weights = e * shard.tokens * shard.ffn, e * shard.hidden * shard.ffn
    rows = 0
    if shard.layer.kind is LayerKind.MOE_BLOCK:
        rows = e * shard.expert_rows * shard.hidden
        ffn = max(ffn, e * shard.expert_rows * shard.expert_width)
        held = 2 * shard.local_experts * shard.expert_width * e * shard.hidden
        weights = max(weights, 2 * held - ffn)
    if kernels is Kernels.FUSED:
        return 2 * a + rows + 2 * ffn
    second = ffn if shard.gated else 0
    at_mlp = 2 * a + rows + ffn + max(second, weights)
    if not _rms(shard):
        return at_mlp
    fp32 = _FP32 * shard.tokens * shard.hidden
    released = 2 * a + _mlp_widths(shard, kernels) * ffn
    return max(at_mlp, 3 * a, 2 * a + 5 * fp32 - released)


def _embedding(shard: Shard, kernels: Kernels) -> Memory:
    """The output, which is the first block's input; eager adds the dense gradient of the table."""
    a = shard.activation_bytes
    table = shard.dtype.bytes * shard.vocabulary * shard.word_dim
    return Memory(a, a + table if kernels is Kernels.EAGER else a)


def _head(shard: Shard, kernels: Kernels) -> Memory:
    """Final norm, logits and loss.

    Fused: 2 A, logits in the run's precision and in fp32; above that their gradient in fp32.
    Eager: the norm, and the softmax in fp32 with a label and a flag per token; above that the
    logits and an fp32 copy of them (fp32 runs need no copy), or the backward's gradients.
    """
    e, tokens = shard.dtype.bytes, shard.tokens
    logits = tokens * shard.vocabulary
    if kernels is Kernels.FUSED:
        both = e * logits if e < _FP32 else 0
        return Memory(2 * shard.activation_bytes + both + _FP32 * logits, _FP32 * logits)
    norm = tokens * _norm_bytes(shard, shard.hidden, 1, kernels)
    if shard.layer.flag("norm") == "none":
        norm = shard.activation_bytes
    kept = norm + _FP32 * logits + tokens * (8 + 1)
    forward = (e + _FP32 if e < _FP32 else e) * logits
    table = e * shard.vocabulary * shard.word_dim
    backward = e * logits + shard.activation_bytes + table - _FP32 * logits
    return Memory(kept, max(forward, backward))
