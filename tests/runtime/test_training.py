from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from runtime.records import Assembly, Iteration, RankStep
from runtime.training import Options, train
from specs.plan import Plan
from tests.runtime.plans import Pipe, make_plan
from tests.runtime.ranks import run_ranks
from tests.runtime.tiny import tiny_model

PIPES = [Pipe(2, [(2, 1), (1, 1)], [(2, 1)])]


def _train(rank: int, plan: Plan, options: Options) -> list[RankStep]:
    told: list[RankStep] = []
    train(
        plan,
        rank,
        torch.device("cpu"),
        options,
        lambda message: told.append(RankStep.from_json(message["step"])),
    )
    return told


def _iterations(plan: Plan, options: Options, folder: Path) -> list[Iteration]:
    assembly = Assembly(plan.gpus_used)
    found: list[Iteration] = []
    for steps in run_ranks(plan.gpus_used, folder, _train, plan, options):
        for step in steps:
            found += assembly.add(step)
    return found


def test_a_resumed_run_goes_on_where_the_other_ended(tmp_path: Path) -> None:
    plan = make_plan(tiny_model("qwen3"), PIPES)
    checkpoints = str(tmp_path / "checkpoints")
    whole = _iterations(plan, Options(iterations=4, warm_up=1), tmp_path / "whole")
    first = _iterations(
        plan,
        Options(iterations=1, warm_up=1, checkpoint=checkpoints, checkpoint_every=1),
        tmp_path / "first",
    )
    rest = _iterations(
        plan,
        Options(iterations=2, warm_up=1, checkpoint=checkpoints, resume=True),
        tmp_path / "rest",
    )
    assert [iteration.number for iteration in first + rest] == [0, 1, 2, 3, 4]
    assert [iteration.warm_up for iteration in rest] == [True, False, False]
    assert [i.loss for i in first + rest] == [i.loss for i in whole]
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-00000002", "step-00000005"]


def test_the_loss_of_real_training_falls_on_a_file_of_tokens(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.npy"
    np.save(tokens, np.tile(np.arange(10, dtype=np.uint16), 40))
    options = Options(iterations=25, warm_up=0, data=str(tokens), learning_rate=0.01, clip_norm=5)
    found = _iterations(make_plan(tiny_model("llama"), PIPES), options, tmp_path)
    # A cycle of ten words can be learned all but wholly; at first each of 50 is as likely.
    assert found[0].loss > 3
    assert found[-1].loss < 0.5 * found[0].loss


def test_the_references_of_neighbouring_iterations_are_shared(tmp_path: Path) -> None:
    plan = make_plan(tiny_model("llama"), PIPES)
    first, second = _iterations(plan, Options(iterations=2, warm_up=0), tmp_path)
    assert first.reference_ms[1] == second.reference_ms[0]
    assert first.ms == max(step.elapsed_ms for step in first.steps)
    assert len(first.peak_bytes) == plan.gpus_used


@pytest.mark.parametrize("recompute", [False, True])
def test_recomputation_and_time_stamps_go_together(recompute: bool, tmp_path: Path) -> None:
    from specs.workload import Recompute

    kind = Recompute.FULL if recompute else Recompute.NONE
    plan = make_plan(tiny_model("llama"), PIPES, recompute=kind)
    (iteration,) = _iterations(plan, Options(iterations=1, warm_up=0), tmp_path)
    for step in iteration.steps:
        assert len(step.each_ms("forward")) == len(step.each_ms("backward")) == 2
        assert step.total_ms("forward", "backward") <= step.elapsed_ms
