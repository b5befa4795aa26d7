from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from runtime.collectives import CollectiveClock
from runtime.layers import build_layer
from specs.boxes import Placement, Tag
from specs.errors import RunError
from specs.layer import LayerKind
from specs.model import Model, load_model
from tests.runtime.ranks import run_ranks
from tests.runtime.tiny import (
    FAMILIES,
    relative_error,
    sample_batch,
    tiny_model,
    whole_loss,
    whole_model,
)

CPU = torch.device("cpu")
SEED = 7


def _forward_backward(
    rank: int, model: Model, recompute: bool
) -> tuple[float, list[tuple[Placement, torch.Tensor]], int]:
    """Loss, and the gradient of every weight of this rank with its placement."""
    group = dist.group.WORLD if dist.get_world_size() > 1 else None
    layers = [
        build_layer(
            layer_type,
            model,
            tp_group=group,
            dtype=torch.float32,
            device=CPU,
            seed=SEED,
            layer_index=index,
            recompute=recompute,
        )
        for index, layer_type in enumerate(model.layers)
    ]
    tokens, labels = sample_batch(model, 2, 12, seed=1)
    with CollectiveClock() as clock:
        x = layers[0](tokens)
        for block in layers[1:-1]:
            x = block(x)
        loss = layers[-1](x, labels)
        loss.backward()
    gradients = [
        (layer.placements[name], parameter.grad)
        for layer in layers
        for name, parameter in layer.named_parameters()
    ]
    return loss.item(), gradients, clock.count


def _check(model: Model, results: list[Any]) -> None:
    whole = whole_model(model, SEED)
    tokens, labels = sample_batch(model, 2, 12, seed=1)
    loss = whole_loss(whole, tokens, labels)
    loss.backward()
    expected = {name: p.grad for name, p in whole.named_parameters()}
    partial: dict[tuple[str, Any], torch.Tensor] = {}
    for found_loss, gradients, _count in results:
        assert found_loss == pytest.approx(loss.item(), rel=1e-5)
        for place, grad in gradients:
            key = (place.name, place.box)
            if place.tag is Tag.PARTIAL:
                partial[key] = partial.get(key, 0) + grad.view(place.box.size)
                continue
            truth = expected[place.name].view(place.shape)[place.box.within(_whole(place))]
            assert relative_error(grad.view(place.box.size), truth) < 1e-5, place.name
    for (name, box), total in partial.items():
        place = next(p for _l, gs, _c in results for p, _g in gs if p.name == name)
        truth = expected[name].view(place.shape)[box.within(_whole(place))]
        assert relative_error(total, truth) < 1e-5, name


def _whole(place: Placement) -> Any:
    from specs.boxes import Box

    return Box.whole(place.shape)


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradients_equal_those_of_the_whole_hugging_face_model(
    family: str, tp: int, tmp_path: Path
) -> None:
    model = tiny_model(family)
    _check(model, run_ranks(tp, tmp_path, _forward_backward, model, False))


def test_tied_embeddings_sum_the_gradients_of_both_ends(tmp_path: Path) -> None:
    model = tiny_model("llama", tie_word_embeddings=True)
    results = run_ranks(2, tmp_path, _forward_backward, model, False)
    whole = whole_model(model, SEED)
    loss = whole_loss(whole, *sample_batch(model, 2, 12, seed=1))
    loss.backward()
    expected = whole.get_parameter("model.embed_tokens.weight").grad
    assert expected is not None
    total = torch.zeros_like(expected)
    for _loss, gradients, _count in results:
        for place, grad in gradients:
            if place.name == "model.embed_tokens.weight":
                total[place.box.within(_whole(place))] += grad
    assert relative_error(total, expected) < 1e-5


def test_recomputation_changes_no_gradient_but_repeats_the_collectives(tmp_path: Path) -> None:
    model = tiny_model("llama")
    plain = run_ranks(2, tmp_path / "plain", _forward_backward, model, False)
    again = run_ranks(2, tmp_path / "again", _forward_backward, model, True)
    _check(model, again)
    # Per block 2 forward and 2 backward, embedding 1, head 1 backward and 2 of the loss.
    # Recomputing stops at the last tensor backward needs: before the sum of the down projection.
    assert plain[0][2] == 2 * 4 + 1 + 1 + 2
    assert again[0][2] == 2 * 5 + 1 + 1 + 2


def test_key_and_value_heads_are_held_twice_when_there_are_fewer_than_ranks(
    tmp_path: Path,
) -> None:
    model = tiny_model("qwen3")
    results = run_ranks(4, tmp_path, _forward_backward, model, False)
    name = "model.layers.0.self_attn.k_proj.weight"
    places = [p for _l, gs, _c in results for p, _g in gs if p.name == name]
    assert [place.box.offset for place in places] == [(0, 0), (0, 0), (16, 0), (16, 0)]
    assert {place.tag for place in places} == {Tag.PARTIAL}


def test_a_vocabulary_that_the_ranks_do_not_divide_is_cut_unevenly(tmp_path: Path) -> None:
    results = run_ranks(4, tmp_path, _forward_backward, tiny_model("llama"), False)
    sizes = [gs[0][0].box.size for _l, gs, _c in results]
    assert sizes == [(12, 32), (13, 32), (12, 32), (13, 32)]


@pytest.mark.parametrize("name", ["opt-350m", "gpt-neo-2.7b"])
def test_a_family_without_a_tensor_parallel_plan_is_refused_by_name(name: str) -> None:
    model = load_model(name)
    with pytest.raises(RunError, match=str(model.config["model_type"])):
        build_layer(model.layers[1], model, tp_group=None, dtype=torch.float32, device=CPU, seed=0)


def _refusal(rank: int, model: Model) -> str:
    try:
        build_layer(
            model.layers[1],
            model,
            tp_group=dist.group.WORLD,
            dtype=torch.float32,
            device=CPU,
            seed=0,
        )
    except RunError as error:
        return str(error)
    return "built"


def test_heads_that_do_not_divide_are_refused_with_the_numbers(tmp_path: Path) -> None:
    model = tiny_model(
        "llama", hidden_size=48, num_attention_heads=6, num_key_value_heads=3, head_dim=8
    )
    said = run_ranks(4, tmp_path, _refusal, model)
    assert all("6 attention heads cannot be split over tp=4" in line for line in said)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_holds_as_many_parameters_as_its_layer_type_says(family: str) -> None:
    model = tiny_model(family)
    for layer_type in model.layer_types:
        layer = build_layer(
            layer_type, model, tp_group=None, dtype=torch.float32, device=CPU, seed=0
        )
        held = sum(parameter.numel() for parameter in layer.parameters())
        assert held == layer_type.parameters + layer_type.expert_parameters, layer_type.kind


def test_a_moe_layer_of_a_mixed_model_is_built_from_its_own_layer_type() -> None:
    model = tiny_model("qwen3_moe")
    moe = next(t for t in model.layer_types if t.kind is LayerKind.MOE_BLOCK)
    layer = build_layer(moe, model, tp_group=None, dtype=torch.bfloat16, device=CPU, seed=0)
    assert any("experts" in name for name in layer.placements)
    assert {parameter.dtype for parameter in layer.parameters()} == {torch.bfloat16}
