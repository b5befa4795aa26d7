"""Layers found from transformers: counts to the unit, kinds, and refusals that name the family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specs.discovered import FIELD
from specs.discovery import discover
from specs.errors import SpecError
from specs.layout import not_divisible, tensors_of
from specs.model import Model, load_model
from tests.families import tiny_config

# Sizes as published with the weights; the rest of each config is the family's default.
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "Gemma 7B": (
        {"model_type": "gemma", "hidden_size": 3072, "intermediate_size": 24576,
         "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16,
         "head_dim": 256, "vocab_size": 256000},
        8_537_680_896,
    ),
    "Gemma 2 9B": (
        {"model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336,
         "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8,
         "head_dim": 256, "vocab_size": 256000},
        9_241_705_984,
    ),
    "Phi 3 mini": (
        {"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192,
         "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
         "vocab_size": 32064, "tie_word_embeddings": False},
        3_821_079_552,
    ),
    "StarCoder2 3B": (
        {"model_type": "starcoder2", "hidden_size": 3072, "intermediate_size": 12288,
         "num_hidden_layers": 30, "num_attention_heads": 24, "num_key_value_heads": 2,
         "vocab_size": 49152, "use_bias": True, "tie_word_embeddings": True},
        3_030_371_328,
    ),
    "Qwen1.5 MoE A2.7B": (
        {"model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632,
         "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16,
         "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
         "shared_expert_intermediate_size": 5632, "decoder_sparse_step": 1,
         "vocab_size": 151936, "tie_word_embeddings": False},
        14_315_784_192,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_equal_the_published_total_to_the_unit(name: str) -> None:
    config, total = PUBLISHED[name]
    assert Model.from_config(name, config).parameters == total


@pytest.mark.parametrize("name", ["llama-3-8b", "qwen3-30b-a3b", "mixtral-8x7b"])
def test_what_is_discovered_weighs_what_the_closed_forms_say(name: str) -> None:
    model = load_model(name)
    document = discover(model.config, name).document
    found = Model.from_config(name, {"model_type": "found", FIELD: document})
    assert found.parameters == model.parameters
    assert [layer.parameters for layer in found.layers] == [
        layer.parameters + layer.expert_parameters for layer in model.layers
    ]


def test_blocks_that_compute_the_same_are_one_layer_type() -> None:
    model = Model.from_config("gemma2", tiny_config("gemma2", num_hidden_layers=6))
    assert [layer.label for layer in model.layer_types] == [
        "embedding",
        "block (sliding_attention)",
        "block (full_attention)",
        "head",
    ]
    sliding, full = model.layer_types[1:3]
    assert model.layers[1:-1] == (sliding, full) * 3
    assert sliding.parameters == full.parameters


def test_a_deeper_model_of_the_same_widths_has_the_same_layer_types() -> None:
    short = Model.from_config("short", tiny_config("olmo2", num_hidden_layers=2))
    deep = Model.from_config("deep", tiny_config("olmo2", num_hidden_layers=9))
    assert short.layer_types == deep.layer_types
    wide = Model.from_config("wide", tiny_config("olmo2", intermediate_size=64))
    assert wide.layers[1].hash != deep.layers[1].hash


def test_what_two_configs_of_one_width_compute_differently_is_two_layer_types() -> None:
    plain = Model.from_config("plain", tiny_config("granite", residual_multiplier=1.0))
    scaled = Model.from_config("scaled", tiny_config("granite", residual_multiplier=0.5))
    assert plain.layers[1].hash != scaled.layers[1].hash


def test_the_tensors_of_a_discovered_layer_have_as_many_elements_as_its_type_says() -> None:
    model = Model.from_config("phi", tiny_config("phi"))
    for layer in model.layer_types:
        total = 0
        for tensor in tensors_of(layer):
            elements = 1
            for length in tensor.shape:
                elements *= length
            total += elements
        assert total == layer.parameters


def test_the_layers_stand_in_the_config_so_that_any_copy_of_the_model_has_the_same(
    tmp_path: Path,
) -> None:
    model = Model.from_config("gemma", tiny_config("gemma"))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(dict(model.config)))
    again = load_model(str(path))
    assert again.layers == model.layers
    assert again.config_hash == model.config_hash


def test_heads_and_widths_that_do_not_divide_are_refused_with_the_numbers() -> None:
    block = Model.from_config("olmo", tiny_config("olmo", num_key_value_heads=4)).layers[1]
    assert not_divisible(block, 2) is None
    assert not_divisible(block, 3) == "4 attention heads cannot be split over tp=3"
    wide = tiny_config("olmo", num_attention_heads=8, num_key_value_heads=8, intermediate_size=44)
    block = Model.from_config("olmo", wide).layers[1]
    assert not_divisible(block, 8) == ("mlp.gate_proj.weight of width 44 cannot be split over tp=8")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "bloom"}, "family 'bloom' cannot be split: their config carries no"),
        ({"model_type": "gpt2"}, "family 'gpt2' cannot be split: their config carries no"),
        ({"model_type": "gpt9"}, "model_type is 'gpt9', expected a family of the installed"),
        ({"model_type": 7}, "model_type is 7, expected a family of the installed transformers"),
        ({}, "model_type is None, expected a family of the installed transformers"),
        (
            {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}},
            "family 'gemma3' cannot be split",
        ),
        ({"model_type": "gemma", "hidden_size": "wide"}, "transformers refuses this gemma config"),
        (
            {"model_type": "gemma", "num_hidden_layers": 0},
            "num_hidden_layers is 0, expected a whole",
        ),
        ({"model_type": "llama4"}, "family 'llama4' cannot be split layer by layer: their config"),
        ({"model_type": "gemma", FIELD: {"blocks": 3}}, "arachne_layers is"),
    ],
)
def test_a_config_that_cannot_be_used_is_refused_in_one_line(
    config: dict[str, Any], said: str
) -> None:
    with pytest.raises(SpecError) as error:
        Model.from_config("some", config)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
