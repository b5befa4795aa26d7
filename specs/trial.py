"""A block of a decoder tried on the meta device, whole and as one rank's share: shapes alone."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from specs.layout import Cut
from specs.layout import Tensor as Listed

# What kernels say that look at numbers, which a tensor on the meta device has not.
_NO_NUMBERS = ("meta tensor", "nonzero", "Meta kernel", "data-dependent", "'Meta' backend")
EXPERTS = "moe_tp_experts"


class NotTried(Exception):
    """The block looks at numbers, so shapes alone do not run it."""


class ShapesDiffer(Exception):
    """The block does not run with these shapes; the message says where."""


def input_shapes(
    block: nn.Module,
    config: Any,
    call: tuple[tuple[Any, ...], dict[str, Any]],
    styles: Mapping[str, str],
    tensors: Mapping[str, Listed],
    tp: int,
) -> dict[str, tuple[int, ...]]:
    """Shape of the first input of every module with parameters, on one of tp ranks.

    call: arguments of the block, its hidden states first. styles: of its modules, by path.
    tensors: of its parameters, which are cut as they say. Collectives are stood in for by what
    they do to shapes; routed experts, which sort tokens by number, by their input.
    Raises ShapesDiffer where it does not run, and NotTried where shapes cannot tell.
    """
    trial: Any = copy.deepcopy(block, {id(config): config})
    for name, tensor in tensors.items():
        _cut(trial, name, tensor, tp)
    seen: dict[str, tuple[int, ...]] = {}
    for name, module in list(trial.named_modules()):
        style = styles.get(name)
        if style == EXPERTS:
            module.forward = lambda x, *args, **kwargs: x
            continue
        if next(module.parameters(recurse=False), None) is not None:
            module.register_forward_pre_hook(_note(name, seen))
        if tp > 1 and style in ("colwise_gather_output", "colwise_rep"):
            module.register_forward_hook(lambda _m, _a, out: torch.cat([out] * tp, dim=-1))
        elif tp > 1 and style in ("rowwise_split_input", "rowwise_rep"):
            module.register_forward_pre_hook(
                lambda _m, args: (args[0].chunk(tp, dim=-1)[0], *args[1:])
            )
    args, kwargs = _on_meta(call[0]), _on_meta(call[1])
    try:
        with torch.no_grad(), torch.device("meta"):
            out = trial(*args, **kwargs)
    except Exception as error:
        said = " ".join(str(error).split())
        if isinstance(error, NotImplementedError) or any(sign in said for sign in _NO_NUMBERS):
            raise NotTried(said) from None
        raise ShapesDiffer(said if len(said) <= 120 else said[:117] + "...") from None
    out = out[0] if isinstance(out, tuple) else out
    if out.shape != args[0].shape:
        raise ShapesDiffer(f"it makes {tuple(out.shape)} of {tuple(args[0].shape)}")
    return seen


def _note(name: str, seen: dict[str, tuple[int, ...]]) -> Any:
    def note(_module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor):
            seen.setdefault(name, tuple(args[0].shape))

    return note


def _on_meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to("meta")
    if isinstance(value, tuple | list):
        return type(value)(_on_meta(item) for item in value)
    if isinstance(value, dict):
        return {key: _on_meta(item) for key, item in value.items()}
    return value


def _cut(block: nn.Module, name: str, tensor: Listed, tp: int) -> None:
    """Give a parameter the shape of the first rank's share."""
    if tp == 1 or tensor.cut not in (Cut.EVEN, Cut.HEADS):
        return
    owner, _, last = name.rpartition(".")
    module: Any = block.get_submodule(owner)
    whole = getattr(module, last)
    size = list(tensor.shape)
    parts = min(tp, tensor.heads) if tensor.cut is Cut.HEADS else tp
    size[tensor.axis] //= parts
    if len(size) > whole.dim():  # a packed axis, folded into the one behind it
        size[tensor.axis - 1 : tensor.axis + 1] = [size[tensor.axis - 1] * size[tensor.axis]]
    setattr(module, last, nn.Parameter(torch.empty(size, device="meta", dtype=whole.dtype)))
    if tensor.cut is Cut.HEADS and last == "weight" and owner.endswith("k_proj"):
        attention: Any = block.get_submodule(owner.rpartition(".")[0])
        attention.num_key_value_groups = max(1, attention.num_key_value_groups * parts // tp)
