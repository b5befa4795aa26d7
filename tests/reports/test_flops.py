from __future__ import annotations

import pytest

from reports.flops import achieved_tflops, forward_flops
from specs.layer import LayerKind, LayerType
from specs.model import load_model
from specs.workload import Recompute


def test_a_block_multiplies_its_weights_and_attends() -> None:
    block = LayerType.of(LayerKind.BLOCK, {"heads": 2, "head_dim": 8}, parameters=1000)
    # 2 samples of 16 tokens: 2 * 1000 * 32, and 2 * 32 * 16 * (2 * 2 * 8) for scores and values
    assert forward_flops(block, 2, 16) == 64_000 + 32_768


def test_the_attention_of_llama_3_8b_is_what_megatron_counts() -> None:
    block = load_model("llama-3-8b").layers[1]
    tokens, seq, hidden = 4096, 4096, 4096
    attention = forward_flops(block, 1, seq) - 2 * block.parameters * tokens
    assert attention == 4 * tokens * seq * hidden


def test_only_the_experts_that_a_token_visits_count() -> None:
    moe = LayerType.of(
        LayerKind.MOE_BLOCK, {"experts": 8, "top_k": 2}, parameters=100, expert_parameters=800
    )
    assert forward_flops(moe, 1, 10) == 2 * (100 + 200) * 10


def test_latent_attention_has_wider_queries_than_values() -> None:
    shapes = {"attention": "mla", "heads": 2, "nope_dim": 4, "rope_dim": 2, "value_dim": 3}
    block = LayerType.of(LayerKind.DENSE_BLOCK, shapes, parameters=0)
    assert forward_flops(block, 1, 10) == 2 * 10 * 10 * (2 * (4 + 2 + 3))


def test_an_embedding_looks_up_and_has_no_rate() -> None:
    layer = load_model("tiny-llama-test").layers[0]
    assert forward_flops(layer, 4, 128) == 0
    rate = achieved_tflops(
        layer, tp=1, micro_batch=1, seq_len=128, recompute=Recompute.NONE, compute_ms=1.0
    )
    assert rate is None


@pytest.mark.parametrize(("recompute", "passes"), [(Recompute.NONE, 3), (Recompute.FULL, 4)])
def test_a_rank_of_two_does_half_of_the_work(recompute: Recompute, passes: int) -> None:
    layer = LayerType.of(LayerKind.BLOCK, {}, parameters=10**9)
    rate = achieved_tflops(
        layer, tp=2, micro_batch=1, seq_len=1000, recompute=recompute, compute_ms=100.0
    )
    # passes * 2e12 / 2 in a tenth of a second
    assert rate == pytest.approx(passes * 10)
