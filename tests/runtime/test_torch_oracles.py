"""The executor against torch's own tensor and pipeline parallelism: same model, same samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from runtime.data import SyntheticSamples, batch
from runtime.executor import Executor
from runtime.timeline import Timeline
from specs.boxes import Box
from specs.plan import Plan
from tests.runtime.plans import Pipe, make_plan
from tests.runtime.ranks import run_ranks
from tests.runtime.tiny import tiny_model, whole_loss, whole_model

CPU = torch.device("cpu")
SEED = 13
LIMIT = 1e-5  # relative to the largest entry of a tensor

Worst = tuple[float, float, dict[str, float]]


def _samples(plan: Plan) -> SyntheticSamples:
    return SyntheticSamples(int(plan.model.config["vocab_size"]), SEED)


def _ours(plan: Plan, rank: int) -> tuple[float, Executor]:
    """Loss of the batch, and the executor with this rank's synchronised gradients."""
    executor = Executor(plan, rank, device=CPU, samples=_samples(plan), seed=SEED)
    loss = executor.accumulate(0, Timeline(CPU))
    executor.gradients.synchronise(executor.groups.owners)
    if not (executor.is_last and executor.place.tp_rank == 0):
        loss.zero_()
    dist.all_reduce(loss)
    return float(loss), executor


def _errors(executor: Executor, truth: dict[str, Tensor]) -> dict[str, float]:
    """Largest difference of each gradient that the rank holds, relative to the whole tensor."""
    found = {}
    for parameter, placement in executor.model.held().values():
        assert parameter.grad is not None
        whole = truth[placement.name].view(placement.shape)
        part = whole[placement.box.within(Box.whole(placement.shape))]
        ours = parameter.grad.view(placement.box.size)
        found[placement.name] = float((ours - part).abs().max() / whole.abs().max())
    return found


def _against_dtensor(rank: int, plan: Plan) -> Worst:
    """Torch's `parallelize_module` on every rank, over the whole batch at once."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    whole: Any = whole_model(plan.model, SEED)
    mesh = init_device_mesh("cpu", (plan.gpus_used,))
    columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    columns += ("mlp.gate_proj", "mlp.up_proj")
    rows = ("self_attn.o_proj", "mlp.down_proj")
    for layer in whole.model.layers:
        styles: dict[str, Any] = {name: ColwiseParallel() for name in columns}
        styles |= {name: RowwiseParallel() for name in rows}
        parallelize_module(layer, mesh, styles)
    workload = plan.workload
    tokens, labels = batch(_samples(plan), 0, workload.global_batch, workload.seq_len)
    loss = whole_loss(whole, tokens, labels) / labels.numel()
    loss.backward()  # type: ignore[no-untyped-call]
    truth = {}
    sharded = 0
    for name, parameter in whole.named_parameters():
        grad = parameter.grad
        if isinstance(grad, DTensor):
            sharded += 1
            grad = grad.full_tensor()
        truth[name] = grad
    biased = 3 if plan.model.layers[1].flag("qkv_bias") else 0
    # Or torch would not have cut what we think it has.
    assert sharded == (7 + biased) * plan.model.blocks
    ours, executor = _ours(plan, rank)
    return ours, float(loss.detach()), _errors(executor, truth)


class _Part(nn.Module):
    """Consecutive blocks of a Hugging Face model, with the embedding or the head at an end."""

    def __init__(self, whole: Any, first: int, end: int) -> None:
        super().__init__()
        blocks = whole.model.layers
        self.embed = whole.model.embed_tokens if first == 0 else None
        self.blocks = blocks[first:end]
        last = end == len(blocks)
        self.norm = whole.model.norm if last else None
        self.head = whole.lm_head if last else None
        self.rotary = whole.model.rotary_emb

    def forward(self, x: Tensor) -> Tensor:
        if self.embed is not None:
            x = self.embed(x)
        positions = self.rotary(x, torch.arange(x.shape[1])[None])
        for block in self.blocks:
            out = block(x, attention_mask=None, position_embeddings=positions)
            x = out[0] if isinstance(out, tuple) else out
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


def _against_schedule(rank: int, plan: Plan, cut: int) -> Worst:
    """Torch's `Schedule1F1B` over two stages of one rank each, cut before block `cut`."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    whole: Any = whole_model(plan.model, SEED)
    bounds = [(0, cut), (cut, plan.model.blocks)][rank]
    part = _Part(whole, *bounds)
    names = {id(parameter): name for name, parameter in whole.named_parameters()}
    workload = plan.workload
    replica = plan.templates[0].replicas[0]
    tokens, labels = batch(_samples(plan), 0, workload.global_batch, workload.seq_len)

    def loss_of(logits: Tensor, labels_BS: Tensor) -> Tensor:
        summed = nn.functional.cross_entropy(
            logits.flatten(0, 1), labels_BS.flatten(), reduction="sum"
        )
        return summed / labels.numel()

    stage = PipelineStage(part, rank, 2, CPU)
    schedule = Schedule1F1B(
        stage, n_microbatches=replica.micro_batches, loss_fn=loss_of, scale_grads=False
    )
    losses: list[Tensor] = []
    if rank == 0:
        schedule.step(tokens)
    else:
        schedule.step(target=labels, losses=losses)
    total = torch.stack(losses).sum().detach() if losses else torch.zeros(())
    dist.all_reduce(total)
    truth = {names[id(p)]: p.grad for p in part.parameters() if p.grad is not None}
    ours, executor = _ours(plan, rank)
    return ours, float(total), _errors(executor, truth)


def _check(results: list[Worst]) -> None:
    for ours, theirs, errors in results:
        assert ours == pytest.approx(theirs, rel=1e-5)
        assert errors
        assert {name: error for name, error in errors.items() if error >= LIMIT} == {}


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_tensor_parallelism_gives_the_gradients_of_torchs_dtensors(
    family: str, tmp_path: Path
) -> None:
    plan = make_plan(tiny_model(family), [Pipe(2, [(2, 2)], [(2, 2)])])
    _check(run_ranks(2, tmp_path, _against_dtensor, plan))


@pytest.mark.parametrize("cut", [1, 3])
def test_the_pipeline_gives_the_gradients_of_torchs_1f1b(cut: int, tmp_path: Path) -> None:
    """Four micro-batches over stages of 1 + 3 and of 3 + 1 blocks."""
    model = tiny_model("llama", num_hidden_layers=4)
    plan = make_plan(model, [Pipe(2, [(1, cut), (1, 4 - cut)], [(4, 2)])])
    _check(run_ranks(2, tmp_path, _against_schedule, plan, cut))
