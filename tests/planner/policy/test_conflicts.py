"""Gradient surgery by hand."""

import pytest
import torch

from planner.policy.training.conflicts import without_conflicts


def surgery(*gradients: tuple[float, ...]) -> list[list[float]]:
    draw = torch.Generator().manual_seed(0)
    found = without_conflicts([torch.tensor(g) for g in gradients], draw)
    return [g.tolist() for g in found]


def test_conflicting_gradients_lose_what_works_against_the_other() -> None:
    # g1 . g2 = -1: h1 = (1,0) + 1/2 (-1,1) = (0.5,0.5); h2 = (-1,1) + 1/1 (1,0) = (0,1)
    first, second = surgery((1.0, 0.0), (-1.0, 1.0))
    assert first == pytest.approx([0.5, 0.5])
    assert second == pytest.approx([0.0, 1.0])


def test_agreeing_and_orthogonal_gradients_stay() -> None:
    assert surgery((1.0, 0.0), (1.0, 1.0)) == [[1.0, 0.0], [1.0, 1.0]]
    assert surgery((1.0, 0.0), (0.0, 2.0)) == [[1.0, 0.0], [0.0, 2.0]]


def test_one_task_and_a_zero_gradient_change_nothing() -> None:
    assert surgery((3.0, -1.0)) == [[3.0, -1.0]]
    assert surgery((3.0, -1.0), (0.0, 0.0)) == [[3.0, -1.0], [0.0, 0.0]]


def test_projection_is_against_the_original_gradients() -> None:
    one, two = torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 1.0])
    without_conflicts([one, two], torch.Generator().manual_seed(1))
    assert one.tolist() == [1.0, 0.0]
    assert two.tolist() == [-1.0, 1.0]
