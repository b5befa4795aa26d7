"""Memory of a layer: two independent counts agree, and closed forms hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from profiler.measure.bench import LayerBench
from profiler.measure.entries import entries_of
from profiler.measure.memory import saved_bytes, trace_cpu
from specs.layer import LayerKind
from specs.profile import LayerKey
from specs.workload import Recompute
from tests.profiler.test_measure_entries import question

CPU = torch.device("cpu")
A = 2 * 128 * 256 * 4  # one activation: micro-batch 2, length 128, width 256, fp32


def bench(kind: str, recompute: Recompute = Recompute.NONE, copies: int = 1) -> LayerBench:
    entries, _ = entries_of(question(tps=(1,), micro_batches=(2,)))
    entry = next(e for e in entries if e.layer_type.kind == kind)
    key: LayerKey = replace(entry.key, recompute=recompute)
    return LayerBench(
        entry.layer_type, question().model, key, group=None, device=CPU, copies=copies, seed=0
    )


def test_a_trace_follows_every_allocation() -> None:
    kept = []

    def work() -> None:
        scratch = torch.zeros(1000)
        kept.append(torch.ones(300))
        del scratch
        kept.append(torch.ones(200))

    result = trace_cpu(work)
    assert result.end_bytes == 500 * 4
    assert result.peak_bytes == 1300 * 4


def test_a_linear_layer_keeps_its_input_only() -> None:
    layer = nn.Linear(64, 128)

    def forward() -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(10, 64, requires_grad=True)
        return layer(x), x

    assert saved_bytes([layer], forward) == 10 * 64 * 4


def test_what_all_micro_batches_share_counts_for_none() -> None:
    shared = torch.randn(1000)

    def forward() -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(1000, requires_grad=True)
        return x * shared, x

    assert saved_bytes([], forward) == 1000 * 4


def test_a_block_keeps_its_input_and_what_its_backward_reads() -> None:
    layer = bench("block")
    memory = layer.memory()
    x = layer._input()
    roots: list[torch.Tensor] = []
    kept = trace_cpu(lambda: roots.extend(layer._forward(layer.layers, x))).end_bytes
    # The trace counts the output, which is the next layer's input, and not the own input.
    assert memory.activation_bytes == kept
    # DESIGN and the study of runtimes: 22 activations with 4 KV heads of 8 and a width of 3 H.
    assert memory.activation_bytes == pytest.approx(21 * A, rel=0.01)


def test_recomputation_keeps_the_input_alone_and_needs_the_rest_in_passing() -> None:
    whole, again = bench("block").memory(), bench("block", Recompute.FULL).memory()
    assert again.activation_bytes == A
    assert again.transient_bytes >= whole.activation_bytes
    assert again.parameter_bytes == whole.parameter_bytes


def test_an_embedding_keeps_its_tokens() -> None:
    assert bench("embedding").memory().activation_bytes == 2 * 128 * 8


def test_a_head_keeps_its_input_its_norm_and_the_softmax() -> None:
    memory = bench("head").memory()
    softmax = 2 * 128 * 1024 * 4
    assert memory.activation_bytes >= 2 * A + softmax
    assert memory.activation_bytes <= 3.1 * A + softmax


def test_parameter_bytes_are_those_of_the_layer_type() -> None:
    for entry in entries_of(question(tps=(1,), micro_batches=(2,)))[0]:
        measured = bench(entry.layer_type.kind.value).memory().parameter_bytes
        assert measured == entry.layer_type.parameters * 4


def test_peaks_are_above_what_is_kept_and_below_a_whole_model() -> None:
    for kind in ("embedding", "block", "head"):
        memory = bench(kind).memory()
        assert 0 < memory.transient_bytes < 64 * A


def test_copies_are_distinct_layers_that_are_timed_as_one_each() -> None:
    stack = bench("block", copies=3)
    first, second = stack.layers[0], stack.layers[1]
    names = [name for name, _ in first.named_parameters()]
    assert names
    assert not torch.equal(
        first.get_parameter("block.mlp.up_proj.weight"),
        second.get_parameter("block.mlp.up_proj.weight"),
    )
    times = stack.timed_passes(3)
    assert len(times) == 3
    assert all(t.forward_ms > 0 and t.backward_ms > 0 and t.comm_ms == 0 for t in times)


def test_timing_does_not_train_the_layer() -> None:
    layer = bench("head")
    before = layer.layers[0].get_parameter("weight").detach().clone()
    layer.timed_passes(2)
    assert all(ms > 0 for ms in layer.timed_updates(3))
    assert torch.equal(layer.layers[0].get_parameter("weight"), before)


def test_every_kind_of_layer_of_the_model_can_be_timed() -> None:
    for kind in LayerKind.EMBEDDING, LayerKind.BLOCK, LayerKind.HEAD:
        assert len(bench(kind.value).timed_passes(1)) == 1
