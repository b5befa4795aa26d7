"""A decoder of `transformers` without its weights: config, blocks on no device, and its frame.

Imported only where a model is of a family that `specs.families` has no closed form for, or where
such a model runs: it takes torch and transformers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from specs.errors import SpecError

_ROWS = 7  # of a frame's vocabulary: enough to tell rows apart, prime so that nothing divides it
_TEXT_CONFIG = ("text_config", "llm_config", "language_config")


def decoder_config(config: Mapping[str, Any], where: str) -> Any:
    """The config of `transformers`, with every dropout off and attention by torch's own kernel.

    config: the content of a config.json. Raises SpecError naming a family that transformers does
    not have as a decoder, whose config carries no tensor-parallel plan, or that refuses the config.
    """
    logging.getLogger("transformers").setLevel(logging.ERROR)
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    family = config.get("model_type")
    if not isinstance(family, str) or family not in CONFIG_MAPPING:
        raise SpecError.in_file(
            where, "model_type", family, "a family of the installed transformers"
        )
    known = {key: value for key, value in config.items() if not key.startswith("arachne_")}
    try:
        found = CONFIG_MAPPING[family].from_dict(known)
    except Exception as error:  # whatever class the library's own validation raises
        cause = " ".join(str(error.__cause__ or error).split())
        raise SpecError(f"{where}: transformers refuses this {family} config: {cause}") from None
    if not getattr(found, "base_model_tp_plan", None):
        raise SpecError(
            f"{where}: models of family {family!r} cannot be split: their config carries no "
            "tensor-parallel plan" + _hint(config)
        )
    if type(found) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise SpecError(
            f"{where}: models of family {family!r} cannot be split layer by layer: transformers "
            "has no causal language model of it"
        )
    count = getattr(found, "num_hidden_layers", None)
    if count is None:
        raise SpecError(
            f"{where}: models of family {family!r} cannot be split layer by layer: their config "
            "has no num_hidden_layers of its own" + _hint(config)
        )
    if not isinstance(count, int) or count < 1:
        raise SpecError.in_file(where, "num_hidden_layers", count, "a whole number of at least 1")
    for name in list(vars(found)):
        # A loss that depends on the layout cannot be checked.
        if "dropout" in name or name in ("resid_pdrop", "embd_pdrop", "attn_pdrop"):
            with suppress(Exception):
                setattr(found, name, 0.0)
        if name == "router_jitter_noise":
            setattr(found, name, 0.0)
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(found)]
    capped = getattr(found, "attn_logit_softcapping", None)
    fused = getattr(model_class, "_supports_sdpa", False) and not capped
    found._attn_implementation = "sdpa" if fused else "eager"
    found._experts_implementation = "eager"
    return found


def _hint(config: Mapping[str, Any]) -> str:
    """What to do with the config of a model of more than text."""
    inner = next((name for name in _TEXT_CONFIG if isinstance(config.get(name), dict)), None)
    return f"; give its {inner} as a config.json of its own" if inner else ""


def _model_class(config: Any) -> Any:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]


class _Constants(TorchFunctionMode):
    """Remembers which tensors were made, or last filled, with one number throughout."""

    def __init__(self) -> None:
        super().__init__()
        self.of: dict[int, float] = {}
        self._alive: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        value = {"ones": 1.0, "zeros": 0.0, "zero_": 0.0, "ones_like": 1.0, "zeros_like": 0.0}
        if isinstance(out, Tensor):
            if name in value:
                self._note(out, value[name])
            elif name in ("full", "fill_") and len(args) > 1 and _is_number(args[1]):
                self._note(out, float(args[1]))
            elif name == "tensor" and args and _is_number(args[0]):
                self._note(out, float(args[0]))
            elif name.endswith("_") and not name.endswith("__") and name != "requires_grad_":
                self.of.pop(_storage(out), None)
        return out

    def _note(self, tensor: Tensor, value: float) -> None:
        self._alive.append(tensor)  # so that no other tensor gets its storage's address
        self.of[_storage(tensor)] = value

    def value(self, tensor: Tensor) -> float | None:
        """The number that a tensor is filled with; None where it is not known to be one."""
        return self.of.get(_storage(tensor))


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


@dataclass(frozen=True)
class Skeleton:
    """A whole decoder on the meta device: every shape, and no memory.

    starts: of parameters and buffers that their modules fill with one number (norms, biases), that
    number, by name in the model.
    """

    model: Any
    starts: dict[str, float]

    @classmethod
    def of(cls, config: Any, where: str) -> Skeleton:
        """The skeleton of a config. Raises SpecError where its class cannot be built."""
        constants = _Constants()
        try:
            with torch.device("meta"), constants:
                model = _model_class(config)(config)
        except Exception as error:
            said = " ".join(str(error).split())
            raise SpecError(
                f"{where}: transformers cannot build this {config.model_type} model: {said}"
            ) from None
        starts = {}
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            value = constants.value(tensor)
            if value is not None:
                starts[name] = value
        return cls(model, starts)

    @property
    def base(self) -> Any:
        """The decoder without its language model head."""
        return self.model.base_model

    @property
    def blocks(self) -> tuple[str, nn.ModuleList]:
        """Name of the list of blocks in the base model, and the list."""
        return blocks_of(self.base, int(self.base.config.num_hidden_layers))

    @property
    def blocks_name(self) -> str:
        """Name of the list of blocks in the whole model, with a dot behind it."""
        prefix = "" if self.base is self.model else self.model.base_model_prefix + "."
        return f"{prefix}{self.blocks[0]}."


def blocks_of(base: Any, count: int) -> tuple[str, nn.ModuleList]:
    """The list of `count` blocks in a base model, with its name. Raises SpecError without one."""
    found = [
        (name, child)
        for name, child in base.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == count
    ]
    if len(found) != 1:
        raise SpecError(
            f"models of family {base.config.model_type!r} cannot be split layer by layer: "
            f"transformers keeps their blocks in {len(found)} lists of {count}, expected one"
        )
    return found[0]


class _Recorder(nn.Module):
    """Stands where a block would: hands its input on, and keeps what it was called with.

    Whatever the model asks of its blocks (their kind of attention) it asks of the block on the
    meta device.
    """

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.__dict__["block"] = block
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["block"], name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The hidden states, unchanged."""
        hidden = args[0] if args else kwargs.pop("hidden_states")
        self.calls.append(((hidden, *args[1:]), kwargs))
        return hidden


@dataclass(frozen=True)
class FrameRun:
    """One forward of a frame: what every block was called with, and both ends.

    table_BSH: rows of the embedding of the tokens; calls: per block positional and keyword
    arguments, the first positional one its hidden states; norm: name of the module behind the
    blocks; head_in_BSH, head_out_BSV: of the output projection; logits_BSV: what the model returns.
    """

    table_BSH: Tensor
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
    norm: str
    norm_out_BSH: Tensor
    head_in_BSH: Tensor
    head_out_BSV: Tensor
    logits_BSV: Tensor


class Frame(nn.Module):
    """All of a decoder but its blocks, for real, with a vocabulary of a few rows.

    Its own forward says how the family scales its embedding, how it calls each block (rotary
    positions, masks), and what it does to logits: a few hundred kilobytes, whatever the model.
    """

    def __init__(self, config: Any, skeleton: Skeleton) -> None:
        super().__init__()
        name, blocks = skeleton.blocks
        count = config.num_hidden_layers
        kept = {key: getattr(config, key, None) for key in ("vocab_size", "pad_token_id")}
        config.num_hidden_layers, config.vocab_size, config.pad_token_id = 0, _ROWS, None
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                self.model = _model_class(config)(config)
        finally:
            config.num_hidden_layers = count
            for key, value in kept.items():
                setattr(config, key, value)
        self.name = name
        self.model.eval()
        self.recorders = [_Recorder(block) for block in blocks]
        setattr(self.model.base_model, name, nn.ModuleList(self.recorders))

    def prepare(self, device: torch.device, dtype: torch.dtype) -> Frame:
        """Move to a device, with hidden states of a precision.

        Buffers stay as they are: rotary frequencies rounded to 16 bit are other positions.
        """
        self.to(device)
        for parameter in self.parameters():
            parameter.data = parameter.data.to(dtype)
        return self

    @torch.no_grad()
    def run(self, tokens_BS: Tensor) -> FrameRun:
        """One forward over tokens smaller than the frame's vocabulary."""
        base, seen = self.model.base_model, {}
        after: list[tuple[str, Tensor]] = []
        for recorder in self.recorders:
            recorder.calls.clear()

        def keep_norm(name: str) -> Any:
            def hook(_module: nn.Module, _args: Any, out: Any) -> None:
                if self.recorders[-1].calls and isinstance(out, Tensor):
                    after.append((name, out))

            return hook

        def keep_head(_module: nn.Module, args: Any, out: Tensor) -> None:
            seen["head"] = (args[0], out)

        embedding, head = self.model.get_input_embeddings(), self.model.get_output_embeddings()
        hooks = [head.register_forward_hook(keep_head)]
        for name, child in base.named_children():
            if name != self.name and child is not embedding:
                hooks.append(child.register_forward_hook(keep_norm(name)))
        try:
            logits = self.model(input_ids=tokens_BS, use_cache=False).logits
        finally:
            for hook in hooks:
                hook.remove()
        counts = {len(recorder.calls) for recorder in self.recorders}
        if counts != {1} or len(after) > 1:
            raise SpecError(
                f"models of family {base.config.model_type!r} cannot be split layer by layer: "
                "their blocks are not called one after the other, once each"
            )
        calls = [recorder.calls[0] for recorder in self.recorders]
        last = calls[-1][0][0]
        norm, norm_out = after[0] if after else ("", last)
        return FrameRun(embedding.weight[tokens_BS], calls, norm, norm_out, *seen["head"], logits)
