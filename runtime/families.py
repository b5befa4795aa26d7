"""The Hugging Face classes behind a model's config: decoder layer, rotary positions, final norm."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from specs.errors import RunError
from specs.model import Model

# What to say instead of a stack trace where a family cannot run; profiles of these come from
# imports and estimates.
_NOT_RUN = {
    "opt": "its config carries no tensor-parallel plan and it learns its positions",
    "gpt_neo": "its config carries no tensor-parallel plan and it learns its positions",
    "sailor": "it is known only by the sizes in the Sailor data set, not by its structure",
}


@dataclass(frozen=True)
class Family:
    """The classes of one model family, with one model's config."""

    config: Any
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
        return float(getattr(self.config, "initializer_range", None) or 0.02)

    def build_block(self, block: int) -> nn.Module:
        """Block number `block` (from 0) of the model, on the meta device: shapes, no memory."""
        with torch.device("meta"):
            layer: nn.Module = self.block_class(self.config, block)
        return layer

    def build_norm(self) -> nn.Module:
        """The final norm, on the meta device."""
        with torch.device("meta"):
            norm: nn.Module = self.norm_class(self.config.hidden_size, eps=self.config.rms_norm_eps)
        return norm

    def window(self, block: nn.Module) -> int | None:
        """Sliding window of a block's attention in tokens, None for full attention."""
        attention = block.self_attn
        own = getattr(attention, "sliding_window", getattr(self.config, "sliding_window", None))
        return int(own) if own else None


def family_of(model: Model) -> Family:
    """The family of a model. Raises RunError naming one that cannot be built layer by layer."""
    return _family(json.dumps(model.config, sort_keys=True))


@lru_cache(maxsize=16)
def _family(config_json: str) -> Family:
    config_dict: dict[str, Any] = json.loads(config_json)
    name = str(config_dict.get("model_type"))
    if name in _NOT_RUN:
        raise RunError(
            f"models of family {name!r} cannot be run or measured here: {_NOT_RUN[name]}; "
            "use arachne-prof import or estimate for their profiles"
        )
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
    return Family(
        config,
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


def rotary_positions(
    model: Model, seq_len: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotary positions 0 .. seq_len - 1, shape (1, seq_len, head_dim).

    They depend on nothing but the length, so all blocks of a process share one pair.
    """
    return _positions(json.dumps(model.config, sort_keys=True), seq_len, device, dtype)
