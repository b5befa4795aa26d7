"""Profiles of families that transformers describes itself: measured, imported, never guessed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

from profiler.cli import main
from profiler.cli.run_result import _refusals
from profiler.importers import csv
from profiler.importers.imported import ImportOptions
from profiler.importers.plausible import forward_flops
from profiler.measure.bench import LayerBench
from specs.layer import LayerKind
from specs.model import Model
from specs.profile import LayerKey
from specs.topology import Topology
from specs.workload import DType, Optimizer, Recompute
from tests.families import tiny_config


def folder_of(family: str, where: Path) -> Path:
    folder = where / family
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(tiny_config(family)))
    return folder


def test_each_kind_of_block_is_measured_with_all_its_parameters() -> None:
    model = Model.from_config("qwen2_moe", tiny_config("qwen2_moe", decoder_sparse_step=2))
    assert len(model.layer_types) == 4
    for layer in model.layer_types:
        key = LayerKey(
            gpu="cpu",
            layer_type=layer.hash,
            tp=1,
            micro_batch=2,
            seq_len=1,
            dtype=DType.FP32,
            recompute=Recompute.NONE,
            optimizer=Optimizer.ADAMW,
            topology=Topology.HOST,
        )
        bench = LayerBench(
            layer, model, key, group=None, device=torch.device("cpu"), copies=1, seed=0
        )
        memory = bench.memory()
        assert memory.parameter_bytes == 4 * layer.parameters
        assert memory.expert_parameter_bytes == 0  # cut and counted with the block
        assert memory.activation_bytes >= 2 * model.hidden * (layer.kind.is_block)
        assert bench.timed_passes(1)[0].forward_ms > 0


@pytest.mark.parametrize("command", [["estimate", "--gpu", "h100", "--tp", "1"]])
def test_an_estimate_is_refused_by_the_name_of_the_family(
    command: list[str], tmp_path: Path
) -> None:
    folder = folder_of("olmo2", tmp_path)
    store = tmp_path / "store.db"
    words = [*command, "--model", str(folder), "--store", str(store)]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 1
    assert "layers of family 'olmo2' have no formulas here to estimate from" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_csv_row_of_one_of_several_kinds_of_block_must_say_which(tmp_path: Path) -> None:
    folder = folder_of("gemma2", tmp_path)
    model = Model.from_config("gemma2", tiny_config("gemma2"))
    header = "layer,gpu,tp,micro_batch,forward_ms,backward_ms,comm_ms,update_ms,"
    header += "activation_bytes,parameter_bytes,layer_type\n"
    (tmp_path / "layers.csv").write_text(
        f"{header}block,h100,1,1,9,18,0,1,100,100,\n"
        f",h100,1,1,9,18,0,1,100,100,{model.layers[2].hash}\n"
    )
    [run] = csv.read(
        tmp_path / "layers.csv", ImportOptions(models=(str(folder),), seq_len=64, dtype=DType.BF16)
    )
    [row] = run.layers
    assert row.key.layer_type == model.layers[2].hash
    [refused] = run.refused
    assert "gemma2 has several: give layer_type" in refused.reason
    assert f"{model.layers[1].hash} (block (sliding_attention))" in refused.reason


def test_experts_that_a_token_may_not_visit_are_no_work_that_a_row_must_have_done() -> None:
    model = Model.from_config("qwen2_moe", tiny_config("qwen2_moe"))
    block = model.layers[1]
    experts = 4 * 3 * 24 * 32  # gate, up and down of four experts
    assert forward_flops(block, tokens=10, tp=2) == (block.parameters - experts) * 10
    dense = Model.from_config("olmo2", tiny_config("olmo2")).layers[1]
    assert dense.kind is LayerKind.BLOCK
    assert forward_flops(dense, tokens=10, tp=1) == 20 * dense.parameters


def test_a_reason_in_brackets_is_shown_whole() -> None:
    reason = "[enforce fail at alloc_cpu.cpp:127] can't allocate memory"
    row = {"layer": "head", "tp": 1, "micro_batch": 1, "status": "out_of_memory", "reason": reason}
    console = Console(width=200)
    with console.capture() as shown:
        console.print(_refusals([row]))
    assert reason in shown.get()
