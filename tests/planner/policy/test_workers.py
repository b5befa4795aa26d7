"""Work on compositions in processes of their own."""

import os
import signal
from typing import Any

import pytest

from planner.policy.composition import Composition
from planner.policy.training.workers import Workers
from planner.problem import Problem
from specs.errors import PlanError
from tests.planner.policy.compositions import ODD, problem_on


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    return [problem_on("llama-3-8b", cluster) for cluster in ODD]


def gpus(composition: Composition, asked: int) -> tuple[int, int, int]:
    return composition.problem.cluster.gpus, asked, os.getpid()


def killed(composition: Composition, asked: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refused(composition: Composition, asked: Any) -> None:
    raise PlanError("nothing to do here")


@pytest.mark.parametrize("count", [1, 2])
def test_answers_come_in_the_order_of_the_tasks(problems: list[Problem], count: int) -> None:
    tasks = [(3, 7), (0, 8), (3, 9), (1, 10)]
    with Workers(problems, count) as workers:
        found = list(workers.each(gpus, tasks))
    assert [(number, size, asked) for number, (size, asked, _) in found] == [
        (number, problems[number].cluster.gpus, asked) for number, asked in tasks
    ]
    here = {pid == os.getpid() for _, (_, _, pid) in found}
    assert here == {count == 1}


def test_what_a_worker_raises_is_raised_here(problems: list[Problem]) -> None:
    with Workers(problems, 2) as workers, pytest.raises(PlanError, match="nothing to do here"):
        list(workers.each(refused, [(0, None)]))


def test_a_killed_worker_ends_the_training_in_one_line(problems: list[Problem]) -> None:
    with Workers(problems, 2) as workers, pytest.raises(PlanError, match="goes on from the last"):
        list(workers.each(killed, [(0, None), (1, None)]))
