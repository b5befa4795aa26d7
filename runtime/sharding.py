"""Tensor parallelism of one decoder block: which box of which weight a rank holds, f and g."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runtime.collectives import Group, copy_to_group, reduce_from_group
from runtime.weights import random_weights
from specs.errors import RunError
from specs.layer import LayerType
from specs.layout import Box, Placement, Tag, even_slice

_IGNORED = {"moe_tp_experts"}  # a style of the module around weights that have their own
_STYLES = {"colwise", "rowwise", "packed_colwise", "replicated_with_grad_allreduce"} | _IGNORED


class RowParallelLinear(nn.Module):
    """A linear layer whose input features are split: partial products are summed over the group.

    The bias, which every rank holds whole, is added once, after the sum.
    """

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        """The whole output on every rank, from each rank's part of the input features."""
        y = reduce_from_group(F.linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias

    weight: nn.Parameter
    bias: nn.Parameter | None


def not_divisible(layer: LayerType, tp: int) -> str | None:
    """Why a layer cannot be split over tp ranks, None where it can.

    Attention heads and the width of the MLP divide by tp; key and value heads divide by it, or it
    by them (then they are held more than once). Embedding and head take any tp.
    """
    if not layer.kind.is_block or tp == 1:
        return None
    if layer.flag("attention") == "gqa":
        heads, kv_heads = layer.shape("heads"), layer.shape("kv_heads")
        if heads % tp:
            return f"{heads} attention heads cannot be split over tp={tp}"
        if kv_heads % tp and tp % kv_heads:
            return f"{kv_heads} key and value heads cannot be split over, or shared by, tp={tp}"
    for name in ("ffn", "shared_ffn"):
        width = layer.flag(name)
        if isinstance(width, int) and width % tp:
            return f"an MLP width of {width} cannot be split over tp={tp}"
    return None


def place(
    name: str,
    shape: torch.Size,
    style: str | None,
    layer: LayerType,
    tp: int,
    rank: int,
) -> tuple[tuple[int, ...], Box, Tag]:
    """Shape of the whole tensor (as boxes see it), the box of one rank, and what its gradient is.

    name: of the parameter inside the block. style: from the model's own tensor-parallel plan.
    """
    whole = tuple(shape)
    if style is not None and style not in _STYLES:
        raise RunError(f"{name}: tensor-parallel style {style!r} is not known here")
    if style == "replicated_with_grad_allreduce" and tp > 1:
        return whole, Box.whole(whole), Tag.PARTIAL
    is_bias = name.endswith(".bias")
    if style == "packed_colwise":
        axis = len(whole) - 2
        whole = (*whole[:axis], 2, whole[axis] // 2, *whole[axis + 1 :])
        axis += 1
    elif style == "colwise":
        axis = 0
    elif style == "rowwise" and not is_bias:
        axis = len(whole) - 1
    else:
        return whole, Box.whole(whole), Tag.REPLICATED
    if tp == 1:
        return whole, Box.whole(whole), Tag.REPLICATED
    box, tag = Box.whole(whole), Tag.SHARDED
    kv_heads = layer.flag("kv_heads")
    if ("k_proj" in name or "v_proj" in name) and isinstance(kv_heads, int) and kv_heads < tp:
        width = whole[axis] // kv_heads
        return whole, box.cut(axis, rank * kv_heads // tp * width, width), Tag.PARTIAL
    return whole, box.cut(axis, *even_slice(whole[axis], tp, rank)), tag


def shard_block(
    block: nn.Module,
    layer: LayerType,
    tp_plan: Mapping[str, str],
    *,
    prefix: str,
    std: float,
    seed: int,
    group: Group,
    tp: int,
    rank: int,
    dtype: torch.dtype,
    device: torch.device,
) -> dict[str, Placement]:
    """Give a block on the meta device its rank's weights, and its collectives.

    prefix: of the block's tensors in the whole model. Returns the placement of each parameter by
    its name in the block. Raises RunError for a style or a buffer that is not known.
    """
    placements: dict[str, Placement] = {}
    for name, parameter in list(block.named_parameters()):
        style = tp_plan.get(name) or tp_plan.get(name.rpartition(".")[0])
        shape, box, tag = place(name, parameter.shape, style, layer, tp, rank)
        placement = Placement(prefix + name, shape, box, tag)
        placements[name] = placement
        local = initial_weights(placement, std, seed, device).to(dtype)
        _set(block, name, nn.Parameter(local.reshape(_local_shape(box, parameter.dim()))))
    for name, buffer in list(block.named_buffers()):
        if not name.endswith("e_score_correction_bias"):
            raise RunError(f"{prefix}{name}: no rule gives this buffer a value")
        owner, _, last = name.rpartition(".")
        # The router's balancing bias: zero at the start, and no gradient moves it.
        block.get_submodule(owner).register_buffer(
            last, torch.zeros(buffer.shape, dtype=buffer.dtype, device=device)
        )
    attention = block.get_submodule("self_attn")
    if layer.flag("attention") == "gqa" and tp > 1:
        kv_heads = max(1, layer.shape("kv_heads") // tp)
        attention.num_key_value_groups = layer.shape("heads") // tp // kv_heads  # type: ignore[assignment]
    if tp > 1:
        _add_collectives(block, tp_plan, group)
    return placements


def initial_weights(placement: Placement, std: float, seed: int, device: torch.device) -> Tensor:
    """The box of a tensor at the start of training: norms 1, biases 0, all else random."""
    name = placement.name
    if name.endswith("norm.weight"):
        return torch.ones(placement.box.size, device=device)
    if name.endswith(".bias"):
        return torch.zeros(placement.box.size, device=device)
    return random_weights(placement, std, seed, device)


def _local_shape(box: Box, dim: int) -> tuple[int, ...]:
    """Shape of the module's own parameter: a packed axis is folded into the one after it."""
    size = box.size
    if len(size) == dim + 1:
        axis = dim - 2
        return (*size[:axis], size[axis] * size[axis + 1], *size[axis + 2 :])
    return size


def _set(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    owner, _, last = name.rpartition(".")
    target = module.get_submodule(owner)
    setattr(target, last, parameter)
    if isinstance(target, nn.Linear) and last == "weight":
        target.out_features, target.in_features = parameter.shape


def _add_collectives(block: nn.Module, tp_plan: Mapping[str, str], group: Group) -> None:
    """g behind every row-parallel layer; f once before each module that holds column-parallel ones.

    One f for the whole module, not one for each projection: attention and MLP so have one
    all-reduce in backward each, instead of three and two.
    """
    before: set[str] = set()
    for path, style in tp_plan.items():
        if not _has(block, path):
            continue  # the plan also names what only other kinds of block have
        owner, _, last = path.rpartition(".")
        target = block.get_submodule(owner)
        if style == "moe_tp_experts":
            experts = block.get_submodule(path)
            experts.register_forward_pre_hook(_experts_hook(group))
            experts.register_forward_hook(lambda _m, _i, y: reduce_from_group(y, group))
        elif style == "colwise":
            before.add(owner)
        elif style == "rowwise" and isinstance(getattr(target, last), nn.Linear):
            linear = getattr(target, last)
            row = RowParallelLinear(group)
            row.weight, row.bias = linear.weight, linear.bias
            setattr(target, last, row)
    for owner in sorted(before):
        block.get_submodule(owner).register_forward_pre_hook(_input_hook(group), with_kwargs=True)


def _has(block: nn.Module, path: str) -> bool:
    here: Any = block
    for part in path.split("."):
        here = getattr(here, part, None)
        if here is None:
            return False
    return True


def _input_hook(group: Group) -> Any:
    def copy_input(
        _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (copy_to_group(args[0], group), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": copy_to_group(kwargs["hidden_states"], group)}

    return copy_input


def _experts_hook(group: Group) -> Any:
    def copy_inputs(_module: nn.Module, args: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
        # Routing weights multiply partial outputs, so their gradients are partial as well.
        tokens, experts, weights = args
        return copy_to_group(tokens, group), experts, copy_to_group(weights, group)

    return copy_inputs
