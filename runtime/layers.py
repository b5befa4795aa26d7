"""The parallel layers of a model, each built alone: embedding, decoder blocks, head."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from runtime.collectives import Group, copy_to_group, group_rank, group_size
from runtime.experts import ExpertTiling, ParallelMoe
from runtime.families import Call, Family, family_of
from runtime.sharding import initial_weights, shard_block
from runtime.vocabulary import cross_entropy_sum, embed
from specs.boxes import Placement
from specs.errors import RunError
from specs.layer import LayerKind, LayerType
from specs.layout import (
    EMBEDDING_WEIGHT,
    FINAL_NORM_OF,
    HEAD_BIAS,
    HEAD_WEIGHT,
    ExpertSlice,
    layer_placements,
    not_divisible,
    tensors_of,
)
from specs.model import Model

# Legend: B sequences, S positions, H hidden width, V vocabulary of this rank.


class ParallelLayer(nn.Module):
    """A layer of which this rank holds a part.

    placements: for each parameter by its name in the layer, which box of which tensor of the whole
    model it is, and what its gradient on this rank means.
    """

    def __init__(self, placements: dict[str, Placement], group: Group) -> None:
        super().__init__()
        self.placements = placements
        self.group = group


class ParallelEmbedding(ParallelLayer):
    """Token embedding, split over the vocabulary: tokens_BS int64 -> x_BSH.

    scale: the factor that the family multiplies embeddings with.
    """

    def __init__(
        self, weight_VH: nn.Parameter, placement: Placement, group: Group, scale: float = 1.0
    ) -> None:
        super().__init__({"weight": placement}, group)
        self.weight = weight_VH
        self.scale = scale

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Embeddings of the tokens, whole on every rank."""
        first = self.placements["weight"].box.offset[0]
        x_BSH = embed(tokens_BS, self.weight, first, self.group)
        return x_BSH if self.scale == 1.0 else x_BSH * self.scale


class ParallelBlock(ParallelLayer):
    """A decoder layer of `transformers`, tensor parallel: x_BSH -> x_BSH.

    Attention is as the model's own forward has it: causal over the whole sequence, or inside a
    sliding window. With `recompute` only the input is kept, and backward runs the forward again,
    collectives included.
    """

    def __init__(
        self,
        block: nn.Module,
        placements: dict[str, Placement],
        group: Group,
        family: Family,
        number: int,
        recompute: bool,
    ) -> None:
        super().__init__(placements, group)
        self.block = block
        self.family = family
        self.number = number
        self.recompute = recompute
        self._call: tuple[int, Call] | None = None

    def forward(self, x_BSH: Tensor) -> Tensor:
        """The block's output, whole on every rank."""
        if self.recompute and torch.is_grad_enabled():
            # No dropout here, so there is no random state to restore.
            out: Tensor = checkpoint(
                self._run, x_BSH, use_reentrant=False, preserve_rng_state=False
            )
            return out
        return self._run(x_BSH)

    def _run(self, x_BSH: Tensor) -> Tensor:
        seq_len = x_BSH.shape[1]
        if self._call is None or self._call[0] != seq_len:
            call = self.family.call(self.number, seq_len, x_BSH.device, x_BSH.dtype)
            self._call = seq_len, call
        args, kwargs = self._call[1]
        out = self.block(x_BSH, *args, **kwargs)
        found: Tensor = out[0] if isinstance(out, tuple) else out
        return found


class ParallelHead(ParallelLayer):
    """Final norm, output projection split over the vocabulary, and loss.

    (x_BSH, labels_BS) -> cross entropy summed over all B * S tokens, a scalar in fp32. The caller
    divides by the tokens of the whole global batch. scale, logit_scale: factors of the family
    before and behind the projection; cap: logits go through cap * tanh(logit / cap).
    """

    def __init__(
        self,
        norm: nn.Module,
        weight_VH: nn.Parameter,
        bias_V: nn.Parameter | None,
        placements: dict[str, Placement],
        group: Group,
        *,
        scale: float = 1.0,
        logit_scale: float = 1.0,
        cap: float | None = None,
    ) -> None:
        super().__init__(placements, group)
        self.norm = norm
        self.weight = weight_VH
        self.bias = bias_V
        self.scale = scale
        self.logit_scale = logit_scale
        self.cap = cap

    def forward(self, x_BSH: Tensor, labels_BS: Tensor) -> Tensor:
        """The summed loss, the same on every rank."""
        x_BSH = copy_to_group(self.norm(x_BSH), self.group)
        if self.scale != 1.0:
            x_BSH = x_BSH * self.scale
        logits_NV = F.linear(x_BSH.flatten(0, 1), self.weight, self.bias)
        if self.logit_scale != 1.0:
            logits_NV = logits_NV * self.logit_scale
        if self.cap is not None:
            logits_NV = torch.tanh(logits_NV / self.cap) * self.cap
        first = self.placements["weight"].box.offset[0]
        return cross_entropy_sum(logits_NV, labels_BS.flatten(), first, self.group)


def build_layer(
    layer_type: LayerType,
    model: Model,
    *,
    tp_group: Group,
    dtype: torch.dtype,
    device: torch.device,
    seed: int | None,
    layer_index: int | None = None,
    recompute: bool = False,
    tiling: ExpertTiling | None = None,
) -> ParallelLayer:
    """One layer of a model with random weights, this rank's part of it; no other part is built.

    embedding: tokens_BS int64 -> x_BSH; block: x_BSH -> x_BSH; head: (x_BSH, labels_BS) -> summed
    cross entropy. tp_group: the ranks that share the layer, None for one. layer_index: which of
    the model's layers (0 the embedding), default the first of this type. recompute: blocks keep
    only their input and run forward again in backward (the head's backward follows its forward at
    once, so it and the embedding gain nothing and never do). tiling: of a block with experts;
    default: their width is cut over the TP group, as the model's own plan says. The same seed
    gives the same weights of the whole layer whatever the group; None: to be filled from elsewhere.
    Raises RunError for a family that cannot be built or a layer that tp does not divide.
    """
    family = family_of(model)
    tp, rank = group_size(tp_group), group_rank(tp_group)
    group = tp_group if tp > 1 else None
    index = model.layers.index(layer_type) if layer_index is None else layer_index
    tiling = tiling or ExpertTiling(ExpertSlice(etp=tp, device=rank))
    reason = not_divisible(layer_type, tp, tiling.slice.ep, tiling.slice.etp)
    if reason:
        raise RunError(f"{model.name}: {reason}")
    placements = layer_placements(model, index, tp, rank, tiling.slice)

    starts = {tensor.name: tensor.start for tensor in tensors_of(layer_type)}

    def weight(name: str) -> nn.Parameter:
        std = family.initializer_std
        values = initial_weights(placements[name], std, seed, device, starts[name])
        return nn.Parameter(values.to(dtype))

    if layer_type.kind is LayerKind.EMBEDDING:
        scale = _number(layer_type, "scale") or 1.0
        placement = placements[EMBEDDING_WEIGHT]
        return ParallelEmbedding(weight(EMBEDDING_WEIGHT), placement, group, scale)
    if layer_type.kind is LayerKind.HEAD:
        return _build_head(layer_type, family.build_norm(), placements, weight, group)
    block = family.build_block(index - 1)
    shard_block(
        block,
        layer_type,
        placements,
        family.tp_plan,
        family.config,
        family.buffers(index - 1),
        std=family.initializer_std,
        seed=seed,
        group=group,
        dtype=dtype,
        device=device,
    )
    if layer_type.kind is LayerKind.MOE_BLOCK:
        block.mlp = ParallelMoe(block.mlp, group, tiling)
    held = {f"block.{name}": placement for name, placement in placements.items()}
    return ParallelBlock(block, held, group, family, index - 1, recompute)


def _build_head(
    layer_type: LayerType,
    norm: nn.Module,
    placements: dict[str, Placement],
    weight: Callable[[str], nn.Parameter],
    group: Group,
) -> ParallelHead:
    matrix = EMBEDDING_WEIGHT if layer_type.tied else HEAD_WEIGHT
    held = {"weight": placements[matrix]}
    for name in placements:
        if name.startswith(FINAL_NORM_OF):
            own = name.removeprefix(FINAL_NORM_OF)
            setattr(norm, own, weight(name))
            held[f"norm.{own}"] = placements[name]
    bias = None
    if HEAD_BIAS in placements:
        bias, held["bias"] = weight(HEAD_BIAS), placements[HEAD_BIAS]
    return ParallelHead(
        norm,
        weight(matrix),
        bias,
        held,
        group,
        scale=_number(layer_type, "scale") or 1.0,
        logit_scale=_number(layer_type, "logit_scale") or 1.0,
        cap=_number(layer_type, "cap"),
    )


def _number(layer_type: LayerType, name: str) -> float | None:
    """A factor that a discovered layer carries as text; None where it has none."""
    value = layer_type.flag(name)
    return None if value is None else float(value)
