"""The property that the runtime stands on: a plan changes when and where, never what."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.runtime.random_plans import random_plan
from tests.runtime.test_executor import check_gradients


@pytest.mark.parametrize("seed", range(16))
def test_loss_and_gradients_of_a_random_plan_equal_those_of_one_process(
    seed: int, tmp_path: Path
) -> None:
    check_gradients(random_plan(random.Random(seed), processes=4), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1060))
def test_loss_and_gradients_of_a_random_plan_on_eight_processes(seed: int, tmp_path: Path) -> None:
    check_gradients(random_plan(random.Random(seed), processes=8), tmp_path)
