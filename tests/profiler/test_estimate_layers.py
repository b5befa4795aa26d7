"""Estimated layer rows: against the reference problems, and rule by rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiler.estimates.activations import Kernels
from profiler.estimates.blocks import AttentionKernel
from profiler.estimates.collectives import collective_ms
from profiler.estimates.layers import Style, estimate_layer
from specs.errors import SpecError
from specs.layer import LayerKind, LayerType
from specs.model import Model, load_model
from specs.profile import EntryStatus, LayerKey, LayerProfile, LayerRefusal, Operation
from specs.topology import Topology
from specs.workload import DType, Optimizer, Recompute

REFERENCE = Path(__file__).parent.parent / "planner" / "data" / "profiles"
TOPOLOGIES = {"a100-40gb": Topology.NVLINK, "h100": Topology.NVLINK, "a6000": Topology.PCIE}
TIMES = ("forward_ms", "backward_ms", "comm_ms", "update_ms")
BYTES = ("activation_bytes", "transient_bytes", "parameter_bytes")


def key(layer: LayerType, gpu: str = "h100", **changes: Any) -> LayerKey:
    values: dict[str, Any] = {
        "gpu": gpu,
        "layer_type": layer.hash,
        "tp": 1,
        "micro_batch": 1,
        "seq_len": 4096,
        "dtype": DType.BF16,
        "recompute": Recompute.NONE,
        "optimizer": Optimizer.ADAMW,
        "topology": TOPOLOGIES.get(gpu, Topology.PCIE),
    }
    return LayerKey(**values | changes)


def estimated(layer: LayerType, style: Style | None = None, **changes: Any) -> LayerProfile:
    row = estimate_layer(layer, key(layer, **changes), style)
    assert isinstance(row, LayerProfile)
    return row


def layer_of(model: Model, kind: LayerKind) -> LayerType:
    return next(layer for layer in model.layer_types if layer.kind is kind)


LLAMA = load_model("llama-3-8b")
BLOCK = layer_of(LLAMA, LayerKind.BLOCK)
MIXTRAL = layer_of(load_model("mixtral-8x7b"), LayerKind.MOE_BLOCK)


@pytest.mark.parametrize("name", ["llama-3-8b", "qwen3-32b"])
def test_with_fused_kernels_the_rows_are_those_of_the_reference_problems(name: str) -> None:
    """Made by an independent implementation. It leaves out the norms of heads: 256 parameters."""
    by_kind = {layer.kind.value: layer for layer in load_model(name).layer_types}
    rows = json.loads((REFERENCE / f"{name}.json").read_text())["layers"]
    assert len(rows) == 108
    for row in rows:
        layer = by_kind[row["layer"]]
        found = estimated(
            layer,
            Style(Kernels.FUSED),
            gpu=row["gpu"],
            tp=row["tp"],
            micro_batch=row["micro_batch"],
        )
        head_norms = 256 if layer.flag("qk_norm") else 0
        for figure in TIMES:
            slack = 1e-5 if figure == "update_ms" and head_norms else 1e-9
            assert getattr(found, figure) == pytest.approx(row[figure], rel=slack), (figure, row)
        for figure in BYTES:
            expected = row[figure] + (2 * head_norms if figure == "parameter_bytes" else 0)
            assert getattr(found, figure) == expected, (figure, row)


def test_links_are_those_of_the_reference_problems() -> None:
    rows = json.loads((REFERENCE / "llama-3-8b.json").read_text())["links"]
    assert len(rows) == 45
    for row in rows:
        found = collective_ms(
            row["gpu"], TOPOLOGIES[row["gpu"]], Operation(row["op"]), row["ranks"], row["bytes"]
        )
        assert found == pytest.approx(row["time_ms"], rel=1e-9)


def test_kernels_change_memory_and_nothing_else() -> None:
    eager, fused = estimated(BLOCK), estimated(BLOCK, Style(Kernels.FUSED))
    assert eager.activation_bytes > fused.activation_bytes
    for figure in (*TIMES, "parameter_bytes"):
        assert getattr(eager, figure) == getattr(fused, figure)


def test_the_gate_of_memory_is_one_all_reduce_at_each_place_a_block_sums() -> None:
    a = 4096 * 4096 * 2
    one = collective_ms("h100", Topology.NVLINK, Operation.ALL_REDUCE, 4, a)
    assert estimated(BLOCK, tp=4).comm_ms == pytest.approx(4 * one)
    for kind in (LayerKind.EMBEDDING, LayerKind.HEAD):
        assert estimated(layer_of(LLAMA, kind), tp=4).comm_ms == pytest.approx(one)
    assert estimated(BLOCK).comm_ms == 0.0


def test_latent_attention_has_no_collective() -> None:
    dense = layer_of(load_model("deepseek-v3-like"), LayerKind.DENSE_BLOCK)
    one = collective_ms("h100", Topology.NVLINK, Operation.ALL_REDUCE, 4, 4096 * 7168 * 2)
    assert estimated(dense, tp=4).comm_ms == pytest.approx(2 * one)


def test_full_recomputation_adds_a_forward_and_half_of_the_collectives() -> None:
    for tp in (1, 2):
        none = estimated(BLOCK, gpu="a6000", tp=tp)
        full = estimated(BLOCK, gpu="a6000", tp=tp, recompute=Recompute.FULL)
        assert full.forward_ms == none.forward_ms
        assert full.backward_ms == pytest.approx(none.backward_ms + none.forward_ms)
        assert full.comm_ms == pytest.approx(1.5 * none.comm_ms)
        assert full.activation_bytes == 4096 * 4096 * 2
        assert full.transient_bytes >= none.activation_bytes


def test_embedding_and_head_are_never_recomputed() -> None:
    for kind in (LayerKind.EMBEDDING, LayerKind.HEAD):
        layer = layer_of(LLAMA, kind)
        none, full = (estimated(layer, recompute=word) for word in Recompute)
        assert all(getattr(none, figure) == getattr(full, figure) for figure in (*TIMES, *BYTES))


def test_the_host_cannot_launch_a_small_block_faster() -> None:
    tiny = load_model("tiny-llama-test")
    small = layer_of(tiny, LayerKind.BLOCK)
    changes = {"seq_len": 128, "dtype": DType.FP32}
    assert estimated(small, **changes).forward_ms == 1.57
    assert estimated(small, tp=2, **changes).forward_ms == pytest.approx(1.57 + 2 * 0.04175)
    for kind in (LayerKind.EMBEDDING, LayerKind.HEAD):
        assert estimated(layer_of(tiny, kind), **changes).forward_ms < 0.5


def test_launching_the_recomputed_forward_takes_as_long_as_launching_it_the_first_time() -> None:
    small = layer_of(load_model("tiny-llama-test"), LayerKind.BLOCK)
    changes = {"seq_len": 128, "dtype": DType.FP32, "recompute": Recompute.FULL}
    assert estimated(small, **changes).backward_ms == pytest.approx(1.57)
    split = estimated(small, tp=2, **changes)
    # Two thirds of the collectives run in this backward: they fill part of the wait.
    assert split.backward_ms + split.comm_ms * 2 / 3 == pytest.approx(1.57)


def test_the_derate_is_on_computation_and_not_on_collectives_or_updates() -> None:
    a100, h100 = estimated(BLOCK, gpu="a100-40gb", tp=2), estimated(BLOCK, gpu="h100", tp=2)
    one = collective_ms("h100", Topology.NVLINK, Operation.ALL_REDUCE, 2, 4096 * 4096 * 2)
    assert h100.comm_ms == pytest.approx(4 * one)
    parameters = a100.parameter_bytes / 2
    assert h100.update_ms == pytest.approx(0.004 + 28 * parameters / (3350e6 * 0.8))
    embedding = estimated(layer_of(LLAMA, LayerKind.EMBEDDING))
    assert embedding.forward_ms == pytest.approx(1.25 * (0.004 + 4 * 4096 * 4096 / (3350e6 * 0.8)))


def test_rows_of_experts_over_ep_and_etp_gather_and_scatter() -> None:
    found = estimated(MIXTRAL, tp=2, ep=4, etp=2)
    a = 4096 * 4096 * 2
    reduce_ms = collective_ms("h100", Topology.NVLINK, Operation.ALL_REDUCE, 2, a)
    rebuild = collective_ms("h100", Topology.NVLINK, Operation.ALL_GATHER, 2, a)
    # 2048 tokens of this rank at 2 experts each, times 2 ranks of the ETP group.
    rows = 2 * 4096 * 4096 * 2
    gather = collective_ms("h100", Topology.NVLINK, Operation.ALL_GATHER, 2, rows)
    scatter = collective_ms("h100", Topology.NVLINK, Operation.REDUCE_SCATTER, 2, rows)
    assert found.comm_ms == pytest.approx(2 * (reduce_ms + rebuild + gather + scatter))


def test_experts_cut_over_the_tp_group_are_summed_by_one_all_reduce_each_way() -> None:
    one = collective_ms("h100", Topology.NVLINK, Operation.ALL_REDUCE, 2, 4096 * 4096 * 2)
    assert estimated(MIXTRAL, tp=2, etp=2).comm_ms == pytest.approx(4 * one)


def test_a_quarter_of_the_experts_with_four_times_the_rows_each_is_no_more_work() -> None:
    alone, spread = estimated(MIXTRAL), estimated(MIXTRAL, ep=4)
    assert spread.expert_parameter_bytes * 4 == alone.expert_parameter_bytes
    assert spread.parameter_bytes == alone.parameter_bytes
    # The same rows in fewer, larger products, and rows of other ranks to sort.
    assert 0.9 * alone.forward_ms < spread.forward_ms < 1.1 * alone.forward_ms


def test_what_cannot_be_split_is_refused_with_the_reason() -> None:
    row = estimate_layer(BLOCK, key(BLOCK, tp=3))
    assert isinstance(row, LayerRefusal)
    assert row.status is EntryStatus.NOT_DIVISIBLE
    assert row.reason == "32 attention heads cannot be split over tp=3"


def test_layers_known_only_by_sizes_are_refused() -> None:
    layer = load_model("sailor-opt-350m").layers[1]
    with pytest.raises(SpecError, match="known only by their sizes"):
        estimate_layer(layer, key(layer))


def test_fp32_doubles_bytes_and_runs_outside_the_tensor_cores() -> None:
    half, full = estimated(BLOCK), estimated(BLOCK, dtype=DType.FP32)
    assert full.parameter_bytes == 2 * half.parameter_bytes
    assert full.comm_ms == half.comm_ms == 0
    assert full.forward_ms > 5 * half.forward_ms
    assert full.update_ms == half.update_ms


def test_fp16_is_as_bf16_but_on_cards_that_know_only_fp16() -> None:
    assert estimated(BLOCK, dtype=DType.FP16).forward_ms == estimated(BLOCK).forward_ms
    fp16 = estimated(BLOCK, gpu="v100-32gb", dtype=DType.FP16, topology=Topology.NVLINK)
    bf16 = estimated(BLOCK, gpu="v100-32gb", topology=Topology.NVLINK)
    assert bf16.forward_ms > 4 * fp16.forward_ms


def test_unfused_attention_is_slower_and_keeps_its_scores_when_asked_for() -> None:
    flash = estimated(BLOCK, gpu="a100-80gb", topology=Topology.NVLINK)
    unfused = estimated(
        BLOCK,
        Style(attention=AttentionKernel.UNFUSED),
        gpu="a100-80gb",
        topology=Topology.NVLINK,
    )
    assert unfused.forward_ms > flash.forward_ms
    # Softmax in fp32 and in bf16 instead of one fp32 number per row.
    scores, rows = 32 * 4096 * 4096, 32 * 4096
    assert unfused.activation_bytes - flash.activation_bytes == 6 * scores - 4 * rows


def test_cards_without_flash_keep_no_scores_by_default() -> None:
    v100 = estimated(BLOCK, gpu="v100-32gb", dtype=DType.FP16, topology=Topology.NVLINK)
    h100 = estimated(BLOCK, dtype=DType.FP16)
    assert v100.activation_bytes == h100.activation_bytes


def test_a_vocabulary_that_does_not_divide_is_priced_for_the_fullest_rank() -> None:
    head = layer_of(load_model("gpt-neo-2.7b"), LayerKind.HEAD)
    found = estimated(head, tp=2)
    assert found.parameter_bytes == 2 * (25129 * 2560 + 2 * 2560)
