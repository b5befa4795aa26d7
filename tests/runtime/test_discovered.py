"""Families that transformers describes itself: whole and split they equal the whole model."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from runtime.families import DiscoveredFamily, family_of
from runtime.layers import ParallelBlock, ParallelHead, ParallelLayer, build_layer
from specs.boxes import Box, Tag
from specs.discovered import FIELD
from specs.errors import ArachneError, RunError
from specs.families import FAMILIES
from specs.model import Model
from tests.families import families_with_a_plan, tiny_config
from tests.runtime.ranks import run_ranks
from tests.runtime.tiny import relative_error, sample_batch

CPU = torch.device("cpu")
SEED = 7
SOME: dict[str, dict[str, Any]] = {
    "gemma": {"num_key_value_heads": 1},  # scaled embedding; one key head for all ranks
    "gemma2": {"num_hidden_layers": 2},  # window and full blocks, capped scores and logits
    "gemma3_text": {"num_hidden_layers": 6},  # rotary positions by kind of block
    "phi3": {},  # packed projections, whole on every rank behind them
    "olmo2": {},  # norms of whole queries and keys
    "granite": {"embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.2},
    "starcoder2": {},  # layer norms and biases
    "phi": {},  # a bias of the output projection
    "qwen2_moe": {"decoder_sparse_step": 2},  # experts in every other block, a shared one
    "deepseek_v2": {},  # latent attention, split
}


def _layers(model: Model, group: Any) -> list[ParallelLayer]:
    return [
        build_layer(
            layer_type,
            model,
            tp_group=group,
            dtype=torch.float32,
            device=CPU,
            seed=SEED,
            layer_index=index,
        )
        for index, layer_type in enumerate(model.layers)
    ]


def _loss(model: Model, layers: list[ParallelLayer]) -> Tensor:
    tokens, labels = sample_batch(model, 2, 12, seed=1)
    x = tokens
    for layer in layers[:-1]:
        x = layer(x)
    loss: Tensor = layers[-1](x, labels)
    loss.backward()
    return loss


def whole_gradients(model: Model) -> tuple[float, dict[str, Tensor]]:
    """Loss of the whole Hugging Face model with our weights, and gradients by our names."""
    family = family_of(model)
    assert isinstance(family, DiscoveredFamily)
    skeleton = family.found.skeleton
    whole: Any = type(skeleton.model)(family.config).float().eval()
    parameters = dict(whole.named_parameters(remove_duplicate=False))
    ends: dict[str, nn.Module] = {
        "embedding": whole.get_input_embeddings(),
        "head": whole.get_output_embeddings(),
    }
    if model.tied:
        ends["head"].weight = ends["embedding"].weight
    theirs: dict[str, Tensor] = {}
    layers = _layers(model, None)
    for number, layer in enumerate(layers):
        for name, parameter in layer.named_parameters():
            if isinstance(layer, ParallelBlock):
                own = name.removeprefix("block.")
                target = parameters[f"{skeleton.blocks_name}{number - 1}.{own}"]
            elif name.startswith("norm."):
                norm = whole.base_model.get_submodule(family.found.norm)
                target = norm.get_parameter(name.removeprefix("norm."))
            else:
                end = "head" if isinstance(layer, ParallelHead) else "embedding"
                target = ends[end].get_parameter(name)
            target.data.copy_(parameter.data.view(target.shape))
            theirs[layer.placements[name].name] = target
    for name, buffer in whole.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.zero_()
    tokens, labels = sample_batch(model, 2, 12, seed=1)
    logits = whole(input_ids=tokens, use_cache=False).logits.flatten(0, 1).float()
    loss = nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum")
    loss.backward()
    return loss.item(), {
        name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in theirs.items()
    }


def _share(_rank: int, models: list[Model]) -> list[Any]:
    """Per model the loss, and this rank's gradients with their placements; or why it is refused."""
    group = dist.group.WORLD if dist.get_world_size() > 1 else None
    found: list[Any] = []
    for model in models:
        try:
            layers = _layers(model, group)
        except RunError as error:
            found.append(str(error))
            continue
        loss = _loss(model, layers).item()
        gradients = [
            (layer.placements[name], torch.zeros_like(p) if p.grad is None else p.grad)
            for layer in layers
            for name, p in layer.named_parameters()
        ]
        found.append((loss, gradients))
        del layers
        gc.collect()
    return found


def difference(ranks: list[Any], loss: float, expected: dict[str, Tensor]) -> float:
    """Largest relative error of the loss and of any gradient.

    A replicated gradient must be the whole one on every rank, others add up to it.
    """
    worst = 0.0
    totals: dict[str, Tensor] = {}
    for found_loss, gradients in ranks:
        worst = max(worst, abs(found_loss / loss - 1))
        alone: dict[str, Tensor] = {}
        for place, gradient in gradients:  # a tied matrix is there twice
            into = alone if place.tag is Tag.REPLICATED else totals
            total = into.setdefault(place.name, torch.zeros(place.shape))
            total[place.box.within(Box.whole(place.shape))] += gradient.view(place.box.size)
        worst = max(worst, _worst(alone, expected))
    return max(worst, _worst(totals, expected))


def _worst(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    errors = [0.0]
    for name, gradient in found.items():
        truth = expected[name].view(gradient.shape)
        if float(truth.abs().max()) > 1e-9:
            errors.append(relative_error(gradient, truth))
        else:
            errors.append(float(gradient.abs().max()))
    return max(errors)


@pytest.fixture(scope="module")
def some_models() -> dict[str, Model]:
    return {
        family: Model.from_config(family, tiny_config(family, **changes))
        for family, changes in SOME.items()
    }


@pytest.mark.parametrize("tp", [1, 2])
def test_loss_and_gradients_equal_those_of_the_whole_hugging_face_model(
    some_models: dict[str, Model], tp: int, tmp_path: Path
) -> None:
    models = list(some_models.values())
    ranks = run_ranks(tp, tmp_path, _share, models)
    for index, model in enumerate(models):
        assert not isinstance(ranks[0][index], str), ranks[0][index]
        off = difference([rank[index] for rank in ranks], *whole_gradients(model))
        assert off < 1e-4, model.name


def test_few_key_heads_are_held_by_several_ranks_and_their_gradients_add_up(
    some_models: dict[str, Model], tmp_path: Path
) -> None:
    models = [some_models["gemma2"], some_models["gemma3_text"]]  # 2 key heads, 4 ranks
    ranks = run_ranks(4, tmp_path, _share, models)
    for index, model in enumerate(models):
        off = difference([rank[index] for rank in ranks], *whole_gradients(model))
        assert off < 1e-4, model.name


def test_a_block_that_its_plan_does_not_split_is_refused_by_the_name_of_its_family(
    tmp_path: Path,
) -> None:
    models = [Model.from_config(name, tiny_config(name)) for name in ("gpt_oss", "doge")]
    for said in run_ranks(2, tmp_path, _share, models):
        assert "the tensor-parallel plan of gpt_oss splits none of its blocks" in said[0]
        assert "doge cannot run as its tensor-parallel plan splits it" in said[1]


def test_rotary_positions_are_rounded_after_they_are_computed(
    some_models: dict[str, Model],
) -> None:
    family = family_of(some_models["olmo2"])
    exact = family.call(0, 40, CPU, torch.float32)[1]["position_embeddings"]
    rounded = family.call(0, 40, CPU, torch.bfloat16)[1]["position_embeddings"]
    for a, b in zip(exact, rounded, strict=True):
        assert torch.equal(b.float(), a.to(b.dtype).float())
        assert float((b.float() - a.float()).abs().max()) < 2**-8


def test_another_transformers_than_the_one_that_described_a_model_is_noticed() -> None:
    model = Model.from_config("gemma", tiny_config("gemma"))
    config = dict(model.config)
    kind = config[FIELD]["kinds"][0]
    kinds = [{**kind, "tensors": kind["tensors"][:-1]}]
    other = Model.from_config("gemma", {**config, FIELD: {**config[FIELD], "kinds": kinds}})
    with pytest.raises(RunError, match="builds other 'gemma' layers"):
        build_layer(other.layers[1], other, tp_group=None, dtype=torch.float32, device=CPU, seed=0)


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_every_family_with_a_plan_equals_its_whole_model_or_is_refused_by_name(
    tmp_path: Path,
) -> None:
    models, refused = [], {}
    for family in families_with_a_plan():
        if family in FAMILIES:
            continue  # tests/runtime/test_layers.py
        try:
            models.append(Model.from_config(family, tiny_config(family)))
        except ArachneError as error:
            refused[family] = str(error)
    assert not [line for family, line in refused.items() if family not in line]
    assert len(models) > len(refused)
    ranks = run_ranks(2, tmp_path, _share, models, timeout_s=2000)
    wrong = {}
    for index, model in enumerate(models):
        found = [rank[index] for rank in ranks]
        if isinstance(found[0], str):
            assert model.name in found[0]
            continue
        off = difference(found, *whole_gradients(model))
        if not off < 1e-4:
            wrong[model.name] = off
    assert not wrong
