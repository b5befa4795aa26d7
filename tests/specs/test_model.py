from __future__ import annotations

import json
from pathlib import Path

import pytest

from specs.errors import SpecError
from specs.layer import LayerKind
from specs.model import Model, catalogue_models, load_model

# Published totals of the released models (Hugging Face model cards and safetensors indices);
# qwen3-64b is 32B with 64 more blocks, deepseek-v3-like has 16 of the 61 blocks.
PUBLISHED = {
    "llama-3-8b": 8_030_261_248,
    "qwen3-32b": 32_762_123_264,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
    "opt-350m": 331_196_416,
    "gpt-neo-2.7b": 2_651_307_520,
}


@pytest.mark.parametrize(("name", "total"), PUBLISHED.items())
def test_parameters_equal_the_published_total(name: str, total: int) -> None:
    assert load_model(name).parameters == total


@pytest.mark.parametrize("name", [n for n in catalogue_models() if not n.startswith("sailor-")])
def test_parameters_equal_those_of_the_transformers_model(name: str) -> None:
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForCausalLM

    config = dict(load_model(name).config)
    with torch.device("meta"):
        whole = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(config.pop("model_type"), **config)
        )
    assert load_model(name).parameters == sum(p.numel() for p in whole.parameters())


def test_a_larger_model_of_the_same_widths_shares_layer_types() -> None:
    small, large = load_model("qwen3-32b"), load_model("qwen3-64b")
    assert [t.hash for t in small.layer_types] == [t.hash for t in large.layer_types]
    assert (small.blocks, large.blocks) == (64, 128)


def test_deepseek_has_dense_blocks_before_moe_blocks() -> None:
    model = load_model("deepseek-v3-like")
    kinds = [layer.kind for layer in model.layers]
    assert kinds[:5] == [
        LayerKind.EMBEDDING,
        *[LayerKind.DENSE_BLOCK] * 3,
        LayerKind.MOE_BLOCK,
    ]
    # 256 experts x 3 matrices x 7168 x 2048, at 16 bytes of state each: 168 GiB a block.
    assert model.layers[4].expert_parameters * 16 == 168 * 1024**3


def test_layer_hash_does_not_depend_on_the_order_of_fields(tmp_path: Path) -> None:
    config = dict(load_model("tiny-llama-test").config)
    again = Model.from_config("other", dict(reversed(config.items())))
    assert [t.hash for t in again.layer_types] == [
        t.hash for t in load_model("tiny-llama-test").layer_types
    ]
    assert again.config_hash == load_model("tiny-llama-test").config_hash


def test_a_folder_and_a_file_are_read_alike(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(dict(load_model("tiny-llama-test").config)))
    by_folder, by_file = load_model(str(folder)), load_model(str(folder / "config.json"))
    assert by_folder.name == by_file.name == "my-model"
    assert by_folder.layers == load_model("tiny-llama-test").layers


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 0}, "hidden_size is 0, expected a whole number of at least 1"),
        ({"hidden_size": None}, "hidden_size is None, expected a whole number"),
        (
            {"num_attention_heads": 7},
            "num_attention_heads is 7, expected a divisor of hidden_size 256",
        ),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3, expected a divisor"),
        ({"model_type": "mamba"}, "family 'mamba' cannot be split: their config carries no"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes', expected true or false"),
        ({"model_type": {}}, "model_type is {}"),
        ({"model_type": None}, "model_type is None"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, expected at most 10,000"),
        ({"vocab_size": 10**30}, "expected at most 1,000,000,000"),
        ({"vocab_size": 10.5}, "vocab_size is 10.5, expected a whole number"),
    ],
)
def test_a_bad_config_names_field_value_and_expectation(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**load_model("tiny-llama-test").config, **change}))
    with pytest.raises(SpecError) as raised:
        load_model(str(path))
    assert str(path) in str(raised.value)
    assert message in str(raised.value)


@pytest.mark.parametrize("content", ["", "[1, 2]", "{", "\x00\x01"])
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(SpecError, match=r"config\.json"):
        load_model(str(path))


def test_an_unknown_name_lists_the_catalogue() -> None:
    with pytest.raises(SpecError, match="llama-3-8b"):
        load_model("llama-9")


def test_default_workloads_are_those_of_the_design() -> None:
    large, tiny = (
        load_model("qwen3-32b").default_workload,
        load_model("tiny-llama-test").default_workload,
    )
    assert (large.seq_len, large.global_batch, large.state_bytes_per_parameter) == (4096, 1024, 16)
    assert (tiny.seq_len, tiny.global_batch) == (128, 32)
