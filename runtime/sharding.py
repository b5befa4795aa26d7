"""Tensor parallelism of one decoder block: this rank's part of each weight, and f and g."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runtime.collectives import Group, copy_to_group, reduce_from_group
from runtime.styles import add_styles
from runtime.weights import random_weights
from specs.boxes import Placement
from specs.errors import RunError
from specs.layer import LayerType
from specs.layout import Cut, tensors_of
from specs.layout import Tensor as Tensor_

# What the model's own plan calls each way of cutting. Experts are named for completeness: how
# they are cut is up to the plan's tiling, not to the model.
_STYLE_OF: dict[Cut, set[str | None]] = {
    Cut.NONE: {None},
    Cut.ROUTER: {None},
    Cut.SUMMED: {"replicated_with_grad_allreduce"},
    Cut.HEADS: {"colwise"},
    Cut.EXPERTS: {"packed_colwise", "rowwise"},
}


class RowParallelLinear(nn.Module):
    """A linear layer whose input features are split: partial products are summed over the group.

    The bias, which every rank holds whole, is added once, after the sum.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        """The whole output on every rank, from each rank's part of the input features."""
        y = reduce_from_group(F.linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias


def shard_block(
    block: nn.Module,
    layer: LayerType,
    placements: Mapping[str, Placement],
    tp_plan: Mapping[str, str],
    config: Any,
    buffers: Mapping[str, float],
    *,
    std: float,
    seed: int | None,
    group: Group,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Give a block on the meta device this rank's weights, and its dense layers their collectives.

    placements: of this rank, for each parameter by its name in the block. tp_plan, config: the
    model's own. buffers: what they are filled with.
    Raises RunError where the block and the layout differ in a tensor, or in how it is cut.
    """
    tensors = {tensor.name: tensor for tensor in tensors_of(layer)}
    listed = layer.flag("tensors") is not None
    for name, parameter in list(block.named_parameters()):
        if name not in placements:
            raise RunError(f"transformers' block has a tensor {name} that the layout lacks")
        placement = placements[name]
        tensor = tensors[name]
        if not listed:  # otherwise the layout was made of the plan
            _check_style(name, tp_plan, tensor.cut, tensor.axis)
        if parameter.numel() != torch.Size(placement.shape).numel():
            raise RunError(
                f"{placement.name} has {tuple(parameter.shape)} in transformers, "
                f"{placement.shape} in the layout"
            )
        local = initial_weights(placement, std, seed, device, tensor.start).to(dtype)
        shape = _local_shape(placement, tuple(parameter.shape))
        _set(block, name, nn.Parameter(local.reshape(shape)))
    missing = set(placements) - {name for name, _ in block.named_parameters()}
    if missing:
        raise RunError(f"transformers' block lacks the tensors {sorted(missing)} of the layout")
    for name, buffer in list(block.named_buffers()):
        if name not in buffers:
            raise RunError(f"no rule gives the buffer {name} a value")
        owner, _, last = name.rpartition(".")
        block.get_submodule(owner).register_buffer(
            last, torch.full(buffer.shape, buffers[name], dtype=buffer.dtype, device=device)
        )
    if group is not None:
        if listed:
            _regroup_listed_heads(block, placements, tensors)
            add_styles(block, tp_plan, config, group)
        else:
            _regroup_heads(block, layer, placements)
            _add_collectives(block, tp_plan, group)


def _check_style(name: str, tp_plan: Mapping[str, str], cut: Cut, axis: int) -> None:
    style = tp_plan.get(name) or tp_plan.get(name.rpartition(".")[0])
    if name.endswith(".bias") and style == "rowwise":
        style = None  # added once, behind the sum
    expected = _STYLE_OF.get(cut) or {"rowwise" if axis == 1 else "colwise"}
    if style not in expected:
        raise RunError(
            f"{name}: this version of transformers wants it {style or 'whole'}, "
            f"the layout has it {cut.value}"
        )


def initial_weights(
    placement: Placement,
    std: float,
    seed: int | None,
    device: torch.device,
    start: float | None = None,
) -> Tensor:
    """The box of a tensor at the start of training: norms 1, biases 0, all else random.

    seed None: no numbers at all, which shows if they are not filled in from elsewhere. start: the
    number that the family fills this tensor with, where that is known.
    """
    if seed is None:
        return torch.full(placement.box.size, math.nan, device=device)
    if start is not None:
        return torch.full(placement.box.size, start, device=device)
    name = placement.name
    if name.endswith("norm.weight"):
        return torch.ones(placement.box.size, device=device)
    if name.endswith(".bias"):
        return torch.zeros(placement.box.size, device=device)
    return random_weights(placement, std, seed, device)


def _local_shape(placement: Placement, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the module's own parameter: a packed axis is folded into the one after it.

    shape: of the whole parameter in the module.
    """
    size = placement.box.size
    if len(size) == len(shape):
        return size
    axis = next(i for i, n in enumerate(shape) if placement.shape[i] != n)
    return (*size[:axis], size[axis] * size[axis + 1], *size[axis + 2 :])


def _set(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    owner, _, last = name.rpartition(".")
    target = module.get_submodule(owner)
    setattr(target, last, parameter)
    if isinstance(target, nn.Linear) and last == "weight":
        target.out_features, target.in_features = parameter.shape


def _regroup_heads(block: nn.Module, layer: LayerType, placements: Mapping[str, Placement]) -> None:
    """Tell attention how many of this rank's query heads share one of its key and value heads."""
    if layer.flag("attention") != "gqa":
        return
    head = layer.shape("head_dim")
    queries, keys = (
        placements[f"self_attn.{name}.weight"].box.size[0] // head for name in ("q_proj", "k_proj")
    )
    block.get_submodule("self_attn").num_key_value_groups = queries // keys  # type: ignore[assignment]


def _regroup_listed_heads(
    block: nn.Module, placements: Mapping[str, Placement], tensors: Mapping[str, Tensor_]
) -> None:
    """The same where key and value heads are fewer than ranks, and each is held more than once."""
    for name, tensor in tensors.items():
        owner, _, last = name.removesuffix(".weight").rpartition(".")
        if tensor.cut is not Cut.HEADS or last != "k_proj" or not name.endswith(".weight"):
            continue
        queries = tensors[f"{owner}.q_proj.weight"]
        share = placements[f"{owner}.q_proj.weight"].box.size[0] / queries.shape[0]
        keys = placements[name].box.size[0] / tensor.shape[0]
        groups = round(queries.heads * share) // round(tensor.heads * keys)
        block.get_submodule(owner).num_key_value_groups = groups  # type: ignore[assignment]


def _add_collectives(block: nn.Module, tp_plan: Mapping[str, str], group: Group) -> None:
    """g behind every row-parallel layer; f once before each module that holds column-parallel ones.

    One f for the whole module, not one for each projection: attention and MLP so have one
    all-reduce in backward each, instead of three and two.
    """
    before: set[str] = set()
    for path, style in tp_plan.items():
        owner, _, last = path.rpartition(".")
        if not isinstance(_reach(block, path), nn.Linear):
            continue  # experts, norms, and what only other kinds of block have
        if style == "colwise":
            before.add(owner)
        elif style == "rowwise":
            target = block.get_submodule(owner)
            linear = getattr(target, last)
            row = RowParallelLinear(group)
            row.weight, row.bias = linear.weight, linear.bias
            setattr(target, last, row)
    for owner in sorted(before):
        block.get_submodule(owner).register_forward_pre_hook(_input_hook(group), with_kwargs=True)


def _reach(block: nn.Module, path: str) -> Any:
    here: Any = block
    for part in path.split("."):
        here = getattr(here, part, None)
    return here


def _input_hook(group: Group) -> Any:
    def copy_input(
        _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (copy_to_group(args[0], group), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": copy_to_group(kwargs["hidden_states"], group)}

    return copy_input
