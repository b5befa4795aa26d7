"""One rank's share of a layer."""

from __future__ import annotations

import pytest

from profiler.estimates.kernels import Attention, Gemm
from profiler.estimates.question import tilings
from profiler.estimates.shard import Shard, parameters
from specs.layer import LayerKind, LayerType
from specs.model import catalogue_models, load_model
from specs.workload import DType

ESTIMABLE = [name for name in catalogue_models() if not name.startswith("sailor-")]


def layer(model: str, kind: LayerKind) -> LayerType:
    return next(found for found in load_model(model).layer_types if found.kind is kind)


def shard(model: str, kind: LayerKind, **degrees: int) -> Shard:
    return Shard(layer(model, kind), 1, 4096, DType.BF16, **degrees)


@pytest.mark.parametrize("name", ESTIMABLE)
def test_one_rank_alone_holds_every_parameter_of_a_layer(name: str) -> None:
    for found in load_model(name).layer_types:
        whole = parameters(Shard(found, 1, 128, DType.BF16))
        assert whole == (found.parameters, found.expert_parameters)


def test_two_ranks_hold_half_of_the_matrices_and_both_the_norms() -> None:
    # llama-3-8b: 218,112,000 parameters, of which 2 * 4096 in norms.
    assert parameters(shard("llama-3-8b", LayerKind.BLOCK, tp=2)) == (
        (218_112_000 - 8192) // 2 + 8192,
        0,
    )
    assert parameters(shard("llama-3-8b", LayerKind.HEAD, tp=4)) == (128256 // 4 * 4096 + 4096, 0)


def test_few_key_and_value_heads_are_held_more_than_once() -> None:
    # qwen3-30b-a3b: 4 key and value heads of 128, hidden 2048, 32 query heads, 128 experts.
    dense, _ = parameters(shard("qwen3-30b-a3b", LayerKind.MOE_BLOCK, tp=8, etp=8))
    queries_and_output = 2 * 2048 * (32 // 8) * 128
    one_head_each = 2 * 2048 * 128
    norms_and_router = 2 * 2048 + 2 * 128 + 2048 * 128
    assert dense == queries_and_output + one_head_each + norms_and_router


def test_experts_are_split_over_ep_and_etp_and_not_over_tp() -> None:
    whole = layer("mixtral-8x7b", LayerKind.MOE_BLOCK).expert_parameters
    assert (
        parameters(shard("mixtral-8x7b", LayerKind.MOE_BLOCK, tp=2, ep=4, etp=2))[1] == whole // 8
    )
    assert parameters(shard("mixtral-8x7b", LayerKind.MOE_BLOCK, tp=2))[1] == whole


def test_latent_attention_is_whole_on_every_rank() -> None:
    one = shard("deepseek-v3-like", LayerKind.DENSE_BLOCK)
    eight = shard("deepseek-v3-like", LayerKind.DENSE_BLOCK, tp=8)
    mlp = 3 * 7168 * 18432
    assert parameters(one)[0] - parameters(eight)[0] == mlp - mlp // 8
    assert one.attention == eight.attention == Attention(1, 4096, 128, 128, 192, 128)


def test_a_plain_block_splits_like_megatron() -> None:
    # gpt-neo-2.7b: hidden 2560, MLP 10240, 20 heads; output and second bias, norms on every rank.
    dense, _ = parameters(shard("gpt-neo-2.7b", LayerKind.BLOCK, tp=2))
    matrices = (4 * 2560 * 2560 + 2 * 2560 * 10240) // 2
    assert dense == matrices + 10240 // 2 + 2560 + 2560 + 4 * 2560


def test_projections_of_grouped_attention_are_one_product_for_queries_keys_and_values() -> None:
    assert shard("llama-3-8b", LayerKind.BLOCK, tp=2).attention_gemms() == [
        Gemm(4096, (16 + 2 * 4) * 128, 4096),
        Gemm(4096, 4096, 16 * 128),
    ]
    assert shard("llama-3-8b", LayerKind.BLOCK, tp=2).mlp_gemms() == [
        Gemm(4096, 14336, 4096),
        Gemm(4096, 4096, 7168),
    ]


def test_projections_of_latent_attention_go_through_the_ranks() -> None:
    assert shard("deepseek-v3-like", LayerKind.DENSE_BLOCK, tp=4).attention_gemms() == [
        Gemm(4096, 1536, 7168),
        Gemm(4096, 128 * 192, 1536),
        Gemm(4096, 512 + 64, 7168),
        Gemm(4096, 128 * 256, 512),
        Gemm(4096, 7168, 128 * 128),
    ]


def test_rows_per_expert_of_the_worked_example() -> None:
    # DESIGN 13, 23: mixtral-8x7b, TP 2, (EP 4, ETP 1): 1*4096*2*4*1/(8*2) = 2048 at 2 experts.
    found = shard("mixtral-8x7b", LayerKind.MOE_BLOCK, tp=2, ep=4, etp=1)
    assert (found.rows_per_expert, found.local_experts, found.expert_rows) == (2048, 2, 4096)
    assert found.own_tokens == 2048
    assert not found.follows_tp


def test_experts_cut_over_the_tp_group_see_every_token() -> None:
    found = shard("mixtral-8x7b", LayerKind.MOE_BLOCK, tp=2, ep=1, etp=2)
    assert found.follows_tp
    assert found.own_tokens == 4096
    assert (found.rows_per_expert, found.expert_width) == (1024, 7168)


def test_the_tilings_of_the_worked_example_exist() -> None:
    # DESIGN 13, 23: W = 8 in nodes of 2: EP * ETP divides 8, ETP at most 2 but for (1, 4) ...
    moe = layer("mixtral-8x7b", LayerKind.MOE_BLOCK)
    found = tilings(moe, 2, None, None)
    assert {(8, 1), (4, 2), (4, 1), (2, 2), (2, 1), (1, 2), (1, 1)} <= set(found)
    assert found[0] == (1, 2)
    assert len(found) == len(set(found))


def test_a_tiling_divides_experts_and_their_width() -> None:
    moe = layer("mixtral-8x7b", LayerKind.MOE_BLOCK)
    assert tilings(moe, 1, (1, 3, 16), (1, 3, 7)) == [(1, 1), (1, 7)]
    assert tilings(layer("llama-3-8b", LayerKind.BLOCK), 4, (2,), (2,)) == [(1, 1)]
