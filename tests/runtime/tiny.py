"""Tiny models of every family that runs, and the whole Hugging Face model as the truth."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from runtime.families import family_of
from runtime.layers import build_layer
from specs.model import Model

_BASE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    # Larger than in real models: gradients of every weight then stand clear of rounding.
    "initializer_range": 0.2,
}
_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-bias": {"attention_bias": True, "mlp_bias": True},
    "mistral-window": {"model_type": "mistral", "sliding_window": 5},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
        "mlp_only_layers": [0],
    },
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "q_lora_rank": 12,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "head_dim": 4,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 1,
        "n_group": 2,
        "topk_group": 1,
        "norm_topk_prob": True,
    },
}
FAMILIES = tuple(_FAMILIES)


def tiny_model(family: str, **changes: Any) -> Model:
    """A model small enough that its gradients are compared in milliseconds."""
    own = _FAMILIES[family]
    config = {"model_type": family.split("-")[0]} | _BASE | own | changes
    model = Model.from_config(f"tiny-{family}", config)
    family_of(model)  # imports its classes here, once, and not in every forked process
    return model


def whole_model(model: Model, seed: int) -> torch.nn.Module:
    """The Hugging Face model in fp32, with the weights that `build_layer` gives for the seed."""
    from transformers import AutoModelForCausalLM

    whole = AutoModelForCausalLM.from_config(
        family_of(model).config, dtype=torch.float32, attn_implementation="sdpa"
    )
    weights = dict(whole.named_parameters(remove_duplicate=False))
    for index, layer_type in enumerate(model.layers):
        layer = build_layer(
            layer_type,
            model,
            tp_group=None,
            dtype=torch.float32,
            device=torch.device("cpu"),
            seed=seed,
            layer_index=index,
        )
        for name, parameter in layer.named_parameters():
            weights[layer.placements[name].name].data.copy_(parameter.data)
    return whole


def whole_loss(whole: torch.nn.Module, tokens_BS: Tensor, labels_BS: Tensor) -> Tensor:
    """Summed cross entropy by Hugging Face's model and torch's own loss."""
    logits = whole(input_ids=tokens_BS, use_cache=False).logits
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), labels_BS.flatten(), reduction="sum"
    )


def sample_batch(model: Model, batch: int, seq_len: int, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens and labels, shape (batch, seq_len) each."""
    generator = torch.Generator().manual_seed(seed)
    vocab = int(model.config["vocab_size"])
    tokens = torch.randint(vocab, (batch, seq_len + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Largest difference over the largest magnitude of what was expected."""
    found, expected = found.detach(), expected.detach()
    scale = float(expected.abs().max()) or 1.0
    return float((found - expected).abs().max()) / scale
