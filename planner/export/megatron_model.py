"""A model as arguments of Megatron-LM's `pretrain_gpt.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.export.expressible import refuse
from specs.layer import LayerKind, LayerType
from specs.model import Model

# model_type -> what its router does, as Megatron-LM says it.
_SUPPORTED = ("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "deepseek_v3")
_ROTARY_BASE = 10000.0  # what a config without rope_theta means


def model_arguments(model: Model, launcher: str) -> list[str]:
    """Options for the shapes of a model: widths, attention, positions, experts, vocabulary.

    Names as in Megatron-LM core 0.16 (`megatron/training/arguments.py`; expert options from
    `TransformerConfig`). Raises PlanError for a model that these options cannot describe.
    """
    config = model.config
    family = str(config.get("model_type"))
    if family not in _SUPPORTED:
        raise refuse(
            launcher,
            f"its options describe no {family} model, only {', '.join(_SUPPORTED)}",
        )
    blocks = model.layers[1:-1]
    window = next((b.shape("window") for b in blocks if b.flag("window")), None)
    if window is not None:
        raise refuse(launcher, f"the model attends to a window of {window} tokens")
    scaling = _rope(config).get("rope_type") or (config.get("rope_scaling") or {}).get("type")
    if scaling not in (None, "default"):
        raise refuse(launcher, f"the model scales its rotary positions ({scaling})")
    block = blocks[0]
    if bool(block.flag("o_bias")) or bool(block.flag("mlp_bias")):
        raise refuse(
            launcher, "the model has biases in some of its linear layers beside query, key, value"
        )
    words: list[str] = []

    def say(name: str, *values: object) -> None:
        words.append(f"--{name}")
        words.extend(str(value) for value in values)

    say("num-layers", model.blocks)
    say("hidden-size", model.hidden)
    say("ffn-hidden-size", _width(blocks))
    say("num-attention-heads", block.shape("heads"))
    if block.flag("attention") == "mla":
        _latent_attention(block, config, say)
    else:
        say("group-query-attention")
        say("num-query-groups", block.shape("kv_heads"))
        say("kv-channels", block.shape("head_dim"))
    if block.flag("qk_norm"):
        say("qk-layernorm")
    if block.flag("qkv_bias"):
        say("add-qkv-bias")
    say("position-embedding-type", "rope")
    say("rotary-base", int(_rope(config).get("rope_theta") or _ROTARY_BASE))
    say("normalization", "RMSNorm")
    say("norm-epsilon", config.get("rms_norm_eps", 1e-6))
    say("swiglu")
    say("disable-bias-linear")
    if not model.tied:
        say("untie-embeddings-and-output-weights")
    if any(b.kind is LayerKind.MOE_BLOCK for b in blocks):
        _experts(blocks, config, say)
    # Its null tokenizer adds one word, and the vocabulary is padded to a multiple of TP alone.
    say("tokenizer-type", "NullTokenizer")
    say("vocab-size", model.layers[0].shape("vocab") - 1)
    say("make-vocab-size-divisible-by", 1)
    return words


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where a config keeps its rotary base: inside `rope_parameters` since transformers 5."""
    inner = config.get("rope_parameters")
    found: dict[str, Any] = {"rope_theta": config.get("rope_theta")}
    scaling = config.get("rope_scaling")
    for part in (scaling, inner):
        if isinstance(part, Mapping):
            found |= dict(part)
    return found


def _width(blocks: tuple[LayerType, ...]) -> int:
    dense = [b for b in blocks if b.kind is not LayerKind.MOE_BLOCK]
    return dense[0].shape("ffn") if dense else blocks[0].shape("expert_ffn")


def _latent_attention(block: LayerType, config: Mapping[str, Any], say: Any) -> None:
    say("multi-latent-attention")
    if block.shape("q_rank"):
        say("q-lora-rank", block.shape("q_rank"))
    say("kv-lora-rank", block.shape("kv_rank"))
    say("qk-head-dim", block.shape("nope_dim"))
    say("qk-pos-emb-head-dim", block.shape("rope_dim"))
    say("v-head-dim", block.shape("value_dim"))
    say("qk-layernorm")  # the norms of the two compressed vectors
    say("rope-type", "rope")  # latent attention there defaults to scaled positions


def _experts(blocks: tuple[LayerType, ...], config: Mapping[str, Any], say: Any) -> None:
    moe = next(b for b in blocks if b.kind is LayerKind.MOE_BLOCK)
    say("num-experts", moe.shape("experts"))
    say("moe-router-topk", moe.shape("top_k"))
    say("moe-ffn-hidden-size", moe.shape("expert_ffn"))
    sparse = [int(b.kind is LayerKind.MOE_BLOCK) for b in blocks]
    if not all(sparse):
        say("moe-layer-freq", str(sparse).replace(" ", ""))
    shared = moe.flag("shared_ffn")
    if isinstance(shared, int) and shared:
        say("moe-shared-expert-intermediate-size", shared)
    if moe.flag("router") == "deepseek_v3":
        say("moe-router-score-function", "sigmoid")
        say("moe-router-enable-expert-bias")
        if config.get("n_group"):
            say("moe-router-num-groups", config["n_group"])
            say("moe-router-group-topk", config["topk_group"])
        if config.get("routed_scaling_factor"):
            say("moe-router-topk-scaling-factor", config["routed_scaling_factor"])
    say("moe-router-load-balancing-type", "none")
    say("moe-token-dispatcher-type", "alltoall")
    say("moe-grouped-gemm")
