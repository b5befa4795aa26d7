"""Tiny configs of the decoder families of the installed transformers, for several rooms' tests."""

from __future__ import annotations

from typing import Any

# Fields of configs that decide sizes, where a family has them.
_SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 4, "vocab_size": 50,
    "max_position_embeddings": 64, "head_dim": 8, "initializer_range": 0.2,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None, "rotary_dim": 4,
    "query_pre_attn_scalar": 8,
    # Experts.
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4,
    "num_experts_per_tok": 2, "moe_k": 2, "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 16, "shared_intermediate_size": 16, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1, "num_shared_experts": 1,
    "moe_num_shared_experts": 1,
    # Latent attention, linear attention.
    "q_lora_rank": 12, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
    "v_head_dim": 8, "qk_head_dim": 12, "index_topk": 4, "index_n_heads": 2, "index_head_dim": 8,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}  # fmt: skip
# Left as the family has it where that is None: another kind of block.
_OPTIONAL = {"q_lora_rank": 12, "sliding_window": 5}


def tiny_config(family: str, **changes: Any) -> dict[str, Any]:
    """A config.json of a family, small enough that its gradients take milliseconds."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    default = CONFIG_MAPPING[family]()
    known = set(vars(default)) | set(default.to_dict())
    sizes = {name: value for name, value in {**_SIZES, **_OPTIONAL}.items() if name in known}
    for name in _OPTIONAL:
        if name in sizes and getattr(default, name, None) is None:
            del sizes[name]
    if "kv_lora_rank" in sizes:
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
        if "head_dim" in sizes:
            sizes["head_dim"] = sizes["qk_rope_head_dim"]
    for alias, name in (type(default).attribute_map or {}).items():
        if alias in _SIZES:
            sizes.setdefault(name, _SIZES[alias])
    return {"model_type": family, **sizes, **changes}


def families_with_a_plan() -> list[str]:
    """Every causal language model of the installed transformers whose config has a TP plan."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    found = []
    for family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        try:
            plan = getattr(CONFIG_MAPPING[family](), "base_model_tp_plan", None)
        except Exception:  # a family that has no default config
            continue
        if plan:
            found.append(family)
    return found
