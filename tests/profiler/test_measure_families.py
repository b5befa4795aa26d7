"""Every family that the runtime builds can be measured, and two counts of its memory agree."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest
import torch

from profiler.measure.bench import LayerBench
from profiler.measure.entries import entries_of
from profiler.measure.memory import trace_cpu
from specs.model import Model
from specs.workload import Recompute
from tests.profiler.test_measure_crew import SMALL_CONFIG
from tests.profiler.test_measure_entries import question

EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 4, "head_dim": 16, "mlp_only_layers": [0], **EXPERTS},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        **EXPERTS,
    },
}


def benches(family: str, recompute: Recompute = Recompute.NONE) -> list[LayerBench]:
    model = Model.from_config(family, {**SMALL_CONFIG, "model_type": family, **FAMILIES[family]})
    asked = replace(
        question(), model=model, seq_len=32, tps=(1,), micro_batches=(2,), recomputes=(recompute,)
    )
    return [
        LayerBench(
            entry.layer_type,
            model,
            entry.key,
            group=None,
            device=torch.device("cpu"),
            copies=1,
            seed=0,
        )
        for entry in entries_of(asked)[0]
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_type_of_a_family_is_timed_and_weighed(family: str) -> None:
    found = benches(family)
    expected = 4 if family in ("qwen3_moe", "deepseek_v3") else 3
    assert len(found) == expected
    for bench in found:
        (times,) = bench.timed_passes(1)
        assert times.forward_ms > 0
        assert times.backward_ms > 0
        assert min(bench.timed_updates(1)) > 0
        memory = bench.memory()
        assert memory.activation_bytes > 0
        assert memory.parameter_bytes + memory.expert_parameter_bytes > 0


def held_bytes(bench: LayerBench) -> int:
    """What the allocator has handed out in one forward and not got back."""
    roots: list[torch.Tensor] = []
    x_BSH = bench._input()

    def forward() -> None:
        roots.extend(bench._forward(bench.layers, x_BSH))
        gc.collect()  # cycles of Python objects hold tensors that nothing needs

    gc.collect()
    return trace_cpu(forward).end_bytes


@pytest.mark.parametrize("family", FAMILIES)
def test_what_autograd_saves_is_what_the_allocator_still_holds(family: str) -> None:
    for bench in benches(family):
        if not bench.kind.is_block:
            continue
        bench.timed_passes(1)
        # Held: the output instead of the input, of the same size.
        assert bench.memory().activation_bytes == pytest.approx(held_bytes(bench), rel=0.03)


@pytest.mark.parametrize("family", FAMILIES)
def test_recomputation_keeps_the_input_of_a_block(family: str) -> None:
    for bench in benches(family, Recompute.FULL):
        if bench.kind.is_block:
            assert bench.memory().activation_bytes == 2 * 32 * 64 * 4
