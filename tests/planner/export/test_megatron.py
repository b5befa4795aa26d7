"""Megatron-LM: layout strings as its own parser reads them, arguments, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.export.megatron import export, layout_string
from specs.errors import PlanError
from specs.model import Model, load_model
from specs.workload import DType, Recompute
from tests.planner.export.gpu_plans import gpu_plan, options

RECORD = json.loads((Path(__file__).parent / "data" / "megatron_layouts.json").read_text())
LETTER = {"embedding": "embedding", "decoder": "block", "loss": "head"}


@pytest.mark.parametrize("case", RECORD["accepted"], ids=[c["layout"] for c in RECORD["accepted"]])
def test_megatrons_parser_reads_the_layers_of_the_stages(case: dict[str, Any]) -> None:
    """The record is of `PipelineParallelLayerLayout` itself: what it made of each string."""
    blocks = [stage.count("decoder") for stage in case["stages"]]
    model = Model.from_config(
        "recorded", dict(load_model("llama-3-8b").config, num_hidden_layers=sum(blocks))
    )
    plan = gpu_plan([("h100", 1, n) for n in blocks], model=model)
    assert layout_string(plan.model, plan.templates[0]) == case["layout"]
    for stage, recorded in zip(plan.templates[0].stages, case["stages"], strict=True):
        assert [model.layers[i].kind.value for i in stage.layers] == [LETTER[k] for k in recorded]


def test_the_recorded_parser_refuses_what_is_no_split_of_the_model() -> None:
    """So that the record above means something."""
    assert len(RECORD["refused"]) >= 4
    for case in RECORD["refused"]:
        assert case["error"]


def test_arguments_of_a_dense_model() -> None:
    plan = gpu_plan(
        [("a6000", 2, 10), ("h100", 2, 22)],
        replicas=2,
        recompute=Recompute.FULL,
    )
    launch = export(plan)
    said = options(launch.arguments)
    assert launch.layout == "Et*10|t*22L"
    assert said["--pipeline-model-parallel-layout"] == "Et*10|t*22L"
    assert said["--tensor-model-parallel-size"] == "2"
    assert said["--pipeline-model-parallel-size"] == "2"
    assert said["--micro-batch-size"] == "2"
    assert said["--global-batch-size"] == "32"  # 2 replicas of 8 micro-batches of 2
    assert said["--num-layers"] == "32"
    assert said["--hidden-size"] == "4096"
    assert said["--ffn-hidden-size"] == "14336"
    assert said["--num-attention-heads"] == "32"
    assert said["--num-query-groups"] == "8"
    assert said["--kv-channels"] == "128"
    assert said["--rotary-base"] == "500000"
    assert said["--vocab-size"] == "128255"  # the null tokenizer adds the end of a document
    assert said["--seq-length"] == "4096"
    assert "--untie-embeddings-and-output-weights" in said
    assert "--bf16" in said
    assert said["--recompute-granularity"] == "full"
    assert "--num-experts" not in said
    assert launch.remarks == ()
    assert 'here="0:0 1:1 2:2 3:3" ;;  # stage 0' in launch.script


def test_one_stage_needs_no_layout() -> None:
    launch = export(gpu_plan([("h100", 4, 32)], dtype=DType.FP32))
    assert launch.layout is None
    assert "--pipeline-model-parallel-layout" not in launch.arguments
    assert "--bf16" not in launch.arguments


def test_arguments_of_a_model_with_experts() -> None:
    """TP 2, two replicas: 4 devices hold one copy in EP 2 x ETP 2."""
    launch = export(gpu_plan([("h100", 2, 32, 2, 2)], model="mixtral-8x7b", replicas=2))
    said = options(launch.arguments)
    assert said["--num-experts"] == "8"
    assert said["--moe-router-topk"] == "2"
    assert said["--moe-ffn-hidden-size"] == "14336"
    assert said["--expert-model-parallel-size"] == "2"
    assert said["--expert-tensor-parallel-size"] == "2"
    assert "--sequence-parallel" in said
    assert "sequence parallelism" in launch.remarks[0]


def test_dense_blocks_before_those_with_experts_and_latent_attention() -> None:
    launch = export(
        gpu_plan(
            [("h200", 1, 8, 16, 1), ("h200", 1, 8, 16, 1)], model="deepseek-v3-like", replicas=16
        )
    )
    said = options(launch.arguments)
    assert said["--moe-layer-freq"] == "[" + ",".join(["0"] * 3 + ["1"] * 13) + "]"
    assert said["--kv-lora-rank"] == "512"
    assert said["--qk-head-dim"] == "128"
    assert said["--moe-router-score-function"] == "sigmoid"
    assert said["--moe-shared-expert-intermediate-size"] == "2048"
    assert said["--ffn-hidden-size"] == "18432"
    assert "--sequence-parallel" not in said


def test_a_tiling_for_each_stage_is_refused() -> None:
    plan = gpu_plan([("a6000", 2, 16, 2, 1), ("h100", 2, 16, 1, 2)], model="mixtral-8x7b")
    with pytest.raises(PlanError, match="its stages tile experts EPxETP 2x1, 1x2"):
        export(plan)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "mistral", "sliding_window": 512}, "window of 512 tokens"),
        ({"attention_bias": True}, "biases in some of its linear layers"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "scales its rotary positions"),
    ],
)
def test_models_that_its_options_cannot_describe_are_refused(
    changes: dict[str, Any], reason: str
) -> None:
    config = dict(load_model("llama-3-8b").config) | changes
    with pytest.raises(PlanError, match=reason):
        export(gpu_plan([("h100", 1, 32)], model=Model.from_config("changed", config)))
