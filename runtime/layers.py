"""The parallel layers of a model, each built alone: embedding, decoder blocks, head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from runtime.collectives import Group, copy_to_group, group_rank, group_size
from runtime.experts import ExpertTiling, ParallelMoe
from runtime.families import family_of, rotary_positions
from runtime.sharding import initial_weights, shard_block
from runtime.vocabulary import cross_entropy_sum, embed
from specs.boxes import Placement
from specs.errors import RunError
from specs.layer import LayerKind, LayerType
from specs.layout import (
    EMBEDDING_WEIGHT,
    FINAL_NORM,
    HEAD_WEIGHT,
    ExpertSlice,
    layer_placements,
    not_divisible,
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
    """Token embedding, split over the vocabulary: tokens_BS int64 -> x_BSH."""

    def __init__(self, weight_VH: nn.Parameter, placement: Placement, group: Group) -> None:
        super().__init__({"weight": placement}, group)
        self.weight = weight_VH

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Embeddings of the tokens, whole on every rank."""
        first = self.placements["weight"].box.offset[0]
        return embed(tokens_BS, self.weight, first, self.group)


class ParallelBlock(ParallelLayer):
    """A decoder layer of `transformers`, tensor parallel, with rotary positions: x_BSH -> x_BSH.

    Attention is causal over the whole sequence, or inside the model's sliding window. With
    `recompute` only the input is kept, and backward runs the forward again, collectives included.
    """

    def __init__(
        self,
        block: nn.Module,
        placements: dict[str, Placement],
        group: Group,
        model: Model,
        window: int | None,
        recompute: bool,
    ) -> None:
        super().__init__(placements, group)
        self.block = block
        self.model = model
        self.window = window
        self.recompute = recompute
        self._mask: Tensor | None = None
        self._positions: tuple[Tensor, Tensor] | None = None

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
        if self._positions is None or self._positions[0].shape[1] != x_BSH.shape[1]:
            self._positions = rotary_positions(
                self.model, x_BSH.shape[1], x_BSH.device, x_BSH.dtype
            )
        out: Tensor = self.block(
            x_BSH,
            attention_mask=self._window_mask(x_BSH),
            position_embeddings=self._positions,
            use_cache=False,
        )
        return out

    def _window_mask(self, x_BSH: Tensor) -> Tensor | None:
        """None where plain causal attention is right: then the fused kernels need no mask."""
        seq_len = x_BSH.shape[1]
        if self.window is None or seq_len <= self.window:
            return None
        if self._mask is None or self._mask.shape[-1] != seq_len:
            distance = torch.arange(seq_len, device=x_BSH.device)
            distance = distance[:, None] - distance[None, :]
            self._mask = ((distance >= 0) & (distance < self.window))[None, None]
        return self._mask


class ParallelHead(ParallelLayer):
    """Final norm, output projection split over the vocabulary, and loss.

    (x_BSH, labels_BS) -> cross entropy summed over all B * S tokens, a scalar in fp32. The caller
    divides by the tokens of the whole global batch.
    """

    def __init__(
        self,
        norm: nn.Module,
        weight_VH: nn.Parameter,
        placements: dict[str, Placement],
        group: Group,
    ) -> None:
        super().__init__(placements, group)
        self.norm = norm
        self.weight = weight_VH

    def forward(self, x_BSH: Tensor, labels_BS: Tensor) -> Tensor:
        """The summed loss, the same on every rank."""
        x_BSH = copy_to_group(self.norm(x_BSH), self.group)
        logits_NV = F.linear(x_BSH.flatten(0, 1), self.weight)
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

    def weight(name: str) -> nn.Parameter:
        values = initial_weights(placements[name], family.initializer_std, seed, device)
        return nn.Parameter(values.to(dtype))

    if layer_type.kind is LayerKind.EMBEDDING:
        return ParallelEmbedding(weight(EMBEDDING_WEIGHT), placements[EMBEDDING_WEIGHT], group)
    if layer_type.kind is LayerKind.HEAD:
        norm = family.build_norm()
        norm.weight = weight(FINAL_NORM)
        matrix = EMBEDDING_WEIGHT if layer_type.tied else HEAD_WEIGHT
        held = {"norm.weight": placements[FINAL_NORM], "weight": placements[matrix]}
        return ParallelHead(norm, weight(matrix), held, group)
    block = family.build_block(index - 1)
    shard_block(
        block,
        layer_type,
        placements,
        family.tp_plan,
        std=family.initializer_std,
        seed=seed,
        group=group,
        dtype=dtype,
        device=device,
    )
    if layer_type.kind is LayerKind.MOE_BLOCK:
        block.mlp = ParallelMoe(block.mlp, group, tiling)
    held = {f"block.{name}": placement for name, placement in placements.items()}
    return ParallelBlock(block, held, group, model, family.window(block), recompute)
