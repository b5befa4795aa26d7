"""From a Hugging Face config to layer types, one function per way of building a block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specs.errors import SpecError
from specs.layer import LayerKind, LayerType, Shape

MOST_BLOCKS, MOST_SIZE = 10_000, 10**9  # beyond anything that is built; a check of nonsense


class ConfigReader:
    """Reads fields of a config.json and refuses bad ones with file, field, value, expected."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config = config
        self.where = where

    def positive(self, *names: str, default: int | None = None) -> int:
        """The first of the fields that is there, as an int of at least 1."""
        for name in names:
            if self.config.get(name) is not None:
                value = self.config[name]
                if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                    raise SpecError.in_file(self.where, name, value, "a whole number of at least 1")
                return self.within(name, value)
        if default is not None:
            return default
        raise SpecError.in_file(self.where, names[0], None, "a whole number of at least 1")

    def count(self, name: str, default: int) -> int:
        """A field as an int of at least 0."""
        value = self.config.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise SpecError.in_file(self.where, name, value, "a whole number of at least 0")
        return self.within(name, value)

    def within(self, name: str, value: int) -> int:
        """The number, if it is not beyond anything that is built."""
        most = MOST_BLOCKS if name in ("num_hidden_layers", "num_layers") else MOST_SIZE
        if value > most:
            raise SpecError.in_file(self.where, name, value, f"at most {most:,}")
        return value

    def text(self, name: str, default: str) -> str:
        """A field as a string."""
        value = self.config.get(name, default)
        if not isinstance(value, str):
            raise SpecError.in_file(self.where, name, value, "a string")
        return value

    def yes(self, name: str, default: bool) -> bool:
        """A field as true or false."""
        value = self.config.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise SpecError.in_file(self.where, name, value, "true or false")
        return value


Layers = list[LayerType]


def _grouped_attention(
    read: ConfigReader, *, qk_norm: bool, qkv_bias: bool, o_bias: bool
) -> tuple[dict[str, Shape], int]:
    """Shapes and parameters of grouped-query attention with rotary positions."""
    hidden = read.positive("hidden_size")
    heads = read.positive("num_attention_heads")
    kv_heads = read.positive("num_key_value_heads", default=heads)
    if read.config.get("head_dim") is None and hidden % heads:
        raise SpecError.in_file(
            read.where, "num_attention_heads", heads, f"a divisor of hidden_size {hidden}"
        )
    head_dim = read.positive("head_dim", default=hidden // heads)
    if heads % kv_heads:
        raise SpecError.in_file(
            read.where, "num_key_value_heads", kv_heads, f"a divisor of num_attention_heads {heads}"
        )
    shapes: dict[str, Shape] = {
        "attention": "gqa",
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "qk_norm": qk_norm,
        "qkv_bias": qkv_bias,
        "o_bias": o_bias,
    }
    window = read.config.get("sliding_window")
    if isinstance(window, int) and read.config.get("use_sliding_window", True):
        shapes["window"] = window
    qkv_width = (heads + 2 * kv_heads) * head_dim
    parameters = hidden * qkv_width + heads * head_dim * hidden
    parameters += (qkv_width if qkv_bias else 0) + (hidden if o_bias else 0)
    parameters += 2 * head_dim if qk_norm else 0
    return shapes, parameters


def _gated_mlp(hidden: int, width: int, bias: bool = False) -> int:
    return 3 * hidden * width + (2 * width + hidden if bias else 0)


def _ends(read: ConfigReader, *, tied_default: bool) -> tuple[LayerType, LayerType]:
    """Embedding and head (RMS norm, output projection, loss) of a rotary-position family."""
    hidden = read.positive("hidden_size")
    vocab = read.positive("vocab_size")
    tied = read.yes("tie_word_embeddings", tied_default)
    embedding = LayerType.of(
        LayerKind.EMBEDDING, {"hidden": hidden, "vocab": vocab}, vocab * hidden
    )
    head = LayerType.of(
        LayerKind.HEAD,
        {"hidden": hidden, "vocab": vocab, "norm": "rms", "tied": tied},
        vocab * hidden + hidden,
    )
    return embedding, head


def _activation(read: ConfigReader) -> str:
    return read.text("hidden_act", "silu")


def _llama_like(
    read: ConfigReader, *, qk_norm: bool, qkv_bias: bool, o_bias: bool = False
) -> Layers:
    attention, parameters = _grouped_attention(
        read, qk_norm=qk_norm, qkv_bias=qkv_bias, o_bias=o_bias
    )
    hidden = read.positive("hidden_size")
    width = read.positive("intermediate_size")
    mlp_bias = read.yes("mlp_bias", False)
    block = LayerType.of(
        LayerKind.BLOCK,
        attention
        | {
            "ffn": width,
            "gated": True,
            "mlp_bias": mlp_bias,
            "activation": _activation(read),
            "norm": "rms",
        },
        parameters + _gated_mlp(hidden, width, mlp_bias) + 2 * hidden,
    )
    embedding, head = _ends(read, tied_default=False)
    return [embedding, *[block] * read.positive("num_hidden_layers"), head]


def _llama(read: ConfigReader) -> Layers:
    bias = read.yes("attention_bias", False)
    return _llama_like(read, qk_norm=False, qkv_bias=bias, o_bias=bias)


def _mistral(read: ConfigReader) -> Layers:
    return _llama_like(read, qk_norm=False, qkv_bias=False)


def _qwen2(read: ConfigReader) -> Layers:
    return _llama_like(read, qk_norm=False, qkv_bias=True)


def _qwen3(read: ConfigReader) -> Layers:
    bias = read.yes("attention_bias", False)
    return _llama_like(read, qk_norm=True, qkv_bias=bias, o_bias=bias)


def _mixtral(read: ConfigReader) -> Layers:
    attention, parameters = _grouped_attention(read, qk_norm=False, qkv_bias=False, o_bias=False)
    hidden = read.positive("hidden_size")
    width = read.positive("intermediate_size")
    experts = read.positive("num_local_experts", "num_experts")
    block = LayerType.of(
        LayerKind.MOE_BLOCK,
        attention
        | {
            "experts": experts,
            "top_k": read.positive("num_experts_per_tok"),
            "expert_ffn": width,
            "router": "mixtral",
            "activation": _activation(read),
            "norm": "rms",
        },
        parameters + hidden * experts + 2 * hidden,
        experts * _gated_mlp(hidden, width),
    )
    embedding, head = _ends(read, tied_default=False)
    return [embedding, *[block] * read.positive("num_hidden_layers"), head]


def _qwen3_moe(read: ConfigReader) -> Layers:
    bias = read.yes("attention_bias", False)
    attention, parameters = _grouped_attention(read, qk_norm=True, qkv_bias=bias, o_bias=bias)
    hidden = read.positive("hidden_size")
    experts = read.positive("num_local_experts", "num_experts")
    expert_width = read.positive("moe_intermediate_size")
    moe = LayerType.of(
        LayerKind.MOE_BLOCK,
        attention
        | {
            "experts": experts,
            "top_k": read.positive("num_experts_per_tok"),
            "expert_ffn": expert_width,
            "router": "qwen3_moe",
            "activation": _activation(read),
            "norm": "rms",
        },
        parameters + hidden * experts + 2 * hidden,
        experts * _gated_mlp(hidden, expert_width),
    )
    blocks = read.positive("num_hidden_layers")
    step = read.positive("decoder_sparse_step", default=1)
    dense_layers = set(read.config.get("mlp_only_layers") or [])
    is_dense = [i in dense_layers or (i + 1) % step != 0 for i in range(blocks)]
    embedding, head = _ends(read, tied_default=False)
    if not any(is_dense):
        return [embedding, *[moe] * blocks, head]
    width = read.positive("intermediate_size")
    dense = LayerType.of(
        LayerKind.DENSE_BLOCK,
        attention
        | {
            "ffn": width,
            "gated": True,
            "mlp_bias": False,
            "activation": _activation(read),
            "norm": "rms",
        },
        parameters + _gated_mlp(hidden, width) + 2 * hidden,
    )
    return [embedding, *[dense if flag else moe for flag in is_dense], head]


def _deepseek_v3(read: ConfigReader) -> Layers:
    """Multi-head latent attention; first blocks dense, the rest with shared and routed experts."""
    hidden = read.positive("hidden_size")
    heads = read.positive("num_attention_heads")
    q_rank = read.count("q_lora_rank", 0)
    kv_rank = read.positive("kv_lora_rank")
    nope, rope = read.positive("qk_nope_head_dim"), read.positive("qk_rope_head_dim")
    value = read.positive("v_head_dim")
    attention: dict[str, Shape] = {
        "attention": "mla",
        "hidden": hidden,
        "heads": heads,
        "q_rank": q_rank,
        "kv_rank": kv_rank,
        "nope_dim": nope,
        "rope_dim": rope,
        "value_dim": value,
    }
    query_width = heads * (nope + rope)
    parameters = hidden * q_rank + q_rank + q_rank * query_width if q_rank else hidden * query_width
    parameters += hidden * (kv_rank + rope) + kv_rank + kv_rank * heads * (nope + value)
    parameters += heads * value * hidden + 2 * hidden  # output projection, two norms of the block
    width = read.positive("intermediate_size")
    common: dict[str, Shape] = {"activation": _activation(read), "norm": "rms"}
    dense = LayerType.of(
        LayerKind.DENSE_BLOCK,
        attention | common | {"ffn": width, "gated": True, "mlp_bias": False},
        parameters + _gated_mlp(hidden, width),
    )
    experts = read.positive("n_routed_experts", "num_local_experts", "num_experts")
    expert_width = read.positive("moe_intermediate_size")
    shared_width = read.count("n_shared_experts", 0) * expert_width
    moe = LayerType.of(
        LayerKind.MOE_BLOCK,
        attention
        | common
        | {
            "experts": experts,
            "top_k": read.positive("num_experts_per_tok"),
            "expert_ffn": expert_width,
            "shared_ffn": shared_width,
            "router": "deepseek_v3",
        },
        # The router's bias is a buffer that no gradient updates, so it is not counted.
        parameters + _gated_mlp(hidden, shared_width) + hidden * experts,
        experts * _gated_mlp(hidden, expert_width),
    )
    blocks = read.positive("num_hidden_layers")
    dense_count = min(read.count("first_k_dense_replace", 0), blocks)
    embedding, head = _ends(read, tied_default=False)
    return [embedding, *[dense] * dense_count, *[moe] * (blocks - dense_count), head]


def _opt(read: ConfigReader) -> Layers:
    """Learned positions (two more rows than the context), biases everywhere, plain MLP."""
    hidden = read.positive("hidden_size")
    heads = read.positive("num_attention_heads")
    width = read.positive("ffn_dim")
    vocab = read.positive("vocab_size")
    word_dim = read.positive("word_embed_proj_dim", default=hidden)
    context = read.positive("max_position_embeddings")
    norm_first = read.yes("do_layer_norm_before", True)
    if hidden % heads:
        raise SpecError.in_file(
            read.where, "num_attention_heads", heads, f"a divisor of hidden_size {hidden}"
        )
    block = _plain_block(
        hidden,
        heads,
        width,
        read.text("activation_function", "relu"),
        qkv_bias=True,
        norm_first=norm_first,
    )
    projection = word_dim * hidden if word_dim != hidden else 0
    tied = read.yes("tie_word_embeddings", True)
    embedding = LayerType.of(
        LayerKind.EMBEDDING,
        {"hidden": hidden, "vocab": vocab, "word_dim": word_dim, "positions": context + 2},
        vocab * word_dim + (context + 2) * hidden + projection,
    )
    final_norm = 2 * hidden if norm_first and not read.yes("_remove_final_layer_norm", False) else 0
    head = LayerType.of(
        LayerKind.HEAD,
        {
            "hidden": hidden,
            "vocab": vocab,
            "word_dim": word_dim,
            "norm": "layer" if final_norm else "none",
            "tied": tied,
        },
        vocab * word_dim + projection + final_norm,
    )
    return [embedding, *[block] * read.positive("num_hidden_layers"), head]


def _gpt_neo(read: ConfigReader) -> Layers:
    """Learned positions, no bias on query, key, value; local and global blocks weigh the same."""
    hidden = read.positive("hidden_size")
    heads = read.positive("num_heads", "num_attention_heads")
    vocab = read.positive("vocab_size")
    context = read.positive("max_position_embeddings")
    width = read.positive("intermediate_size", default=4 * hidden)
    block = _plain_block(
        hidden,
        heads,
        width,
        read.text("activation_function", "gelu_new"),
        qkv_bias=False,
        norm_first=True,
    )
    embedding = LayerType.of(
        LayerKind.EMBEDDING,
        {"hidden": hidden, "vocab": vocab, "positions": context},
        (vocab + context) * hidden,
    )
    head = LayerType.of(
        LayerKind.HEAD,
        {
            "hidden": hidden,
            "vocab": vocab,
            "norm": "layer",
            "tied": read.yes("tie_word_embeddings", True),
        },
        vocab * hidden + 2 * hidden,
    )
    return [embedding, *[block] * read.positive("num_layers", "num_hidden_layers"), head]


def _plain_block(
    hidden: int, heads: int, width: int, activation: str, *, qkv_bias: bool, norm_first: bool
) -> LayerType:
    """A GPT-style block: multi-head attention, two linear layers, two layer norms with bias."""
    parameters = 4 * hidden * hidden + hidden + (3 * hidden if qkv_bias else 0)
    parameters += 2 * hidden * width + width + hidden + 4 * hidden
    return LayerType.of(
        LayerKind.BLOCK,
        {
            "attention": "gqa",
            "hidden": hidden,
            "heads": heads,
            "kv_heads": heads,
            "head_dim": hidden // heads,
            "qk_norm": False,
            "qkv_bias": qkv_bias,
            "o_bias": True,
            "ffn": width,
            "gated": False,
            "mlp_bias": True,
            "activation": activation,
            "norm": "layer",
            "norm_first": norm_first,
        },
        parameters,
    )


def _sailor(read: ConfigReader) -> Layers:
    """A model of the Sailor data set, known only by the sizes that its authors recorded.

    Its blocks are not those of the released model of that name (other attention, fp32), so they
    carry the data set's name in their shapes and share a profile with nothing else.
    """
    name = read.text("sailor_name", "")
    hidden = read.positive("hidden_size")

    def layer(kind: LayerKind, parameters: int) -> LayerType:
        shapes: dict[str, Shape] = {
            "dataset": "sailor",
            "model": name,
            "hidden": hidden,
            "weights": parameters,
        }
        return LayerType.of(kind, shapes, parameters)

    block = layer(LayerKind.BLOCK, read.positive("block_parameters"))
    return [
        layer(LayerKind.EMBEDDING, read.positive("embedding_parameters")),
        *[block] * read.positive("num_hidden_layers"),
        layer(LayerKind.HEAD, read.positive("head_parameters")),
    ]


FAMILIES: dict[str, Callable[[ConfigReader], Layers]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v3": _deepseek_v3,
    "opt": _opt,
    "gpt_neo": _gpt_neo,
    "sailor": _sailor,
}


# Known well enough to be planned with imported or estimated profiles, and no more.
_NOT_RUN = {
    "opt": "its config carries no tensor-parallel plan and it learns its positions",
    "gpt_neo": "its config carries no tensor-parallel plan and it learns its positions",
    "sailor": "it is known only by the sizes in the Sailor data set, not by its structure",
}


def why_not_run(family: str) -> str | None:
    """Why layers of a family cannot be built here, in one sentence; None where they can."""
    if family not in _NOT_RUN:
        return None
    return (
        f"models of family {family!r} cannot be run or measured here: {_NOT_RUN[family]}; "
        "use arachne-prof import or estimate for their profiles"
    )


def layers_of(config: Mapping[str, Any], where: str) -> Layers:
    """Every layer of a model in order: embedding, blocks, head.

    config: the content of a config.json; where: the file, for messages.
    Raises SpecError for a family that is not known or a field that is missing or wrong.
    """
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        known = ", ".join(sorted(set(FAMILIES) - {"sailor"}))
        raise SpecError.in_file(where, "model_type", family, f"one of: {known}")
    return FAMILIES[family](ConfigReader(config, where))
