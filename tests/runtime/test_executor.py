from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from runtime.data import SyntheticSamples, batch
from runtime.executor import Executor
from runtime.timeline import Kind, Timeline
from specs.boxes import Box
from specs.errors import RunError
from specs.plan import Plan
from specs.workload import Optimizer, Recompute
from tests.runtime.plans import Pipe, make_plan
from tests.runtime.ranks import run_ranks
from tests.runtime.tiny import relative_error, tiny_model, whole_loss, whole_model

CPU = torch.device("cpu")
SEED = 11
STEPS = 3


def _samples(plan: Plan) -> SyntheticSamples:
    return SyntheticSamples(int(plan.model.config["vocab_size"]), SEED)


def _executor(plan: Plan, rank: int) -> Executor:
    return Executor(plan, rank, device=CPU, samples=_samples(plan), seed=SEED, learning_rate=0.05)


def _gradients(rank: int, plan: Plan) -> tuple[float, list[tuple[str, Any, Any, torch.Tensor]]]:
    """Loss of the batch and all synchronised gradients of this rank."""
    executor = _executor(plan, rank)
    loss = executor.accumulate(0, Timeline(CPU))
    executor.gradients.synchronise(executor.groups.owners)
    if not (executor.is_last and executor.place.tp_rank == 0):
        loss.zero_()
    dist.all_reduce(loss)
    found = []
    for parameter, placement in executor.model.held().values():
        assert parameter.grad is not None
        grad = parameter.grad.view(placement.box.size).clone()
        found.append((placement.name, placement.shape, placement.box, grad))
    return float(loss), found


def check_gradients(plan: Plan, folder: Path, limit: float = 1e-5) -> None:
    """Loss and gradients of a plan equal those of the whole Hugging Face model in one process."""
    results = run_ranks(plan.gpus_used, folder, _gradients, plan)
    whole = whole_model(plan.model, SEED)
    workload = plan.workload
    tokens, labels = batch(_samples(plan), 0, workload.global_batch, workload.seq_len)
    loss = whole_loss(whole, tokens, labels) / (workload.global_batch * workload.seq_len)
    loss.backward()
    truth = {name: p.grad for name, p in whole.named_parameters()}
    for found_loss, gradients in results:
        assert found_loss == pytest.approx(float(loss.detach()), rel=1e-5)
        for name, shape, box, grad in gradients:
            expected = truth[name]
            assert expected is not None
            part = expected.view(shape)[box.within(Box.whole(shape))]
            scale = float(expected.abs().max())
            assert float((grad - part).abs().max()) / scale < limit, name


PLANS = {
    "one process": [Pipe(2, [(1, 4)], [(2, 2)])],
    "two stages, uneven": [Pipe(2, [(1, 3), (1, 1)], [(4, 2)])],
    "fewer micro-batches than stages": [Pipe(2, [(1, 1), (1, 2), (1, 1)], [(1, 2)])],
    "short last micro-batch": [Pipe(3, [(1, 2), (1, 2)], [(3, 1)])],
    "tp 2 to tp 1": [Pipe(2, [(2, 2), (1, 2)], [(3, 2)])],
    "tp 1 to tp 2": [Pipe(2, [(1, 2), (2, 2)], [(3, 2)])],
    "tp 4 beyond the key heads": [Pipe(2, [(4, 4)], [(2, 2)])],
    "two replicas, unequal shares": [Pipe(2, [(1, 4)], [(2, 2), (1, 1)])],
    "tp 2 beside tp 1": [Pipe(2, [(2, 4)], [(2, 2)]), Pipe(1, [(1, 4)], [(3, 1)])],
    "tp 4 beside nothing but splits": [Pipe(1, [(2, 1), (2, 3)], [(2, 1)])],
}


@pytest.mark.parametrize("name", PLANS)
def test_gradients_equal_those_of_one_process(name: str, tmp_path: Path) -> None:
    model = tiny_model("llama", num_hidden_layers=4)
    check_gradients(make_plan(model, PLANS[name]), tmp_path)


@pytest.mark.parametrize("family", ["qwen3", "mixtral", "qwen3_moe", "deepseek_v3", "qwen2"])
def test_gradients_of_every_family_equal_those_of_one_process(family: str, tmp_path: Path) -> None:
    model = tiny_model(family, num_hidden_layers=3)
    pipes = [Pipe(2, [(2, 2), (1, 1)], [(2, 1)]), Pipe(1, [(1, 3)], [(2, 1)])]
    check_gradients(make_plan(model, pipes), tmp_path)


@pytest.mark.parametrize("tiling", [(2, 1), (1, 2), (2, 2), (4, 1)])
def test_experts_tiled_over_two_replicas_of_unequal_shares(
    tiling: tuple[int, int], tmp_path: Path
) -> None:
    model = tiny_model("mixtral", num_hidden_layers=2)
    pipes = [Pipe(2, [(2, 2, *tiling)], [(2, 2), (2, 1)])]
    check_gradients(make_plan(model, pipes), tmp_path)


def test_recomputation_changes_no_gradient(tmp_path: Path) -> None:
    model = tiny_model("llama", num_hidden_layers=4)
    pipes = [Pipe(2, [(2, 3), (1, 1)], [(3, 1)])]
    check_gradients(make_plan(model, pipes, recompute=Recompute.FULL), tmp_path)


def test_a_tied_matrix_at_both_ends_of_one_pipe_and_whole_in_another(tmp_path: Path) -> None:
    model = tiny_model("llama", num_hidden_layers=3, tie_word_embeddings=True)
    pipes = [Pipe(2, [(2, 2), (1, 1)], [(2, 1)]), Pipe(1, [(1, 3)], [(2, 1)])]
    check_gradients(make_plan(model, pipes), tmp_path)


def test_between_nodes_a_tensor_crosses_in_slices(tmp_path: Path) -> None:
    # 1 x 8 x 32 elements over 2 and 4 receivers, and a last micro-batch of another size.
    model = tiny_model("llama", num_hidden_layers=3)
    pipes = [Pipe(2, [(1, 1), (2, 1), (1, 1)], [(3, 1)])]
    check_gradients(make_plan(model, pipes, nodes=3), tmp_path)


def _losses(rank: int, plan: Plan) -> list[float]:
    executor = _executor(plan, rank)
    found = []
    for iteration in range(STEPS):
        loss = torch.tensor(executor.step(iteration).loss)
        dist.all_reduce(loss)
        found.append(float(loss))
    return found


@pytest.mark.parametrize("optimizer", [Optimizer.SGD, Optimizer.ADAMW])
def test_the_loss_over_steps_equals_that_of_one_process(
    optimizer: Optimizer, tmp_path: Path
) -> None:
    model = tiny_model("llama", num_hidden_layers=3)
    pipes = [Pipe(2, [(2, 2), (1, 1)], [(2, 1)]), Pipe(1, [(1, 3)], [(2, 1)])]
    several = make_plan(model, pipes, optimizer=optimizer)
    found = run_ranks(several.gpus_used, tmp_path / "several", _losses, several)
    whole = whole_model(model, SEED)
    workload = several.workload
    kind = torch.optim.SGD if optimizer is Optimizer.SGD else torch.optim.AdamW
    more = {} if optimizer is Optimizer.SGD else {"betas": (0.9, 0.95), "weight_decay": 0.1}
    torch_optimizer = kind(whole.parameters(), lr=0.05, **more)
    expected = []
    for step in range(STEPS):
        first = step * workload.global_batch
        tokens, labels = batch(_samples(several), first, workload.global_batch, workload.seq_len)
        loss = whole_loss(whole, tokens, labels) / tokens.numel()
        torch_optimizer.zero_grad()
        loss.backward()
        torch_optimizer.step()
        expected.append(float(loss.detach()))
    assert found[0] == pytest.approx(expected, rel=1e-5)
    assert found[0][-1] < found[0][0]


def test_the_same_seed_gives_the_same_losses_bit_by_bit(tmp_path: Path) -> None:
    plan = make_plan(tiny_model("mixtral"), [Pipe(1, [(2, 1, 2, 1), (1, 1)], [(2, 1), (2, 1)])])
    first = run_ranks(plan.gpus_used, tmp_path / "first", _losses, plan)
    assert run_ranks(plan.gpus_used, tmp_path / "second", _losses, plan) == first


def _actions(rank: int, plan: Plan) -> Any:
    step = _executor(plan, rank).step(0)
    return step.elapsed_ms, step.actions


def test_every_action_is_stamped_in_order_and_within_the_iteration(tmp_path: Path) -> None:
    plan = make_plan(tiny_model("llama"), [Pipe(1, [(1, 1), (1, 1)], [(3, 1)])])
    for elapsed_ms, actions in run_ranks(2, tmp_path, _actions, plan):
        kinds = [action.kind for action in actions]
        assert kinds.count(Kind.FORWARD) == kinds.count(Kind.BACKWARD) == 3
        assert kinds.count(Kind.RECEIVE) == 3
        assert kinds[-2:] == [Kind.SYNC, Kind.UPDATE]
        stamps = [stamp for action in actions for stamp in (action.start_ms, action.end_ms)]
        assert stamps == sorted(stamps)
        assert stamps[0] >= 0
        assert stamps[-1] <= elapsed_ms


def _collectives(rank: int, plan: Plan) -> Any:
    executor = _executor(plan, rank)
    executor.step(0)
    step = executor.step(1)
    passes = [0.0, 0.0, 0.0]
    for action in step.actions:
        if action.kind in (Kind.FORWARD, Kind.BACKWARD):
            passes[action.micro_batch] += action.ms
    return [clock.count for clock in executor._clocks], step.comm_ms, passes


def test_collectives_inside_layers_are_timed_by_micro_batch(tmp_path: Path) -> None:
    """Three blocks of TP 2 and the embedding before, a block and the head of TP 1 behind them."""
    model = tiny_model("llama", num_hidden_layers=4)
    plan = make_plan(model, [Pipe(1, [(2, 3), (1, 1)], [(3, 1)])])
    *pair, alone = run_ranks(3, tmp_path, _collectives, plan)
    for counts, comm_ms, passes in pair:
        # One all-reduce for the embedding; two forward and two backward for every block.
        assert counts == [1 + 3 * 4] * 3
        assert all(0 < ms < whole for ms, whole in zip(comm_ms, passes, strict=True))
    assert alone[:2] == ([0, 0, 0], (0.0, 0.0, 0.0))


def _clipped(rank: int, plan: Plan) -> tuple[float, float]:
    executor = _executor(plan, rank)
    executor.accumulate(0, Timeline(CPU))
    executor.gradients.synchronise(executor.groups.owners)
    norm = executor.gradients.clip(0.5, dist.group.WORLD)
    return norm, executor.gradients.clip(1e9, dist.group.WORLD)


def test_clipping_sees_the_norm_of_the_whole_model_once(tmp_path: Path) -> None:
    model = tiny_model("qwen3", num_hidden_layers=3)
    pipes = [Pipe(2, [(2, 2), (1, 1)], [(2, 1)]), Pipe(1, [(1, 3)], [(2, 1)])]
    plan = make_plan(model, pipes)
    whole = whole_model(model, SEED)
    tokens, labels = batch(_samples(plan), 0, plan.workload.global_batch, 8)
    (whole_loss(whole, tokens, labels) / tokens.numel()).backward()
    expected = torch.nn.utils.clip_grad_norm_(whole.parameters(), 0.5)
    for before, after in run_ranks(plan.gpus_used, tmp_path, _clipped, plan):
        assert before == pytest.approx(float(expected), rel=1e-5)
        assert after == pytest.approx(0.5, rel=1e-5)


def test_replicas_that_exchange_tokens_but_not_in_step_are_refused() -> None:
    model = tiny_model("mixtral")
    plan = make_plan(model, [Pipe(1, [(1, 2, 2, 1)], [(2, 1), (3, 1)])])
    with pytest.raises(RunError, match="expected the same number"):
        Executor(plan, 0, device=CPU, samples=_samples(plan))


def test_relative_error_is_of_the_largest_element() -> None:
    assert relative_error(torch.tensor([1.0, 4.0]), torch.tensor([1.0, 5.0])) == pytest.approx(0.2)
