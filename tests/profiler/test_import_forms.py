"""Imports of reference problems, CSV files, and the layouts of Metis and AMP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profiler.importers import amp, csv, metis, reference
from profiler.importers.imported import ImportOptions
from specs.errors import SpecError
from specs.layer import LayerKind
from specs.model import Model, load_model
from specs.profile import EntryStatus, Operation, Source
from specs.topology import Topology
from specs.workload import DType, Optimizer

LLAMA = load_model("llama-3-8b")
TINY = load_model("tiny-llama-test")
OPT = load_model("opt-350m")


def hash_of(model: Model, kind: LayerKind) -> str:
    return next(layer.hash for layer in model.layer_types if layer.kind is kind)


# Reference problems


def reference_document() -> dict[str, Any]:
    def layer(kind: str) -> dict[str, Any]:
        return {
            "gpu": "a6000",
            "layer": kind,
            "tp": 2,
            "micro_batch": 1,
            "seq_len": 4096,
            "forward_ms": 15.0,
            "backward_ms": 30.0,
            "comm_ms": 1.5,
            "update_ms": 2.0,
            "activation_bytes": 343932928.0,
            "transient_bytes": 150994944.0,
            "parameter_bytes": 218112000.0,
        }

    host = {"host_ms": 3.027, "framework_bytes": 1.5e9, "usable_bytes": 48352985088.0}
    return {
        "source": "estimated",
        "model": "llama-3-8b",
        "hidden": 4096,
        "seq_len": 4096,
        "blocks": 32,
        "tied": False,
        "dtype_bytes": 2,
        "state_bytes_per_parameter": 16,
        "layers": [layer("embedding"), layer("block"), layer("head")],
        "links": [{"gpu": "h100", "op": "p2p", "ranks": 2, "bytes": 1024, "time_ms": 0.5}],
        "hosts": {"a6000": host},
    }


def read_reference(folder: Path, document: dict[str, Any]) -> Any:
    file = folder / "llama-3-8b.json"
    file.write_text(json.dumps(document))
    [run] = reference.read(file, ImportOptions())
    return run


def test_a_reference_document_keeps_its_label_and_undoes_the_head_room(tmp_path: Path) -> None:
    run = read_reference(tmp_path, reference_document())
    assert run.new.source is Source.ESTIMATED
    assert "llama-3-8b.json" in run.new.origin
    assert {row.key.topology for row in run.layers} == {Topology.PCIE}
    assert run.links[0].topology is Topology.NVLINK
    assert {(row.key.dtype, row.key.optimizer) for row in run.layers} == {
        (DType.BF16, Optimizer.ADAMW)
    }
    # An A6000 has 49,140 MiB; 600 of them are reserved: 0.95 * 48,540 MiB stood in the file.
    assert run.hosts[0].usable_bytes == 48_540 * 1024**2
    block = run.layers[1]
    assert (block.forward_ms, block.comm_ms, block.activation_bytes) == (15.0, 1.5, 343_932_928)


def test_a_reference_row_beyond_the_card_is_refused_by_name(tmp_path: Path) -> None:
    document = reference_document()
    document["layers"][1]["forward_ms"] = 0.1
    run = read_reference(tmp_path, document)
    [refused] = run.refused
    assert "layers[1] a6000 block tp 2 mbs 1" in refused.where
    assert "154.8 TFLOP/s" in refused.reason
    assert len(run.layers) == 2


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("hidden", 1024, "4096"),
        ("source", "guessed", "source"),
        ("dtype_bytes", 3, "2 \\(bf16\\)"),
        ("state_bytes_per_parameter", 7, "optimizer"),
    ],
)
def test_a_reference_document_of_something_else_is_an_error(
    tmp_path: Path, field: str, value: object, expected: str
) -> None:
    with pytest.raises(SpecError, match=expected):
        read_reference(tmp_path, reference_document() | {field: value})


def test_an_unknown_gpu_of_a_reference_document_is_refused(tmp_path: Path) -> None:
    document = reference_document()
    document["links"][0]["gpu"] = "tpu"
    document["layers"][0]["gpu"] = "tpu"
    run = read_reference(tmp_path, document)
    assert [row.where.split(": ")[1].split()[0] for row in run.refused] == ["layers[0]", "links[0]"]


# CSV

HEADER = (
    "model,layer,gpu,tp,micro_batch,forward_ms,backward_ms,comm_ms,update_ms,"
    "activation_bytes,parameter_bytes\n"
)


def read_csv(folder: Path, text: str, name: str = "layers.csv", **options: Any) -> Any:
    (folder / name).write_text(text)
    [run] = csv.read(folder, ImportOptions(**options))
    return run


def test_a_csv_row_needs_only_what_has_no_default(tmp_path: Path) -> None:
    run = read_csv(tmp_path, HEADER + "llama-3-8b,block,h100,2,4,35,70,0.5,1,1e9,218112000\n")
    [row] = run.layers
    assert row.key.layer_type == hash_of(LLAMA, LayerKind.BLOCK)
    assert (row.key.seq_len, row.key.dtype, row.key.topology) == (4096, DType.BF16, Topology.NVLINK)
    assert (row.activation_bytes, row.transient_bytes, row.forward_mad_ms) == (10**9, 0, None)
    assert run.new.source is Source.IMPORTED
    assert run.models == (LLAMA,)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("llama-3-8b,block,h100,2,4,35,70,0.5,1,1e9", "has 10 cells, expected 11"),
        ("llama-3-8b,block,h100,2,4,fast,70,0.5,1,1e9,218112000", "forward_ms is 'fast'"),
        ("llama-3-8b,block,h100,2.5,4,35,70,0.5,1,1e9,218112000", "tp is '2.5'"),
        ("llama-3-8b,block,h100,2,4,nan,70,0.5,1,1e9,218112000", "forward_ms is 'nan'"),
        ("llama-3-8b,block,h100,2,4,-1,70,0.5,1,1e9,218112000", "forward_ms is -1"),
        ("llama-3-8b,block,h100,2,4,,70,0.5,1,1e9,218112000", "forward_ms is empty"),
        ("llama-3-8b,block,tpu,2,4,35,70,0.5,1,1e9,218112000", "no GPU type 'tpu'"),
        ("llama-3-8b,moe-block,h100,2,4,35,70,0.5,1,1e9,218112000", "llama-3-8b has"),
        ("llama-3-8b,block,h100,0,4,35,70,0.5,1,1e9,218112000", "at least 1"),
        ("no-such,block,h100,2,4,35,70,0.5,1,1e9,218112000", "no model 'no-such'"),
        (",block,h100,2,4,35,70,0.5,1,1e9,218112000", "names no layer"),
        ("llama-3-8b,block,h100,2,4,0.01,70,0.5,1,1e9,218112000", "above 1.05 x"),
        ("llama-3-8b,block,h100,1,1,9,18,0,1,1e9,436224000", "same key as layers.csv line 2"),
    ],
)
def test_a_csv_row_that_cannot_be_read_is_refused_with_its_line(
    tmp_path: Path, line: str, reason: str
) -> None:
    good = "llama-3-8b,block,h100,1,1,9,18,0,1,1e9,436224000\n"
    run = read_csv(tmp_path, HEADER + good + "\n" + line + "\n")
    [refused] = run.refused
    assert refused.where == "layers.csv line 4"  # line 3 is empty
    assert reason in refused.reason
    assert len(run.layers) == 1


def test_a_model_for_all_rows_can_come_from_the_option(tmp_path: Path) -> None:
    text = HEADER.removeprefix("model,") + "block,cpu,1,1,9,18,0,1,1000,436224\n"
    run = read_csv(tmp_path, text, models=("tiny-llama-test",), seq_len=64)
    [row] = run.layers
    assert (row.key.layer_type, row.key.seq_len) == (hash_of(TINY, LayerKind.BLOCK), 64)
    assert row.key.topology is Topology.HOST


def test_a_misspelled_or_missing_column_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="line 1, column is 'forward_mS'"):
        read_csv(tmp_path, HEADER.replace("forward_ms", "forward_mS"))
    with pytest.raises(SpecError, match="line 1, column comm_ms"):
        read_csv(tmp_path, HEADER.replace("comm_ms,", ""))


def test_a_row_that_an_export_wrote_without_figures_keeps_its_status(tmp_path: Path) -> None:
    header = HEADER.strip() + ",status,reason\n"
    run = read_csv(
        tmp_path, header + "llama-3-8b,block,h100,1,64,,,,,,,out_of_memory,needed 90 GiB\n"
    )
    [refused] = run.refused
    assert (refused.status, refused.reason) == (EntryStatus.OUT_OF_MEMORY, "needed 90 GiB")
    assert refused.key is not None
    assert refused.key.micro_batch == 64


def test_links_and_hosts_come_from_csv_too(tmp_path: Path) -> None:
    (tmp_path / "hosts.csv").write_text(
        "gpu,host_ms,framework_bytes,usable_bytes\nh100,2.5,1500000000,8e10\nh100,2,1,1\n"
    )
    run = read_csv(
        tmp_path,
        "gpu,peer_gpu,topology,operation,ranks,nbytes,time_ms\n"
        "h100,,nvlink,all_reduce,4,1024,0.5\n"
        "h100,a6000,inter,p2p,2,1024,0.7\n"
        "h100,,nvlink,all_reduce,1,1024,0.5\n"
        "h100,,carrier-pigeon,p2p,2,1024,0.5\n",
        "links.csv",
    )
    assert [(row.operation, row.peer) for row in run.links] == [
        (Operation.ALL_REDUCE, "h100"),
        (Operation.P2P, "a6000"),
    ]
    assert run.hosts[0].usable_bytes == 80_000_000_000
    assert [row.where for row in run.refused] == [
        "links.csv line 4",
        "links.csv line 5",
        "hosts.csv line 3",
    ]


def test_one_csv_file_is_told_by_its_columns(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(
        "gpu,topology,operation,ranks,nbytes,time_ms\nh100,nvlink,all_gather,4,1024,0.5\n"
    )
    [run] = csv.read(tmp_path / "mine.csv", ImportOptions())
    assert len(run.links) == 1


# Metis


def metis_file(bs: int, **changes: Any) -> dict[str, Any]:
    """OPT-350M's 24 blocks: 8 ms a block but one of 11, memory 1000 MiB and 100 a sample."""
    layers = len(OPT.layers)
    ms = [2.0 * bs, *[8.0 * bs] * (layers - 2), 5.0 * bs]
    ms[3] += 3.0
    weights = [layer.parameters * 2.0 for layer in OPT.layers]
    document: dict[str, Any] = {
        "model": {"parameters": {"parameters_per_layer_bytes": weights}},
        "execution_time": {
            "optimizer_time_ms": 6.5,
            "batch_generator_time_ms": 0.8,
            "total_time_ms": 1.0,
            "layer_compute_total_ms": ms,
        },
        "execution_memory": {"layer_memory_total_mb": [1000.0 + 100.0 * bs] * layers},
    }
    return document | changes


def read_metis(folder: Path, files: dict[str, Any], **options: Any) -> Any:
    for name, document in files.items():
        (folder / name).write_text(json.dumps(document))
    defaults: dict[str, Any] = {"models": ("opt-350m",), "gpus": {"A100": "a100-40gb"}}
    [run] = metis.read(folder, ImportOptions(**(defaults | options)))
    return run


def test_metis_times_are_split_a_third_to_two_and_blocks_are_means(tmp_path: Path) -> None:
    run = read_metis(tmp_path, {"DeviceType.A100_tp2_bs1.json": metis_file(1)})
    embedding, block, head = run.layers
    assert (embedding.key.gpu, embedding.key.tp, embedding.key.dtype) == (
        "a100-40gb",
        2,
        DType.BF16,
    )
    assert block.forward_ms + block.backward_ms == pytest.approx(8 + 3 / 24)
    assert block.backward_ms == pytest.approx(2 * block.forward_ms)
    assert block.forward_mad_ms == 0  # 23 of 24 blocks agree
    assert head.forward_ms + head.backward_ms == pytest.approx(5.0)
    assert block.comm_included
    assert block.parameter_bytes == OPT.layers[1].parameters  # 2 bytes each, over 2 ranks


def test_the_metis_optimizer_step_is_shared_by_parameters(tmp_path: Path) -> None:
    run = read_metis(tmp_path, {"DeviceType.A100_tp2_bs1.json": metis_file(1)})
    embedding, block, head = run.layers
    assert embedding.update_ms + 24 * block.update_ms + head.update_ms == pytest.approx(6.5)
    assert embedding.update_ms / block.update_ms == pytest.approx(
        OPT.layers[0].parameters / OPT.layers[1].parameters
    )


def test_metis_activations_are_what_grows_with_the_micro_batch(tmp_path: Path) -> None:
    run = read_metis(
        tmp_path, {f"DeviceType.A100_tp2_bs{bs}.json": metis_file(bs) for bs in (1, 2, 4)}
    )
    block = hash_of(OPT, LayerKind.BLOCK)
    kept = {r.key.micro_batch: r.activation_bytes for r in run.layers if r.key.layer_type == block}
    assert kept == {bs: bs * 100 * 1024**2 for bs in (1, 2, 4)}


def test_with_one_micro_batch_the_training_state_is_subtracted(tmp_path: Path) -> None:
    run = read_metis(tmp_path, {"DeviceType.A100_tp2_bs1.json": metis_file(1)})
    state = 16 * OPT.layers[1].parameters / 2  # bf16 AdamW, two ranks
    assert run.layers[1].activation_bytes == round(1100 * 1024**2 - state)


def test_the_metis_batch_generator_is_the_host_time(tmp_path: Path) -> None:
    run = read_metis(tmp_path, {"DeviceType.A100_tp2_bs1.json": metis_file(1)})
    [host] = run.hosts
    assert (host.gpu, host.host_ms) == ("a100-40gb", 0.8)


ONE_LAYER = {"layer_memory_total_mb": [1.0]}
SMALL = {"parameters": {"parameters_per_layer_bytes": [1e6] * 26}}


@pytest.mark.parametrize(
    ("name", "document", "reason"),
    [
        ("DeviceType.V9_tp2_bs1.json", metis_file(1), "--gpu-name V9=NAME"),
        ("DeviceType.A100_tp0_bs1.json", metis_file(1), "is no <type>_tp<t>_bs<b>"),
        ("DeviceType.A100_tp1_bs1.json", metis_file(1, execution_memory={}), "memory_total_mb"),
        ("DeviceType.A100_tp1_bs1.json", metis_file(1, execution_memory=ONE_LAYER), "has 1 layers"),
        ("DeviceType.A100_tp1_bs1.json", metis_file(1, model=SMALL), "another model or precision"),
    ],
)
def test_a_metis_file_that_cannot_be_used_is_refused_by_name(
    tmp_path: Path, name: str, document: dict[str, Any], reason: str
) -> None:
    run = read_metis(tmp_path, {name: document, "DeviceType.A100_tp2_bs1.json": metis_file(1)})
    [refused] = run.refused
    assert refused.where == name
    assert reason in refused.reason
    assert len(run.layers) == 3


def test_metis_needs_exactly_one_model(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="add --model"):
        read_metis(tmp_path, {}, models=())


# AMP


def read_amp(folder: Path, name: str, vector: Any, **options: Any) -> Any:
    np.save(folder / name, np.asarray(vector))
    defaults: dict[str, Any] = {"models": ("opt-350m",), "gpus": {"V100": "v100-16gb"}}
    [run] = amp.read(folder, ImportOptions(**(defaults | options)))
    return run


AMP_VECTOR = [0.001, 0.0005, *[0.004] * 23, 0.005, 0.0001, 0.0002, 0.006, 0.0003]


def test_amp_vectors_become_layers_and_no_ops_go_to_their_end(tmp_path: Path) -> None:
    run = read_amp(tmp_path, "gpt2_V100_2.npy", AMP_VECTOR)
    embedding, block, head = run.layers
    assert embedding.forward_ms == pytest.approx(1.5)
    assert block.forward_ms == pytest.approx((23 * 4 + 5) / 24)
    assert block.backward_ms == pytest.approx(2 * block.forward_ms)
    assert head.forward_ms == pytest.approx(6.6)
    assert (block.key.tp, block.key.micro_batch, block.samples) == (2, 1, 24)
    assert block.update_ms == 0


def test_amp_seconds_are_per_sample(tmp_path: Path) -> None:
    run = read_amp(tmp_path, "gpt2_V100_2.npy", AMP_VECTOR, micro_batches=(1, 4))
    block = hash_of(OPT, LayerKind.BLOCK)
    forward = {r.key.micro_batch: r.forward_ms for r in run.layers if r.key.layer_type == block}
    assert forward[4] == pytest.approx(4 * forward[1])


def test_amp_activations_are_those_of_the_published_formula(tmp_path: Path) -> None:
    run = read_amp(tmp_path, "gpt2_V100_1.npy", AMP_VECTOR, seq_len=1024)
    embedding, block, head = run.layers
    s, h, a, v = 1024, 1024, 16, 50272
    assert block.activation_bytes == s * h * 34 + 5 * a * s * s
    assert embedding.activation_bytes == s * h
    assert head.activation_bytes == 4 * s * h * (1 + v / h)


@pytest.mark.parametrize(
    ("name", "vector", "reason"),
    [
        ("gpt2_T9_2.npy", AMP_VECTOR, "--gpu-name T9=NAME"),
        ("gpt2_V100_2.npy", AMP_VECTOR[:-1], "has 29 entries"),
        ("gpt2_V100_2.npy", [AMP_VECTOR], "expected one vector"),
        ("gpt2.npy", AMP_VECTOR, "is no <model>_<type>_<tp>.npy"),
    ],
)
def test_an_amp_vector_that_cannot_be_used_is_refused(
    tmp_path: Path, name: str, vector: list[Any], reason: str
) -> None:
    run = read_amp(tmp_path, name, vector)
    assert run.layers == ()
    assert reason in run.refused[0].reason


def test_amp_pickles_are_never_loaded(tmp_path: Path) -> None:
    run = read_amp(tmp_path, "gpt2_V100_2.npy", np.array([{"a": 1}], dtype=object))
    assert "is no NumPy vector" in run.refused[0].reason


def test_amp_knows_the_memory_of_gpt_blocks_only(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="another kind"):
        read_amp(tmp_path, "x_V100_2.npy", AMP_VECTOR, models=("llama-3-8b",))
