from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from runtime.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint
from runtime.data import SyntheticSamples
from runtime.executor import Executor
from specs.errors import RunError
from specs.model import Model
from specs.plan import Plan
from specs.workload import DType, Optimizer
from tests.runtime.plans import Pipe, make_plan
from tests.runtime.ranks import run_ranks
from tests.runtime.tiny import tiny_model

BATCH = 5
TRAIN = [Pipe(2, [(2, 2), (1, 1)], [(2, 1)]), Pipe(1, [(1, 3)], [(2, 1)])]
OTHER = [Pipe(1, [(1, 1), (2, 2)], [(5, 1)])]


def _executor(plan: Plan, rank: int) -> Executor:
    samples = SyntheticSamples(50, 3)
    return Executor(
        plan, rank, device=torch.device("cpu"), samples=samples, seed=3, learning_rate=0.01
    )


def _loss(executor: Executor, iteration: int) -> float:
    loss = torch.tensor(executor.step(iteration).loss)
    dist.all_reduce(loss)
    return float(loss)


def _train(rank: int, plan: Plan, folder: str, steps: int) -> list[float]:
    """Losses of some steps from the start, then a checkpoint."""
    executor = _executor(plan, rank)
    losses = [_loss(executor, iteration) for iteration in range(steps)]
    save_checkpoint(executor, folder, executor.progress(steps))
    return losses


def _go_on(rank: int, plan: Plan, folder: str, steps: int) -> Any:
    executor = _executor(plan, rank)
    progress = load_checkpoint(executor, newest_checkpoint(folder))
    executor.start_at(progress.iteration, progress.samples)
    begin = progress.iteration
    return [_loss(executor, iteration) for iteration in range(begin, begin + steps)]


def _plan(pipes: list[Pipe], model: Model, **more: Any) -> Plan:
    plan = make_plan(model, pipes, **more)
    assert plan.workload.global_batch == BATCH
    return plan


@pytest.mark.parametrize("dtype", [DType.FP32, DType.BF16])
def test_training_goes_on_as_if_nothing_had_happened(dtype: DType, tmp_path: Path) -> None:
    plan = _plan(TRAIN, tiny_model("llama", num_hidden_layers=3), dtype=dtype)
    world, folder = plan.gpus_used, str(tmp_path / "checkpoints")
    whole = run_ranks(world, tmp_path / "a", _train, plan, str(tmp_path / "unused"), 4)[0]
    first = run_ranks(world, tmp_path / "b", _train, plan, folder, 2)[0]
    rest = run_ranks(world, tmp_path / "c", _go_on, plan, folder, 2)[0]
    assert first + rest == whole


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_another_plan_goes_on_from_the_same_checkpoint(family: str, tmp_path: Path) -> None:
    model = tiny_model(family, num_hidden_layers=3, tie_word_embeddings=family == "llama")
    plan, other = _plan(TRAIN, model), _plan(OTHER, model)
    folder = str(tmp_path / "checkpoints")
    whole = run_ranks(plan.gpus_used, tmp_path / "a", _train, plan, folder + "-unused", 4)[0]
    run_ranks(plan.gpus_used, tmp_path / "b", _train, plan, folder, 2)
    rest = run_ranks(other.gpus_used, tmp_path / "c", _go_on, other, folder, 2)[0]
    assert rest == pytest.approx(whole[2:], rel=1e-5)


def _twice(rank: int, plan: Plan, folder: str) -> list[str]:
    executor = _executor(plan, rank)
    for iteration in (1, 2, 3):
        save_checkpoint(executor, folder, executor.progress(iteration))
    return sorted(path.name for path in Path(folder).iterdir())


def test_the_newest_two_checkpoints_stay_and_no_half_one(tmp_path: Path) -> None:
    plan = _plan(OTHER, tiny_model("llama", num_hidden_layers=3))
    folder = tmp_path / "checkpoints"
    kept = run_ranks(plan.gpus_used, tmp_path / "a", _twice, plan, str(folder))[0]
    assert kept == ["step-00000002", "step-00000003"]
    (folder / "step-00000009").mkdir()  # a folder without its facts is no checkpoint
    assert newest_checkpoint(folder).name == "step-00000003"
    with pytest.raises(RunError, match="leave out --resume"):
        newest_checkpoint(tmp_path / "none")


def _refused(rank: int, plan: Plan, folder: str) -> str:
    try:
        load_checkpoint(_executor(plan, rank), newest_checkpoint(folder))
    except RunError as error:
        return str(error)
    return "loaded"


def test_a_checkpoint_of_something_else_is_refused_on_every_rank(tmp_path: Path) -> None:
    model = tiny_model("llama", num_hidden_layers=3)
    plan, folder = _plan(OTHER, model), str(tmp_path / "checkpoints")
    run_ranks(plan.gpus_used, tmp_path / "a", _train, plan, folder, 1)
    wider = _plan(OTHER, tiny_model("llama", num_hidden_layers=3, intermediate_size=64))
    said = run_ranks(wider.gpus_used, tmp_path / "b", _refused, wider, folder)
    assert all("is of a model with config hash" in line for line in said)
    narrow = _plan(OTHER, model, dtype=DType.BF16)
    said = run_ranks(narrow.gpus_used, tmp_path / "c", _refused, narrow, folder)
    assert all("expected torch.bfloat16" in line or "has no master" in line for line in said)
    plain = _plan(OTHER, model, optimizer=Optimizer.SGD)
    assert run_ranks(plain.gpus_used, tmp_path / "d", _refused, plain, folder)[0] == "loaded"
