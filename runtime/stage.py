"""The layers that one rank runs: its stage of the pipeline."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from runtime.experts import ExpertTiling
from runtime.groups import Groups
from runtime.layers import ParallelEmbedding, ParallelHead, ParallelLayer, build_layer
from runtime.optimizer import TORCH_DTYPE
from specs.boxes import Placement
from specs.errors import RunError
from specs.layer import LayerKind
from specs.layout import RankPlace, expert_slice
from specs.plan import Plan
from specs.workload import DType, Recompute


class StageModel(nn.Module):
    """Consecutive layers of a model: tokens or activations in, activations or summed loss out."""

    def __init__(self, layers: Mapping[int, ParallelLayer]) -> None:
        super().__init__()
        self.indices = list(layers)
        self.layers = nn.ModuleList(layers.values())

    def forward(self, x: Tensor, labels_BS: Tensor | None = None) -> Tensor:
        """Run a micro-batch through all layers of the stage."""
        for layer in self.layers:
            x = layer(x, labels_BS) if isinstance(layer, ParallelHead) else layer(x)
        return x

    def held(self) -> dict[str, tuple[Parameter, Placement]]:
        """Every parameter with its placement, by the tensor's name in the whole model."""
        found: dict[str, tuple[Parameter, Placement]] = {}
        for layer in self.layers:
            assert isinstance(layer, ParallelLayer)
            for name, parameter in layer.named_parameters():
                placement = layer.placements[name]
                # A matrix tied within the stage belongs to the embedding.
                found.setdefault(placement.name, (parameter, placement))
        return found


def build_stage(
    plan: Plan, place: RankPlace, groups: Groups, device: torch.device, seed: int | None
) -> StageModel:
    """The layers of one rank with their initial weights; seed None: none, they come from elsewhere.

    Raises RunError for a family or precision that cannot be run, or a tensor-parallel degree that
    does not divide a layer.
    """
    workload = plan.workload
    if workload.dtype is DType.FP16:
        raise RunError("fp16 training needs loss scaling, which is not built in; use bf16 or fp32")
    stage = plan.templates[place.template].stages[place.stage]
    tiling = ExpertTiling(expert_slice(stage, place.replica, place.tp_rank), groups.ep, groups.etp)
    layers: dict[int, ParallelLayer] = {}
    for index in stage.layers:
        layer_type = plan.model.layers[index]
        layers[index] = build_layer(
            layer_type,
            plan.model,
            tp_group=groups.tp,
            dtype=TORCH_DTYPE[workload.dtype],
            device=device,
            seed=seed,
            layer_index=index,
            recompute=workload.recompute is Recompute.FULL,
            tiling=tiling if layer_type.kind is LayerKind.MOE_BLOCK else None,
        )
    first, last = layers.get(0), layers.get(len(plan.model.layers) - 1)
    if plan.model.tied and isinstance(first, ParallelEmbedding) and isinstance(last, ParallelHead):
        last.weight = first.weight
    return StageModel(layers)
