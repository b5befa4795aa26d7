"""torchtitan: the config module that the script writes, the models it knows, refusals."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.export.torchtitan import export, flavor_of
from specs.errors import PlanError
from specs.model import Model, load_model
from specs.workload import DType, Recompute
from tests.planner.export.gpu_plans import RECORDER, gpu_plan, run_script

# The script's config module is kept before the script removes it.
KEEPER = (
    RECORDER
    + """
import arachne_plan, shutil
shutil.copy(arachne_plan.__file__, os.environ["RECORDS"])
"""
)


def keywords(text: str, name: str) -> dict[str, Any]:
    """The keyword arguments of the one call of a name in a module's text."""
    (call,) = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == name
    ]
    return {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}


@pytest.fixture
def torchtitan(tmp_path: Path) -> dict[str, str]:
    """A package of that name whose `train` keeps the config module; its imports are empty."""
    package = tmp_path / "stand-in" / "torchtitan"
    for folder in ("config", "components", "distributed", "models/llama3"):
        (package / folder).mkdir(parents=True)
        (package / folder / "__init__.py").write_text(
            "ParallelismConfig = TrainingConfig = model_registry = None\n"
        )
    (package / "__init__.py").touch()
    (package / "models" / "__init__.py").touch()
    (package / "components" / "optimizer.py").write_text("default_adamw = None\n")
    (package / "distributed" / "activation_checkpoint.py").write_text("FullAC = None\n")
    (package / "models" / "llama3" / "config_registry.py").write_text("llama3_8b = None\n")
    (package / "train.py").write_text(KEEPER)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PYTHONPATH": str(package.parent), "PATH": path}


def test_the_script_writes_the_config_that_training_reads(
    tmp_path: Path, torchtitan: dict[str, str]
) -> None:
    plan = gpu_plan([("a6000", 2, 10), ("h100", 2, 22)], replicas=2, recompute=Recompute.FULL)
    launch = export(plan)
    started = run_script(launch, "host1", tmp_path / "a", torchtitan)
    assert sorted(started) == [4, 5, 6, 7]
    assert started[4]["argv"] == ["--module", "arachne_plan", "--config", "planned"]
    text = (tmp_path / "a" / "arachne_plan.py").read_text()
    training = keywords(text, "TrainingConfig")
    assert training["global_batch_size"] == 32
    assert training["local_batch_size"] == 16  # 8 micro-batches of 2
    assert training["seq_len"] == 4096
    assert training["mixed_precision_param"] == "bfloat16"
    assert training["disable_cuda_graphs"] is True
    split = keywords(text, "ParallelismConfig")
    assert split["data_parallel_replicate_degree"] == 2
    assert split["data_parallel_shard_degree"] == 1
    assert split["tensor_parallel_degree"] == 2
    assert split["enable_sequence_parallel"] is False
    assert split["pipeline_parallel_degree"] == 2
    assert split["pipeline_parallel_microbatch_size"] == 2
    first, second = split["module_fqns_per_model_part"]
    assert first == ["tok_embeddings", *(f"layers.{i}" for i in range(10))]
    assert second == [*(f"layers.{i}" for i in range(10, 32)), "norm", "lm_head"]
    assert "FullAC.Config()" in text
    assert "twice the bytes" in launch.remarks[0]


def test_one_stage_accumulates_gradients_instead() -> None:
    launch = export(gpu_plan([("h100", 4, 32)], dtype=DType.FP32))
    assert "local_batch_size=2," in launch.script
    assert "module_fqns" not in launch.script
    assert 'mixed_precision_param="float32"' in launch.script
    assert launch.layout is None


@pytest.mark.parametrize(
    ("model", "flavor"),
    [("llama-3-8b", "8B"), ("qwen3-32b", "32B"), ("qwen3-30b-a3b", "30B-A3B")],
)
def test_a_model_is_found_by_its_layers(model: str, flavor: str) -> None:
    assert flavor_of(load_model(model)).name == flavor


def test_a_model_that_it_does_not_have_is_refused() -> None:
    with pytest.raises(PlanError, match="no model with the layers of qwen3-64b, only llama3 1B"):
        export(gpu_plan([("h100", 4, 128)], model="qwen3-64b"))


def test_fewer_micro_batches_than_stages_are_refused() -> None:
    plan = gpu_plan([("h100", 1, 16), ("h100", 1, 8), ("h100", 1, 8)], counts=[2])
    with pytest.raises(PlanError, match="2 micro-batches are fewer than its 3 stages"):
        export(plan)


def test_tiled_experts_are_refused_and_whole_ones_are_not() -> None:
    with pytest.raises(PlanError, match="only plans of EP 1, ETP 1 and TP 1"):
        export(gpu_plan([("h100", 4, 48, 4, 1)], model="qwen3-30b-a3b"))
    launch = export(gpu_plan([("h100", 1, 48)], model="qwen3-30b-a3b"))
    assert 'model_registry("30B-A3B")' in launch.script


def test_half_precision_is_refused() -> None:
    with pytest.raises(PlanError, match="adamw in fp16"):
        export(gpu_plan([("h100", 1, 32)], dtype=DType.FP16))


def test_a_tied_embedding_over_two_stages_and_too_few_heads_are_refused() -> None:
    shapes = {"hidden_size": 2048, "num_hidden_layers": 16, "intermediate_size": 8192}
    config = dict(load_model("llama-3-8b").config) | shapes | {"tie_word_embeddings": True}
    tied = Model.from_config("llama-3.2-1b", config | {"head_dim": 64})
    assert flavor_of(tied).name == "1B"
    with pytest.raises(PlanError, match="share the embedding, which it does not tie"):
        export(gpu_plan([("h100", 1, 8), ("h100", 1, 8)], model=tied))
    assert 'model_registry("1B")' in export(gpu_plan([("h100", 1, 16)], model=tied)).script
    three = gpu_plan([("h100", 3, 32)])
    with pytest.raises(PlanError, match="TP 3 does not divide the 8 key and value heads"):
        export(three)
