from __future__ import annotations

import pytest

from specs.boxes import Tag
from specs.layer import LayerKind
from specs.layout import ExpertSlice, layer_placements, not_divisible, tensors_of
from specs.model import catalogue_models, load_model


@pytest.mark.parametrize("name", catalogue_models())
def test_the_tensors_of_a_layer_have_as_many_elements_as_its_type_says(name: str) -> None:
    model = load_model(name)
    for layer_type in model.layer_types:
        elements = 0
        for tensor in tensors_of(layer_type):
            size = 1
            for length in tensor.shape:
                size *= length
            elements += size
        assert elements == layer_type.parameters + layer_type.expert_parameters, layer_type.kind


def test_a_rank_holds_its_heads_its_slice_of_the_width_and_all_norms() -> None:
    # llama-3-8b: 32 query and 8 key heads of 128, hidden 4096, width 14336; rank 1 of 4.
    held = layer_placements(load_model("llama-3-8b"), 1, tp=4, rank=1)
    sizes = {name: placement.box.size for name, placement in held.items()}
    assert sizes["self_attn.q_proj.weight"] == (1024, 4096)
    assert sizes["self_attn.k_proj.weight"] == (256, 4096)
    assert sizes["self_attn.o_proj.weight"] == (4096, 1024)
    assert sizes["mlp.down_proj.weight"] == (4096, 3584)
    assert sizes["input_layernorm.weight"] == (4096,)
    assert held["self_attn.o_proj.weight"].box.offset == (0, 1024)
    assert held["input_layernorm.weight"].tag is Tag.REPLICATED


def test_sixteen_ranks_hold_each_of_eight_key_heads_twice() -> None:
    model = load_model("llama-3-8b")
    held = [layer_placements(model, 1, 16, rank)["self_attn.k_proj.weight"] for rank in range(16)]
    assert [placement.box.offset[0] // 128 for placement in held] == [r // 2 for r in range(16)]
    assert {placement.tag for placement in held} == {Tag.PARTIAL}


def test_devices_of_a_stage_hold_the_experts_that_the_tiling_says() -> None:
    # Eight devices, EP 2 x ETP 2: two copies; ETP fastest, then EP.
    slices = [ExpertSlice(2, 2, device) for device in range(8)]
    assert [(s.ep_rank, s.etp_rank) for s in slices] == [(0, 0), (0, 1), (1, 0), (1, 1)] * 2
    assert slices[5].ep_peers == (5, 7)
    assert slices[6].etp_peers == (6, 7)
    model = load_model("mixtral-8x7b")
    down = layer_placements(model, 1, 2, 0, ExpertSlice(4, 2, 5))["mlp.experts.down_proj"]
    assert down.box.size == (2, 4096, 7168)
    assert down.box.offset == (4, 0, 7168)


def test_the_router_learns_from_all_tokens_only_where_every_rank_has_them() -> None:
    model = load_model("mixtral-8x7b")

    def tag(ep: int, etp: int) -> Tag:
        return layer_placements(model, 1, 2, 0, ExpertSlice(ep, etp))["mlp.gate.weight"].tag

    assert tag(1, 2) is Tag.REPLICATED
    assert tag(1, 1) is Tag.PARTIAL
    assert tag(2, 1) is Tag.PARTIAL


@pytest.mark.parametrize(
    ("model", "kind", "degrees", "reason"),
    [
        ("llama-3-8b", LayerKind.BLOCK, (8, 1, 1), None),
        ("llama-3-8b", LayerKind.BLOCK, (16, 1, 1), None),  # 8 key heads, each held twice
        ("llama-3-8b", LayerKind.BLOCK, (3, 1, 1), "32 attention heads cannot be split over tp=3"),
        ("llama-3-8b", LayerKind.HEAD, (3, 1, 1), None),
        ("mixtral-8x7b", LayerKind.MOE_BLOCK, (2, 8, 2), None),
        (
            "mixtral-8x7b",
            LayerKind.MOE_BLOCK,
            (1, 3, 1),
            "a number of experts of 8 cannot be split over 3 ranks",
        ),
        (
            "mixtral-8x7b",
            LayerKind.MOE_BLOCK,
            (1, 1, 3),
            "an experts' width of 14336 cannot be split over 3 ranks",
        ),
    ],
)
def test_what_cannot_be_split_is_said(
    model: str, kind: LayerKind, degrees: tuple[int, int, int], reason: str | None
) -> None:
    [layer] = [found for found in load_model(model).layer_types if found.kind is kind]
    assert not_divisible(layer, *degrees) == reason
