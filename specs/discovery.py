"""What the layers of a decoder are that has no closed form here, found from transformers itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from specs.errors import SpecError
from specs.layer import LayerKind, LayerType
from specs.layout import FINAL_NORM_OF, HEAD_BIAS, Cut, not_divisible
from specs.layout import Tensor as Listed
from specs.trial import EXPERTS, NotTried, ShapesDiffer, input_shapes
from specs.whole_model import Frame, FrameRun, Skeleton, decoder_config

# Style of a module in a tensor-parallel plan -> how its weight is cut, as an axis from the end
# (bare parameters of experts have the experts before the two axes of a linear layer).
_OUT = {"colwise", "colwise_rep", "colwise_gather_output"}
_INTO = {"rowwise", "rowwise_rep", "rowwise_split_input"}
_WHOLE = {"mla_kv_a_proj", EXPERTS, "local_params", "all_reduce"}
_CUT = (Cut.EVEN.value, Cut.HEADS.value)
# Of routers: zero at the start, and no gradient moves them.
BALANCING_BIASES = ("e_score_correction_bias", "expert_bias")
_KEYS_AND_VALUES = ("k_proj", "v_proj")
_QUERIES = ("q_proj", "o_proj", "qkv_proj", "query_key_value", "dense", "out_proj")
# Fields of a config that no block depends on, however many of them there are.
_NOT_OF_BLOCKS = {
    "_name_or_path", "architectures", "bos_token_id", "dtype", "eos_token_id", "model_type",
    "num_hidden_layers", "pad_token_id", "tie_word_embeddings", "torch_dtype",
    "transformers_version", "use_cache", "vocab_size",
}  # fmt: skip


@dataclass(frozen=True)
class Discovery:
    """What transformers says of a model. document: its layers, as `specs.discovered` reads them."""

    config: Any
    skeleton: Skeleton
    frame: Frame
    norm: str  # name of the final norm in the base model, "" without one
    document: dict[str, Any]


def discover(config: Mapping[str, Any], where: str) -> Discovery:
    """The layers of a model, from its config.

    Builds the whole decoder on the meta device (shapes, no memory) for its tensors and exact
    counts, and runs its forward with nothing but records in the place of its blocks, for how ends
    and blocks are called. Raises SpecError naming a family that cannot be split, and why.
    """
    found = decoder_config(config, where)
    try:
        return _discover(found, Skeleton.of(found, where))
    except SpecError:
        raise
    except Exception as error:  # of the family's own code, whatever it is
        raise _refused(found, f"{type(error).__name__}: {_line(error)}") from None


def _discover(found: Any, skeleton: Skeleton) -> Discovery:
    frame = Frame(found, skeleton)
    try:
        run, other = _runs(frame)
    except SpecError:
        raise
    except Exception as error:
        raise _refused(
            found, f"its forward does not run without its blocks ({_line(error)})"
        ) from None
    _check_calls(found, run, other)
    blocks = skeleton.blocks[1]
    kinds: dict[str, int] = {}
    described: list[dict[str, Any]] = []
    order = []
    for index, block in enumerate(blocks):
        kind = _block(found, skeleton, block, run.calls[index], index)
        key = json.dumps(kind, sort_keys=True)
        if key not in kinds:
            kinds[key] = len(described)
            described.append(kind)
        order.append(kinds[key])
    if not any(row[2] in _CUT for kind in described for row in kind["tensors"]):
        # Where it splits some kinds of block, it means the others to run whole on every rank.
        for kind in described:
            kind["shapes"]["unsplit"] = (
                f"the tensor-parallel plan of {found.model_type} splits none of its blocks"
            )
    document = {
        "embedding": _embedding(found, skeleton, run),
        "blocks": order,
        "kinds": described,
        "head": _head(found, skeleton, run),
    }
    _check_total(found, skeleton, document)
    return Discovery(found, skeleton, frame, run.norm, document)


def _refused(config: Any, why: str) -> SpecError:
    return SpecError(
        f"models of family {config.model_type!r} cannot be split layer by layer: {why}"
    )


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 120 else text[:117] + "..."


def _runs(frame: Frame) -> tuple[FrameRun, FrameRun]:
    """Two runs over other tokens: what differs between them depends on the hidden states."""
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6, 1, 2]])
    first = frame.run(tokens)
    return first, frame.run(tokens.flip(-1))


def _check_calls(config: Any, run: FrameRun, other: FrameRun) -> None:
    for (args, kwargs), (again, again_kwargs) in zip(run.calls, other.calls, strict=True):
        pairs = [*zip(args[1:], again[1:], strict=True)]
        pairs += [(value, again_kwargs[key]) for key, value in kwargs.items()]
        for value, repeated in pairs:
            if not _is_plain(value) or not _same(value, repeated):
                raise _refused(
                    config, "its blocks take more than hidden states, positions and masks"
                )


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, Tensor | bool | int | float | str)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def _block(
    config: Any,
    skeleton: Skeleton,
    block: nn.Module,
    call: tuple[tuple[Any, ...], dict[str, Any]],
    index: int,
) -> dict[str, Any]:
    plan, prefix = block_plan(config, skeleton.blocks[0]), f"{skeleton.blocks_name}{index}."
    for name, _ in block.named_buffers():
        if skeleton.starts.get(prefix + name) is None and not name.endswith(BALANCING_BIASES):
            raise _refused(config, f"no rule gives the buffer {name} of its blocks a value")
    for name, parameter in block.named_parameters():
        if not parameter.requires_grad and not name.endswith(BALANCING_BIASES):
            raise _refused(config, f"{name} of its blocks is not trained")
    tensors = [
        _tensor(config, plan, block, name, parameter, skeleton.starts.get(prefix + name))
        for name, parameter in block.named_parameters()
    ]
    shapes: dict[str, Any] = {
        "family": config.model_type,
        "hidden": int(config.hidden_size),
        "structure": _structure(config, block, index),
    }
    words = [word for _, word in sorted(_per_layer(config, index).items()) if isinstance(word, str)]
    if any(style_of(plan, f"{name}.") == EXPERTS for name, _ in block.named_modules() if name):
        words.append("experts")
    if words:
        shapes["kind"] = " ".join(dict.fromkeys(words))
    unsplit = _try(config, block, call, plan, tensors)
    if unsplit:
        shapes["unsplit"] = unsplit
    return {"shapes": shapes, "tensors": tensors}


def _try(
    config: Any,
    block: nn.Module,
    call: tuple[tuple[Any, ...], dict[str, Any]],
    plan: Mapping[str, str],
    tensors: list[list[Any]],
) -> str:
    """Why a block does not run as one rank's share; "" where it does, or nothing of it is cut.

    A parameter that the plan leaves whole, of a module that works on this rank's part of a tensor
    (a norm of its heads), has a summand of its gradient: it is listed as that. Raises SpecError
    for a block that does not even run whole.
    """
    listed = {row[0]: Listed(row[0], tuple(row[1]), Cut(row[2]), *row[3:]) for row in tensors}
    styles = {name: style_of(plan, f"{name}.") or "" for name, _ in block.named_modules() if name}
    args, kwargs = call
    hidden = torch.empty((2, *args[0].shape[1:]), device="meta")
    arguments = ((hidden, *args[1:]), kwargs)
    layer = LayerType.of(LayerKind.BLOCK, {"tensors": json.dumps(tensors)}, 0)
    tp = next((n for n in (2, 3, 5, 7) if not_divisible(layer, n) is None), 0)
    try:
        whole = input_shapes(block, config, arguments, styles, listed, 1)
        share = input_shapes(block, config, arguments, styles, listed, tp) if tp else whole
    except NotTried:
        return ""
    except ShapesDiffer as error:
        if not any(row[2] in _CUT for row in tensors):
            raise _refused(config, f"a block does not run ({error})") from None
        try:
            input_shapes(block, config, arguments, styles, listed, 1)
        except ShapesDiffer:
            raise _refused(config, f"a block does not run ({error})") from None
        return f"{config.model_type} cannot run as its tensor-parallel plan splits it: {error}"
    for row in tensors:
        owner = row[0].rpartition(".")[0]
        if row[2] == Cut.NONE.value and share.get(owner) != whole.get(owner):
            if style_of(plan, row[0]) in _INTO:
                continue  # the bias of a layer split by its input
            row[2] = Cut.SUMMED.value
    return ""


def block_plan(config: Any, blocks_name: str) -> dict[str, str]:
    """Style of tensor parallelism by path in a block, of the config's own plan."""
    prefix = f"{blocks_name}.*."
    plan = config.base_model_tp_plan or {}
    return {
        name.removeprefix(prefix): style for name, style in plan.items() if name.startswith(prefix)
    }


def style_of(plan: Mapping[str, str], name: str) -> str | None:
    """The style of a parameter: its own, or its module's. Lists inside a block count as `*`."""
    path = ".".join("*" if part.isdigit() else part for part in name.split("."))
    return plan.get(path) or plan.get(path.rpartition(".")[0])


def _tensor(
    config: Any,
    plan: Mapping[str, str],
    block: nn.Module,
    name: str,
    parameter: Tensor,
    start: float | None,
) -> list[Any]:
    """[name, shape, cut, axis, heads, start] of a parameter: the fields of specs.layout.Tensor."""
    style = style_of(plan, name)
    module, _, last = name.rpartition(".")
    shape, dim = list(parameter.shape), parameter.dim()
    cut, axis, heads = Cut.NONE, 0, 0
    if style in _OUT:
        cut, axis = Cut.EVEN, max(0, dim - 2)
        if style == "colwise":
            cut, heads = _heads_of(config, block, module)
    elif style in _INTO:
        if not (last == "bias" and dim == 1):  # added once, behind the sum
            cut, axis = Cut.EVEN, dim - 1
            if style == "rowwise":
                heads = _heads_of(config, block, module)[1]
    elif style in ("packed_colwise", "packed_rowwise"):
        if dim < 2:
            raise _refused(config, f"its tensor-parallel plan packs {name}, which has one axis")
        axis = dim - 2 if style == "packed_colwise" else dim - 1
        if shape[axis] % 2:
            raise _refused(config, f"the two packed halves of {name} are not of one size")
        shape[axis : axis + 1] = [2, shape[axis] // 2]
        cut, axis = Cut.EVEN, axis + 1
    elif style == "replicated_with_grad_allreduce":
        cut = Cut.SUMMED
    elif style is not None and style not in _WHOLE:
        raise _refused(config, f"its tensor-parallel plan wants {name} {style}, which is not known")
    if start is None and dim == 1 and last == "bias":
        start = 0.0
    return [name, shape, cut.value, axis, heads, start]


def _heads_of(config: Any, block: nn.Module, module: str) -> tuple[Cut, int]:
    """A cut never goes through a head; of few key heads, each is held by several ranks.

    Heads are the attention module's own where it says so: they may differ from block to block.
    """
    owner, _, last = module.rpartition(".")
    attention: Any = block.get_submodule(owner)
    queries = 0
    for name in ("num_attention_heads", "num_heads"):
        queries = queries or int(getattr(attention, name, 0))
    queries = queries or int(config.num_attention_heads)
    groups = getattr(attention, "num_key_value_groups", None)
    if last in _KEYS_AND_VALUES and groups:
        return Cut.HEADS, queries // int(groups)
    return Cut.EVEN, queries if last in _QUERIES else 0


def _per_layer(config: Any, index: int) -> dict[str, Any]:
    """What the config says of one block alone: elements of its lists as long as the model."""
    count = int(config.num_hidden_layers)
    return {
        name: value[index]
        for name, value in config.to_dict().items()
        if isinstance(value, list | tuple) and len(value) == count
    }


def _structure(config: Any, block: nn.Module, index: int) -> str:
    """A hash of all that decides what a block computes, equal for blocks that compute the same.

    Its modules with their plain attributes, and the config without what no block depends on:
    another field there makes another block, whether or not it matters.
    """
    modules = [
        [
            name,
            type(module).__name__,
            sorted(
                (key, repr(value))
                for key, value in vars(module).items()
                if isinstance(value, bool | int | float | str | None) and key != "layer_idx"
            ),
            [(key, list(value.shape)) for key, value in module.named_parameters(recurse=False)],
        ]
        for name, module in block.named_modules()
    ]
    count = int(config.num_hidden_layers)
    fields = {
        name: value
        for name, value in config.to_dict().items()
        if name not in _NOT_OF_BLOCKS
        and not (isinstance(value, list | tuple) and len(value) == count)
    }
    text = json.dumps([modules, fields, _per_layer(config, index)], sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _embedding(config: Any, skeleton: Skeleton, run: FrameRun) -> dict[str, Any]:
    """Vocabulary, width, and the factor from a row of the table to the first block's input."""
    weight = skeleton.model.get_input_embeddings().weight
    scale = _factor(run.table_BSH, run.calls[0][0][0])
    if scale is None:
        raise _refused(config, "it does more to an embedding than to scale it")
    return {"vocab": weight.shape[0], "hidden": weight.shape[1], "scale": scale}


def _head(config: Any, skeleton: Skeleton, run: FrameRun) -> dict[str, Any]:
    """Final norm and projection, and what is done to hidden states before and logits behind it."""
    model = skeleton.model
    prefix = "" if skeleton.base is model else model.base_model_prefix + "."
    norm = skeleton.base.get_submodule(run.norm) if run.norm else nn.Identity()
    tensors: list[list[Any]] = []
    for name, parameter in norm.named_parameters():
        start = skeleton.starts.get(f"{prefix}{run.norm}.{name}", 0.0 if name == "bias" else 1.0)
        tensors.append([FINAL_NORM_OF + name, list(parameter.shape), Cut.NONE.value, 0, 0, start])
    head = model.get_output_embeddings()
    tied = head.weight is model.get_input_embeddings().weight or bool(
        getattr(config, "tie_word_embeddings", False)
    )
    if head.bias is not None:
        tensors.append([HEAD_BIAS, list(head.bias.shape), Cut.EVEN.value, 0, 0, 0.0])
    before = _factor(run.norm_out_BSH, run.head_in_BSH)
    if before is None:
        raise _refused(
            config, "it does more between the final norm and the projection than to scale"
        )
    cap = getattr(config, "final_logit_softcapping", None)
    raw = run.head_out_BSV
    behind = _factor(raw, run.logits_BSV)
    if behind is None and cap:
        if not torch.allclose(torch.tanh(raw / cap) * cap, run.logits_BSV, rtol=1e-4, atol=1e-6):
            raise _refused(config, "it caps its logits in a way that is not known")
        behind = 1.0
    elif behind is None:
        raise _refused(config, "it does more to its logits than to scale or cap them")
    else:
        cap = None
    vocab, hidden = head.weight.shape
    return {
        "vocab": vocab, "hidden": hidden, "tied": tied, "tensors": tensors,
        "norm": run.norm, "family": config.model_type,
        "scale": before, "logit_scale": behind, "cap": cap,
    }  # fmt: skip


def _factor(a: Tensor, b: Tensor) -> float | None:
    """The c with b = c * a, None where there is none."""
    if a.shape != b.shape:
        return None
    a, b = a.double(), b.double()
    square = float((a * a).sum())
    if square == 0.0:
        return None
    c = float((a * b).sum()) / square
    if not torch.allclose(a * c, b, rtol=1e-5, atol=1e-7 * float(b.abs().max())):
        return None
    rounded = float(f"{c:.6g}")
    return rounded if abs(c - rounded) <= 2e-7 * abs(c) else float(f"{c:.9g}")


def _check_total(config: Any, skeleton: Skeleton, document: Mapping[str, Any]) -> None:
    """Embedding, blocks and head must be all there is: every parameter counted once."""
    from specs.discovered import layers_of_document

    layers = layers_of_document(document, "the document")
    total = sum(layer.parameters for layer in layers)
    head = document["head"]
    if head["tied"]:
        total -= head["vocab"] * head["hidden"]
    kept = {id(p): p.numel() for p in skeleton.model.parameters()}
    whole = sum(kept.values())
    if head["tied"] and skeleton.model.get_output_embeddings().weight is not (
        skeleton.model.get_input_embeddings().weight
    ):
        whole -= head["vocab"] * head["hidden"]  # tied only once weights are loaded
    if total != whole:
        raise _refused(
            config,
            f"embedding, blocks, final norm and projection hold {total} of its {whole} parameters",
        )
