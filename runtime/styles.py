"""Collectives of a discovered family's block, by the family's own tensor-parallel plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runtime.collectives import (
    Group,
    copy_to_group,
    gather_slices,
    reduce_from_group,
    scatter_slices,
)
from specs.discovery import style_of
from specs.errors import RunError

_LOCAL = {"colwise", "rowwise", "replicated_with_grad_allreduce"}


def add_styles(block: nn.Module, tp_plan: Mapping[str, str], config: Any, group: Group) -> None:
    """Give the modules of a block, whose weights are cut already, the collectives of their styles.

    Where everything in an attention or MLP module is cut or works on cut tensors, its input is
    copied to the group once for all its column-parallel layers: one all-reduce in backward, not
    one for each. Raises RunError naming a style that is not known.
    """
    shared = {
        owner
        for owner, module in block.named_modules()
        if owner and _is_all_local(module, owner, tp_plan)
    }
    for owner in sorted(shared):
        block.get_submodule(owner).register_forward_pre_hook(_copy_first(group), with_kwargs=True)
    for name, module in list(block.named_modules()):
        style = style_of(tp_plan, f"{name}.") if name else None
        if style is None:
            continue
        owner = name.rpartition(".")[0]
        if style in ("colwise", "packed_colwise"):
            if isinstance(module, nn.Linear) and owner not in shared:
                module.register_forward_pre_hook(_copy_first(group), with_kwargs=True)
        elif style in ("colwise_rep", "colwise_gather_output"):
            module.register_forward_pre_hook(_copy_first(group), with_kwargs=True)
            module.register_forward_hook(_gather_last(group))
        elif style in ("rowwise", "rowwise_rep", "rowwise_split_input"):
            _replace(block, name, _RowParallel(module, group, split=style != "rowwise"))
        elif style == "mla_kv_a_proj":
            module.register_forward_hook(_copy_tail(group, int(config.qk_rope_head_dim)))
        elif style == "moe_tp_experts":
            module.register_forward_pre_hook(_copy_floating(group), with_kwargs=True)
            module.register_forward_hook(_reduce(group))
        elif style == "all_reduce":
            module.register_forward_hook(_reduce(group))
        elif style not in ("local_params", "replicated_with_grad_allreduce"):
            raise RunError(
                f"models of family {config.model_type!r} cannot be split: their tensor-parallel "
                f"plan wants {name} {style}, which is not known"
            )


def _is_all_local(module: nn.Module, owner: str, plan: Mapping[str, str]) -> bool:
    """Whether a module has column-parallel layers, and all that it holds works on cut tensors."""
    columns = any(
        isinstance(child, nn.Linear) and plan.get(_starred(f"{owner}.{name}")) == "colwise"
        for name, child in module.named_children()
    )
    return columns and all(
        style_of(plan, f"{owner}.{name}") in _LOCAL for name, _ in module.named_parameters()
    )


def _starred(path: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in path.split("."))


class _RowParallel(nn.Module):
    """A linear layer whose input features are cut: partial products are summed over the group.

    split: every rank has the whole input and takes its slice. The bias is added once, behind the
    sum.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, linear: nn.Module, group: Group, split: bool) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias  # type: ignore[assignment]
        self.group = group
        self.split = split

    def forward(self, x: Tensor) -> Tensor:
        """The whole output on every rank."""
        if self.split:
            x = scatter_slices(x.movedim(-1, 0), self.group).movedim(0, -1)
        y = reduce_from_group(F.linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias


def _replace(block: nn.Module, name: str, module: nn.Module) -> None:
    owner, _, last = name.rpartition(".")
    block.get_submodule(owner).register_module(last, module)


def _copy_first(group: Group) -> Any:
    """Before a module: its first input, whose gradient is summed over the group."""

    def copy(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (copy_to_group(args[0], group), *args[1:]), kwargs
        name = "hidden_states" if "hidden_states" in kwargs else next(iter(kwargs))
        return args, kwargs | {name: copy_to_group(kwargs[name], group)}

    return copy


def _copy_floating(group: Group) -> Any:
    """Before experts: hidden states and routing weights; both get partial gradients."""

    def copied(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            return copy_to_group(value, group)
        return value

    def copy(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return tuple(map(copied, args)), {key: copied(value) for key, value in kwargs.items()}

    return copy


def _gather_last(group: Group) -> Any:
    """Behind a module: slices of the last axis become the whole on every rank."""

    def gather(_module: nn.Module, _args: Any, out: Tensor) -> Tensor:
        return gather_slices(out.movedim(-1, 0), group).movedim(0, -1)

    return gather


def _copy_tail(group: Group, tail: int) -> Any:
    """Behind the projection of latent attention: the rotary part goes to this rank's heads alone.

    The rest goes through a column-parallel layer, which sums its gradient itself.
    """

    def copy(_module: nn.Module, _args: Any, out: Tensor) -> Tensor:
        latent, rotary = torch.split(out, [out.shape[-1] - tail, tail], dim=-1)
        return torch.cat([latent, copy_to_group(rotary, group)], dim=-1)

    return copy


def _reduce(group: Group) -> Any:
    """Behind a module: the sum of partial outputs."""

    def reduce(_module: nn.Module, _args: Any, out: Tensor) -> Tensor:
        return reduce_from_group(out, group)

    return reduce
