"""Advantages by hand."""

import numpy as np
import pytest

from planner.policy.training.advantages import centred_by, group_advantages, returns_to_go


def test_advantages_are_centred_and_scaled_over_distinct_plans() -> None:
    # distinct returns 0.2, 0.4, 0.6: mean 0.4, population deviation sqrt(0.08 / 3) = 0.16330
    found = group_advantages(np.array([0.2, 0.4, 0.6, 0.6]), np.array([True, True, True, False]))
    assert found is not None
    assert found == pytest.approx([-1.224745, 0.0, 1.224745, 1.224745], abs=1e-6)


def test_a_group_without_variance_has_no_advantages() -> None:
    assert group_advantages(np.full(4, 0.3), np.ones(4, bool)) is None
    assert group_advantages(np.array([0.3, 0.5]), np.array([True, False])) is None


def test_a_tiny_deviation_is_floored() -> None:
    # mean 0.5, deviation 5e-6 counts as 1e-3: 5e-6 / 1e-3 = 0.005
    found = group_advantages(np.array([0.5 - 5e-6, 0.5 + 5e-6]), np.ones(2, bool))
    assert found == pytest.approx([-0.005, 0.005], rel=1e-6)


def test_with_risk_only_the_best_quarter_counts() -> None:
    # q75 of 0, 1, 2, 3, 4 is 3: (4-3)/(4-3) = 1, 3 -> 0, the rest not below -0.3
    found = group_advantages(np.arange(5.0), np.ones(5, bool), risk=True)
    assert found == pytest.approx([-0.3, -0.3, -0.3, 0.0, 1.0])


def test_stages_are_compared_within_their_own_depth() -> None:
    # depth 4 has three rollouts: mean -1; depth 2 has two, too few for a mean of their own
    advantages = np.array([-2.0, -1.0, 0.0, 1.5, 0.5])
    found = centred_by(advantages, np.array([4, 4, 4, 2, 2]), np.ones(5, bool))
    assert found == pytest.approx([-1.0, 0.0, 1.0, 1.5, 0.5])


def test_reward_to_go_is_what_is_still_gained() -> None:
    # Plan 0: 0.5, then 0.7; it stops: nothing to come. Plan 1: first template does not fit.
    # Plan 2: 0.6, then a template that does not fit ends it without a penalty.
    throughput = np.array([[0.5, 0.7, 0.0], [0.0, 0.0, 0.0], [0.6, 0.0, 0.0]])
    found = returns_to_go(throughput, np.array([2, 1, 2]), np.array([2, 0, 1]), 0.05)
    assert found[0] == pytest.approx([0.7, 0.2, 0.0])
    assert found[1, 0] == pytest.approx(-0.05)
    assert found[1, 1] == 0.0
    assert np.isnan(found[1, 2])
    assert found[2, :2] == pytest.approx([0.6, 0.0])
