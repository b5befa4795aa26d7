"""The losses of the same training in one process that nothing ever happens to."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch

from runtime.data import SyntheticSamples
from runtime.executor import Executor
from tests.runtime.elastic.live import LEARNING_RATE, cluster_of, model, pipeline
from tests.runtime.ranks import run_ranks


def _train(rank: int, steps: int) -> list[float]:
    plan = pipeline(cluster_of(1))
    samples = SyntheticSamples(int(model().config["vocab_size"]), 3)
    executor = Executor(
        plan, 0, device=torch.device("cpu"), samples=samples, seed=3, learning_rate=LEARNING_RATE
    )
    return [executor.step(iteration).loss for iteration in range(steps)]


@lru_cache(maxsize=4)
def losses_alone(steps: int, folder: Path) -> list[float]:
    """Of iterations 0 to steps - 1."""
    # As long as the run itself took, which had two cores but more to do.
    found: list[float] = run_ranks(1, folder, _train, steps, timeout_s=800)[0]
    return found


def compare(losses: dict[int, float], folder: Path, rel: float = 1e-5) -> None:
    """Every loss that was reported is that of the uninterrupted training."""
    expected = losses_alone(max(losses) + 1, folder)
    wrong = {
        number: (loss, expected[number])
        for number, loss in losses.items()
        if abs(loss - expected[number]) > rel * abs(expected[number])
    }
    assert wrong == {}
