from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from runtime.collectives import CollectiveClock
from runtime.experts import ExpertTiling
from runtime.layers import build_layer
from specs.boxes import Box, Placement
from specs.layer import LayerKind
from specs.layout import ExpertSlice
from specs.model import Model
from tests.runtime.ranks import run_ranks
from tests.runtime.tiny import relative_error, tiny_model

CPU = torch.device("cpu")
TP, REPLICAS = 2, 2


def _groups(peers_of: Any) -> Any:
    """This rank's group among those that all four ranks form."""
    mine = None
    for peers in sorted({peers_of(device) for device in range(TP * REPLICAS)}):
        group = dist.new_group(list(peers))
        if dist.get_rank() in peers and len(peers) > 1:
            mine = group
    return mine


def _tiled(
    rank: int, model: Model, index: int, ep: int, etp: int
) -> tuple[torch.Tensor, torch.Tensor, list[tuple[Placement, torch.Tensor]]]:
    """Output, input gradient and weight gradients of one of two replicas of a TP-2 stage."""
    tp_group = _groups(lambda d: tuple(range(d // TP * TP, d // TP * TP + TP)))
    tiling = ExpertTiling(
        ExpertSlice(ep, etp, rank),
        _groups(lambda d: ExpertSlice(ep, etp, d).ep_peers),
        _groups(lambda d: ExpertSlice(ep, etp, d).etp_peers),
    )
    layer = build_layer(
        model.layers[index],
        model,
        tp_group=tp_group,
        dtype=torch.float32,
        device=CPU,
        seed=3,
        layer_index=index,
        tiling=tiling,
    )
    x, weight = _input(model, rank // TP)
    y = layer(x)
    (y * weight).sum().backward()
    assert x.grad is not None
    gradients = [
        (layer.placements[name], parameter.grad)
        for name, parameter in layer.named_parameters()
        if parameter.grad is not None
    ]
    return y.detach(), x.grad, gradients


def _input(model: Model, replica: int) -> tuple[torch.Tensor, torch.Tensor]:
    # Different lengths, and 7 x 1 tokens that two ranks do not divide.
    generator = torch.Generator().manual_seed(replica)
    shape = (1, 7 if replica == 0 else 10, model.hidden)
    x = torch.randn(shape, generator=generator).requires_grad_()
    return x, torch.randn(shape, generator=generator)


@pytest.mark.parametrize("tiling", [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)])
@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "deepseek_v3"])
def test_every_tiling_gives_the_outputs_and_gradients_of_one_process(
    family: str, tiling: tuple[int, int], tmp_path: Path
) -> None:
    model = tiny_model(family)
    index = next(i for i, t in enumerate(model.layers) if t.kind is LayerKind.MOE_BLOCK)
    results = run_ranks(TP * REPLICAS, tmp_path, _tiled, model, index, *tiling)
    alone = build_layer(
        model.layers[index],
        model,
        tp_group=None,
        dtype=torch.float32,
        device=CPU,
        seed=3,
        layer_index=index,
    )
    for replica in range(REPLICAS):
        x, weight = _input(model, replica)
        y = alone(x)
        (y * weight).sum().backward()
        assert x.grad is not None
        for rank in (replica * TP, replica * TP + 1):
            assert relative_error(results[rank][0], y) < 1e-5
            assert relative_error(results[rank][1], x.grad) < 1e-5
    expected = {alone.placements[name].name: p.grad for name, p in alone.named_parameters()}
    for name in expected:
        truth = expected[name]
        assert truth is not None
        place = next(p for p, _ in results[0][2] if p.name == name)
        total = torch.zeros(place.shape)
        for rank, (_y, _x, gradients) in enumerate(results):
            for held, grad in gradients:
                # A replicated gradient is the same on both ranks of a replica: one counts.
                if held.name == name and (held.tag != "replicated" or rank % TP == 0):
                    total[held.box.within(Box.whole(held.shape))] += grad.view(held.box.size)
        assert relative_error(total, truth.view(place.shape)) < 1e-5, name


def _counted(rank: int, model: Model, ep: int, etp: int) -> tuple[int, int, int]:
    """Collectives of a forward and backward, and (expert, other) parameters of this rank."""
    group = dist.group.WORLD
    etp_group = group if etp == 2 else None
    layer = build_layer(
        model.layers[1],
        model,
        tp_group=group,
        dtype=torch.float32,
        device=CPU,
        seed=3,
        tiling=ExpertTiling(ExpertSlice(ep, etp, rank), None, etp_group, stand_in=True),
    )
    x = torch.randn(2, 8, model.hidden, requires_grad=True)
    with CollectiveClock() as clock:
        layer(x).sum().backward()
    experts = sum(p.numel() for n, p in layer.named_parameters() if ".experts." in n)
    return clock.count, experts, sum(p.numel() for p in layer.parameters()) - experts


def test_a_profiled_layer_stands_in_for_the_ranks_that_do_not_exist(tmp_path: Path) -> None:
    model = tiny_model("mixtral")
    all_experts = model.layers[1].expert_parameters
    for ep, etp in ((4, 1), (2, 2)):
        results = run_ranks(2, tmp_path / f"{ep}-{etp}", _counted, model, ep, etp)
        for count, experts, _other in results:
            assert experts == all_experts // 4
            # Attention: 1 forward, 1 backward. Experts: the gather of the output and of the input
            # gradient; with a cut width also counts, rows and sums, and rows and sums backward.
            assert count == (4 if etp == 1 else 4 + 5)
