"""What of transformers stands behind a model's config: blocks, how they are called, norm."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from specs.discovered import FIELD
from specs.discovery import BALANCING_BIASES, Discovery, block_plan, discover
from specs.errors import RunError, SpecError
from specs.families import why_not_run
from specs.model import Model

Call = tuple[tuple[Any, ...], dict[str, Any]]  # arguments besides the hidden states


class Family(Protocol):
    """How the layers of one model are built and called."""

    @property
    def config(self) -> Any:
        """The config of transformers."""

    @property
    def tp_plan(self) -> dict[str, str]:
        """Module or parameter of a block -> style of its tensor parallelism."""

    @property
    def initializer_std(self) -> float:
        """Standard deviation of random weights."""

    def build_block(self, block: int) -> nn.Module:
        """Block number `block` (from 0) of the model, on the meta device: shapes, no memory."""

    def buffers(self, block: int) -> dict[str, float]:
        """What the buffers of a block are filled with, by name: one number each."""

    def build_norm(self) -> nn.Module:
        """The final norm, on the meta device."""

    def call(self, block: int, seq_len: int, device: torch.device, dtype: torch.dtype) -> Call:
        """What a block is called with besides hidden states: positions, and a mask or None."""


def _initializer_std(config: Any) -> float:
    return float(getattr(config, "initializer_range", None) or 0.02)


@dataclass(frozen=True)
class KnownFamily:
    """A family whose layers `specs.families` describes, by its classes."""

    config: Any
    config_json: str
    block_class: Any
    rotary_class: Any
    norm_class: Any

    @property
    def tp_plan(self) -> dict[str, str]:
        """Module or parameter of a block -> style of its tensor parallelism."""
        prefix = "layers.*."
        plan = self.config.base_model_tp_plan or {}
        return {
            name.removeprefix(prefix): style
            for name, style in plan.items()
            if name.startswith(prefix)
        }

    @property
    def initializer_std(self) -> float:
        """Standard deviation of random weights."""
        return _initializer_std(self.config)

    def build_block(self, block: int) -> nn.Module:
        """Block number `block` (from 0) of the model, on the meta device: shapes, no memory."""
        with torch.device("meta"):
            layer: nn.Module = self.block_class(self.config, block)
        return layer

    def buffers(self, block: int) -> dict[str, float]:
        """The balancing bias of a router: zero, and no gradient moves it."""
        names = (name for name, _ in self.build_block(block).named_buffers())
        return {name: 0.0 for name in names if name.endswith(BALANCING_BIASES)}

    def build_norm(self) -> nn.Module:
        """The final norm, on the meta device."""
        with torch.device("meta"):
            norm: nn.Module = self.norm_class(self.config.hidden_size, eps=self.config.rms_norm_eps)
        return norm

    def call(self, block: int, seq_len: int, device: torch.device, dtype: torch.dtype) -> Call:
        """Rotary positions, the same for all blocks, and a mask where a window is shorter."""
        window = _window(self.config_json, block)
        mask = None
        if window is not None and seq_len > window:
            # Otherwise plain causal attention is right: then the fused kernels need no mask.
            distance = torch.arange(seq_len, device=device)
            distance = distance[:, None] - distance[None, :]
            mask = ((distance >= 0) & (distance < window))[None, None]
        positions = _positions(self.config_json, seq_len, device, dtype)
        return (), {
            "attention_mask": mask,
            "position_embeddings": positions,
            "use_cache": False,
        }


@dataclass(frozen=True)
class DiscoveredFamily:
    """A family that transformers itself describes: its blocks, and how its forward calls them."""

    found: Discovery

    @property
    def config(self) -> Any:
        """The config of transformers."""
        return self.found.config

    @property
    def tp_plan(self) -> dict[str, str]:
        """Module or parameter of a block -> style of its tensor parallelism."""
        return block_plan(self.config, self.found.skeleton.blocks[0])

    @property
    def initializer_std(self) -> float:
        """Standard deviation of random weights."""
        return _initializer_std(self.config)

    def build_block(self, block: int) -> nn.Module:
        """A copy of the block of the model on the meta device."""
        return self._copy(self.found.skeleton.blocks[1][block])

    def buffers(self, block: int) -> dict[str, float]:
        """What its own modules fill the buffers of a block with."""
        prefix, starts = f"{self.found.skeleton.blocks_name}{block}.", self.found.skeleton.starts
        names = (name for name, _ in self.found.skeleton.blocks[1][block].named_buffers())
        return {name: starts.get(prefix + name, 0.0) for name in names}

    def build_norm(self) -> nn.Module:
        """The final norm, on the meta device."""
        name = self.found.norm
        return self._copy(self.found.skeleton.base.get_submodule(name)) if name else nn.Identity()

    def _copy(self, module: nn.Module) -> nn.Module:
        return copy.deepcopy(module, {id(self.config): self.config})  # one config for all

    def call(self, block: int, seq_len: int, device: torch.device, dtype: torch.dtype) -> Call:
        """What the model's own forward gives this block at this length."""
        frame = self.found.frame.prepare(device, dtype)
        args, kwargs = frame.run(torch.zeros((1, seq_len), dtype=torch.long, device=device)).calls[
            block
        ]
        return args[1:], kwargs


def family_of(model: Model) -> Family:
    """The family of a model. Raises RunError naming one that cannot be built layer by layer."""
    config_json = json.dumps(model.config, sort_keys=True)
    return _discovered(config_json) if FIELD in model.config else _family(config_json)


@lru_cache(maxsize=4)
def _discovered(config_json: str) -> DiscoveredFamily:
    config: dict[str, Any] = json.loads(config_json)
    try:
        found = discover(config, f"this {config.get('model_type')} model")
    except SpecError as error:
        raise RunError(str(error)) from None
    if json.loads(json.dumps(found.document)) != config[FIELD]:
        raise RunError(
            f"this version of transformers builds other {config.get('model_type')!r} layers than "
            "the one that described the model: read it from its config.json anew"
        )
    return DiscoveredFamily(found)


@lru_cache(maxsize=16)
def _family(config_json: str) -> KnownFamily:
    config_dict: dict[str, Any] = json.loads(config_json)
    name = str(config_dict.get("model_type"))
    refused = why_not_run(name)
    if refused:
        raise RunError(refused)
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    try:
        module = import_module(f"transformers.models.{name}.modeling_{name}")
        config = CONFIG_MAPPING[name].from_dict(_known_fields(config_dict))
    except (ImportError, KeyError) as error:
        raise RunError(
            f"models of family {name!r} cannot be built: transformers has no such decoder ({error})"
        ) from None
    except Exception as error:  # whatever class the library's own validation raises
        cause = error.__cause__ or error
        raise RunError(f"transformers refuses the config of this {name!r} model: {cause}") from None
    if not getattr(config, "base_model_tp_plan", None):
        raise RunError(
            f"models of family {name!r} cannot be run: their config carries no tensor-parallel plan"
        )
    config._attn_implementation = "sdpa"
    config._experts_implementation = "eager"
    # No dropout and no router noise: a loss that depends on the layout cannot be checked.
    config.attention_dropout = 0.0
    if hasattr(config, "router_jitter_noise"):
        config.router_jitter_noise = 0.0
    return KnownFamily(
        config,
        config_json,
        _class_ending(module, "DecoderLayer"),
        _class_ending(module, "RotaryEmbedding"),
        _class_ending(module, "RMSNorm"),
    )


def _known_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config without the fields that only Arachne reads."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    return {key: value for key, value in config.items() if not key.startswith("arachne_")}


def _class_ending(module: Any, ending: str) -> Any:
    own = [
        value
        for key, value in vars(module).items()
        if key.endswith(ending) and isinstance(value, type) and value.__module__ == module.__name__
    ]
    if len(own) != 1:
        raise RunError(
            f"{module.__name__} has {len(own)} classes named ...{ending}, expected one: "
            "this family cannot be built layer by layer"
        )
    return own[0]


@lru_cache(maxsize=4)
def _positions(
    config_json: str, seq_len: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    family = _family(config_json)
    rotary = family.rotary_class(family.config).to(device)
    like = torch.empty(0, device=device, dtype=dtype)
    with torch.no_grad():
        cos, sin = rotary(like, torch.arange(seq_len, device=device)[None])
    return cos, sin


@lru_cache(maxsize=256)
def _window(config_json: str, block: int) -> int | None:
    """Sliding window of a block's attention in tokens, None for full attention."""
    family = _family(config_json)
    attention = cast(Any, family.build_block(block)).self_attn
    own = getattr(attention, "sliding_window", getattr(family.config, "sliding_window", None))
    return int(own) if own else None
