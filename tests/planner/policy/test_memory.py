"""What self-imitation remembers."""

import numpy as np
import pytest

from planner.policy.training.memory import PlanMemory, Remembered


def plan(depth: int, mark: int, throughput: float) -> Remembered:
    return Remembered(((mark,) * depth,), throughput, {})


def test_three_plans_of_every_depth_are_kept_the_best_first() -> None:
    memory = PlanMemory()
    for mark, throughput in enumerate((0.50, 0.52, 0.51, 0.49, 0.53)):
        memory.add(0, np.zeros(2), plan(4, mark, throughput))
    memory.add(0, np.zeros(2), plan(2, 9, 0.525))
    best = [one.throughput for one, _ in memory.best(0)]
    assert best == [0.53, 0.525, 0.52]  # 0.525 of depth 2 stands in a buffer of its own
    assert not memory.wants(0, ((7,) * 4,), 0.505)  # 0.53, 0.52, 0.51 of depth 4 are better
    assert memory.wants(0, ((7,) * 4,), 0.515)
    assert not memory.wants(0, ((4,) * 4,), 0.99)  # the plan is there already


def test_plans_weigh_by_their_distance_to_the_best() -> None:
    memory = PlanMemory()
    for mark, throughput in enumerate((1.0, 0.985, 0.90)):
        memory.add(0, np.zeros(2), plan(3, mark, throughput))
    # gaps 0, 1.5 % and 10 % of 3 %: weights 1, 0.5 and 0, so 2/3 and 1/3
    assert [weight for _, weight in memory.best(0)] == pytest.approx([2 / 3, 1 / 3])


def test_the_nearest_compositions_come_first() -> None:
    memory = PlanMemory()
    for number, place in enumerate((0.0, 5.0, 1.0, 2.0, 9.0)):
        memory.add(number, np.array([place, 0.0]), plan(1, 0, 0.5))
    assert memory.nearest(np.array([0.0, 0.0]), but=[0]) == [2, 3, 1]
    assert memory.best(77) == []
