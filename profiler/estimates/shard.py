"""One rank's share of a layer: shapes, parameters, and which shares exist."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from profiler.estimates.kernels import Attention, Gemm
from specs.layer import LayerKind, LayerType
from specs.layout import ExpertSlice, placement_of, tensors_of
from specs.workload import DType


@dataclass(frozen=True)
class Shard:
    """What one rank computes of one micro-batch through a layer.

    tp, ep, etp: parallel degrees. batch: sequences of the micro-batch. Raises nothing: shares
    that do not exist are `specs.layout.not_divisible`'s to refuse.
    """

    layer: LayerType
    batch: int
    seq_len: int
    dtype: DType
    tp: int = 1
    ep: int = 1
    etp: int = 1

    @property
    def tokens(self) -> int:
        """Tokens of the micro-batch: every rank of a TP group has all of them."""
        return self.batch * self.seq_len

    @property
    def hidden(self) -> int:
        """Width of an activation."""
        return self.layer.shape("hidden")

    @property
    def activation_bytes(self) -> int:
        """A: bytes of one activation of the micro-batch (DESIGN section 13)."""
        return self.tokens * self.hidden * self.dtype.bytes

    @property
    def is_mla(self) -> bool:
        """Multi-head latent attention: whole on every rank, as the models' own TP plan says."""
        return self.layer.flag("attention") == "mla"

    @property
    def attention(self) -> Attention:
        """The attention that this rank computes."""
        shape = self.layer.shape
        if self.is_mla:
            key = shape("nope_dim") + shape("rope_dim")
            heads, value = shape("heads"), shape("value_dim")
            return Attention(self.batch, self.seq_len, heads, heads, key, value)
        heads, kv_heads = shape("heads") // self.tp, max(1, shape("kv_heads") // self.tp)
        head = shape("head_dim")
        return Attention(self.batch, self.seq_len, heads, kv_heads, head, head)

    def attention_gemms(self) -> list[Gemm]:
        """The projections around attention; queries, keys and values are one product."""
        m, hidden, shape = self.tokens, self.hidden, self.layer.shape
        local = self.attention
        out = Gemm(m, hidden, local.heads * local.value_dim)
        if not self.is_mla:
            return [Gemm(m, (local.heads + 2 * local.kv_heads) * local.key_dim, hidden), out]
        queries, kv_rank = local.heads * local.key_dim, shape("kv_rank")
        q_rank = shape("q_rank")
        down = [Gemm(m, q_rank, hidden), Gemm(m, queries, q_rank)]
        return [
            *(down if q_rank else [Gemm(m, queries, hidden)]),
            Gemm(m, kv_rank + shape("rope_dim"), hidden),
            Gemm(m, local.heads * (shape("nope_dim") + local.value_dim), kv_rank),
            out,
        ]

    @property
    def ffn(self) -> int:
        """This rank's width of the MLP that all tokens pass: 0 where there is none.

        In a block with experts that is the shared experts'.
        """
        width = self.layer.flag("shared_ffn" if self.layer.kind is LayerKind.MOE_BLOCK else "ffn")
        return int(width or 0) // self.tp

    @property
    def gated(self) -> bool:
        """Whether the MLP has a gate; experts always do."""
        return self.layer.kind is LayerKind.MOE_BLOCK or bool(self.layer.flag("gated"))

    def mlp_gemms(self) -> list[Gemm]:
        """The MLP that all tokens pass; gate and up projection are one product."""
        if not self.ffn:
            return []
        width = 2 * self.ffn if self.gated else self.ffn
        return [Gemm(self.tokens, width, self.hidden), Gemm(self.tokens, self.hidden, self.ffn)]

    @property
    def follows_tp(self) -> bool:
        """Whether experts are cut as the rest of the block is, so that nothing is dispatched."""
        return ExpertSlice(self.ep, self.etp).follows_tp(self.tp)

    @property
    def own_tokens(self) -> int:
        """Tokens that this rank routes: all, or its 1/TP where rows are dispatched."""
        return self.tokens if self.follows_tp else ceil(self.tokens / self.tp)

    @property
    def own_rows(self) -> int:
        """Rows (a token at one of its experts) that this rank sends off, or keeps."""
        return self.own_tokens * self.layer.shape("top_k")

    @property
    def local_experts(self) -> int:
        """Routed experts that this rank holds, whole or a slice of each."""
        return self.layer.shape("experts") // self.ep

    @property
    def expert_width(self) -> int:
        """This rank's width of a routed expert."""
        return self.layer.shape("expert_ffn") // self.etp

    @property
    def rows_per_expert(self) -> int:
        """Rows at each local expert in a balanced load, rounded up.

        tokens * top_k * EP * ETP / (E * TP): DESIGN section 13, 22.
        """
        rows = self.tokens * self.layer.shape("top_k") * self.ep * self.etp
        return ceil(rows / (self.layer.shape("experts") * self.tp))

    @property
    def expert_rows(self) -> int:
        """Rows at all local experts."""
        return self.rows_per_expert * self.local_experts

    @property
    def vocabulary(self) -> int:
        """Rows of the vocabulary on the rank that has most."""
        return ceil(self.layer.shape("vocab") / self.tp)

    @property
    def word_dim(self) -> int:
        """Width of a row of the vocabulary's matrix."""
        return int(self.layer.flag("word_dim") or self.hidden)


def parameters(shard: Shard) -> tuple[int, int]:
    """Parameters of the fullest rank: all but the routed experts', and the routed experts'.

    What is not split (norms, biases after a sum, routers, latent attention) every rank has.
    """
    dense = routed = 0
    for count, is_routed in _held(shard):
        if is_routed:
            routed += count
        else:
            dense += count
    return dense, routed


def _held(shard: Shard) -> Iterator[tuple[int, bool]]:
    layer, tp = shard.layer, shard.tp
    if layer.flag("norm") == "layer" and layer.kind.is_block:
        yield _plain_block(shard), False
        return
    if not layer.kind.is_block and (
        layer.flag("positions") or layer.flag("word_dim") or layer.flag("norm") in ("layer", "none")
    ):
        yield _plain_end(shard), False
        return
    experts = ExpertSlice(shard.ep, shard.etp)
    for tensor in tensors_of(layer):
        # The rank that holds most: slices of uneven lengths differ by one row.
        most = max(
            placement_of(tensor, tensor.name, tp, rank, experts).box.elements for rank in range(tp)
        )
        yield most, tensor.name.startswith("mlp.experts.")


def _plain_block(shard: Shard) -> int:
    """Block with layer norms and a two-layer MLP, split as Megatron splits it."""
    hidden, local, flag = shard.hidden, shard.attention, shard.layer.flag
    width = (local.heads + 2 * local.kv_heads) * local.key_dim
    count = hidden * width + local.heads * local.value_dim * hidden
    count += (width if flag("qkv_bias") else 0) + (hidden if flag("o_bias") else 0)
    count += 2 * hidden * shard.ffn + (shard.ffn + hidden if flag("mlp_bias") else 0)
    return count + 4 * hidden


def _plain_end(shard: Shard) -> int:
    """Embedding with learned positions, or head with a layer norm or none."""
    layer, hidden = shard.layer, shard.hidden
    count = shard.vocabulary * shard.word_dim
    if shard.word_dim != hidden:
        count += shard.word_dim * hidden
    if layer.kind is LayerKind.EMBEDDING:
        return count + int(layer.flag("positions") or 0) * hidden
    return count + {"layer": 2 * hidden, "rms": hidden, "none": 0}[str(layer.flag("norm"))]
