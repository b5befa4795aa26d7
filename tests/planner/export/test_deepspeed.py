"""DeepSpeed: the program in the script, its layers against Hugging Face's model, refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from planner.export import deepspeed_train as program
from planner.export.deepspeed import export
from specs.errors import PlanError
from specs.model import Model, load_model
from specs.workload import DType, Recompute
from tests.planner.export.gpu_plans import gpu_plan

TINY = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
}


def settings_of(script: str) -> dict[str, Any]:
    text = script.split("settings.json\" <<'END_OF_FILE'\n")[1].split("\nEND_OF_FILE")[0]
    found: dict[str, Any] = json.loads(text)
    return found


def test_the_script_holds_the_program_and_its_settings() -> None:
    plan = gpu_plan([("a6000", 1, 10), ("h100", 1, 22)], replicas=2, recompute=Recompute.FULL)
    launch = export(plan)
    settings = settings_of(launch.script)
    assert settings["parts"] == [0, 11, 34]  # embedding and 10 blocks; 22 blocks and head
    assert launch.layout == "0 11 34"
    assert settings["recompute"] is True
    engine = settings["engine"]
    assert engine["train_batch_size"] == 32
    assert engine["train_micro_batch_size_per_gpu"] == 2
    assert engine["gradient_accumulation_steps"] == 8
    assert engine["bf16"] == {"enabled": True}
    assert engine["optimizer"]["type"] == "AdamW"
    written = launch.script.split("train.py\" <<'END_OF_FILE'\n")[1].split("\nEND_OF_FILE")[0]
    with open(program.__file__, encoding="utf-8") as file:
        assert written == file.read().rstrip("\n")
    assert "spread over the replicas" in launch.remarks[-1]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize("recompute", [False, True])
def test_its_layers_in_turn_are_hugging_faces_model(family: str, recompute: bool) -> None:
    """The same weights give the same logits, so that embedding, blocks and head are complete."""
    from transformers import AutoModelForCausalLM

    config = program.config_of(TINY | {"model_type": family, "head_dim": 8, "sliding_window": None})
    torch.manual_seed(0)
    whole = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float()
    layers = [kind(*values) for kind, values in program.layers_of(config, recompute)]
    assert len(layers) == 5
    layers[0].weight.load_state_dict(whole.model.embed_tokens.state_dict())
    for layer, block in zip(layers[1:-1], whole.model.layers, strict=True):
        layer.layer.load_state_dict(block.state_dict())
    layers[-1].norm.load_state_dict(whole.model.norm.state_dict())
    layers[-1].projection.load_state_dict(whole.lm_head.state_dict())
    tokens, labels = next(program.samples(50, 2, 16))
    x = tokens
    for layer in layers:
        x = layer(x)
    with torch.no_grad():
        expected = whole(input_ids=tokens, use_cache=False).logits
    assert torch.allclose(x, expected, atol=1e-5)
    # Every weight is trained, also where a block runs again in the backward pass.
    loss = program.loss(x, labels)
    loss.backward()
    theirs = program.loss(whole(input_ids=tokens, use_cache=False).logits, labels)
    theirs.backward()
    assert float(loss.detach()) == pytest.approx(float(theirs.detach()), rel=1e-5)
    for layer, block in zip(layers[1:-1], whole.model.layers, strict=True):
        for ours, truth in zip(layer.layer.parameters(), block.parameters(), strict=True):
            assert torch.allclose(ours.grad, truth.grad, atol=1e-5)
    assert torch.allclose(layers[0].weight.weight.grad, whole.model.embed_tokens.weight.grad)


def test_tensor_parallelism_is_refused() -> None:
    with pytest.raises(PlanError, match="its stages have TP 2, and its pipeline has no tensor-"):
        export(gpu_plan([("h100", 2, 32)]))


def test_experts_are_refused() -> None:
    with pytest.raises(PlanError, match="the model has experts"):
        export(gpu_plan([("h100", 1, 32)], model="mixtral-8x7b"))


def test_a_tied_embedding_over_two_stages_is_refused() -> None:
    config = dict(load_model("llama-3-8b").config, tie_word_embeddings=True)
    tied = Model.from_config("tied", config)
    with pytest.raises(PlanError, match="share the embedding"):
        export(gpu_plan([("h100", 1, 16), ("h100", 1, 16)], model=tied))


def test_precision_of_the_engine() -> None:
    for dtype, key in ((DType.FP32, None), (DType.FP16, "fp16"), (DType.BF16, "bf16")):
        engine = settings_of(export(gpu_plan([("h100", 1, 32)], dtype=dtype)).script)["engine"]
        assert {"fp16", "bf16"} & set(engine) == ({key} if key else set())
