"""FlagScale: process meshes of consecutive stages, device types by rank, refusals."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from planner.export.flagscale import export, meshes_of
from specs.errors import PlanError
from specs.model import Model, load_model
from tests.planner.export.gpu_plans import RECORDER, gpu_plan, options, run_script


def test_equal_neighbours_are_one_mesh_and_a_type_that_comes_back_another() -> None:
    stages = [("a6000", 1, 4), ("a6000", 1, 4), ("h100", 2, 20), ("a6000", 1, 4)]
    plan = gpu_plan(stages, replicas=2)
    meshes = meshes_of(plan, plan.templates[0])
    assert [(m.name, m.tp, m.stages) for m in meshes] == [
        ("a6000", 1, (0, 1)),
        ("h100", 2, (2,)),
        ("a6000-2", 1, (3,)),
    ]
    said = options(export(plan).arguments)
    # TP, CP, EP, DP, PP of each
    assert said["--hetero-process-meshes"] == "1 1 1 2 2 2 1 1 2 1 1 1 1 2 1"
    assert said["--hetero-pipeline-layer-split"] == "4 4 20 4"
    assert said["--hetero-device-types"] == "a6000 h100 a6000-2"
    assert said["--pipeline-model-parallel-size"] == "4"
    assert "--enable-hetero" in said
    assert "--sequence-parallel" in said


def test_unequal_tp_is_said_to_need_sequence_parallelism() -> None:
    launch = export(gpu_plan([("a6000", 1, 10), ("h100", 4, 22)]))
    assert any("Unequal TP" in remark for remark in launch.remarks)
    equal = export(gpu_plan([("a6000", 2, 10), ("h100", 2, 22)], replicas=2))
    assert "--sequence-parallel" not in equal.arguments
    assert equal.remarks == ()


def test_every_process_says_the_device_type_of_its_mesh(tmp_path: Path) -> None:
    launch = export(gpu_plan([("a6000", 1, 10), ("h100", 4, 12), ("a6000", 1, 10)]))
    program = tmp_path / "train_gpt.py"
    program.write_text(RECORDER)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"FLAGSCALE_TRAIN": str(program), "PATH": path}
    started = run_script(launch, "host0", tmp_path / "a", environment)
    started |= run_script(launch, "host1", tmp_path / "b", environment)
    types = {rank: one["argv"][1] for rank, one in started.items()}
    assert types == {0: "a6000", 1: "h100", 2: "h100", 3: "h100", 4: "h100", 5: "a6000-2"}


def test_a_tied_embedding_wants_the_same_tp_at_both_ends() -> None:
    config = dict(load_model("llama-3-8b").config, tie_word_embeddings=True)
    plan = gpu_plan([("a6000", 1, 10), ("h100", 4, 22)], model=Model.from_config("tied", config))
    with pytest.raises(PlanError, match="share the embedding and have TP 1 and 4"):
        export(plan)


def test_a_tiling_of_each_mesh_is_said() -> None:
    stages = [("a6000", 2, 16, 2, 1), ("h100", 2, 16, 2, 2)]
    said = options(export(gpu_plan(stages, model="mixtral-8x7b", replicas=2)).arguments)
    assert said["--hetero-process-meshes"] == "2 1 2 2 1 2 1 2 2 1"
    assert said["--expert-tensor-parallel-size-per-process-mesh"] == "1 2"


def test_expert_parallelism_in_some_meshes_only_is_refused() -> None:
    plan = gpu_plan([("a6000", 2, 16, 2, 1), ("h100", 2, 16, 1, 2)], model="mixtral-8x7b")
    with pytest.raises(PlanError, match=r"EP is \[2, 1\], and there it is 1 in all or none"):
        export(plan)


def test_a_stage_without_a_block_is_refused() -> None:
    with pytest.raises(PlanError, match="stage 0 holds no block"):
        export(gpu_plan([("a6000", 1, 0), ("h100", 1, 32)]))
