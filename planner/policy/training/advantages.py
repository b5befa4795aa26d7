"""Advantages of rollouts relative to their group, without a value baseline."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any

LEAST_DEVIATION = 1e-3
NO_VARIANCE = 1e-6
LEAST_RISK = -0.3
COMPANY = 3  # rollouts that make a group


def group_advantages(returns: Array, distinct: Array, *, risk: bool = False) -> Array | None:
    """Advantages (n,) of returns (n,), None for a group without variance.

    distinct: (n,) whether a rollout is the first of its plan; mean and deviation are theirs, so
    that copies of one plan do not move the yardstick. (R - mean) / max(deviation, 1e-3), the
    population deviation, in float64. risk: (R - q75) / (max - q75), not below -0.3: only what
    is among the best of the group counts, as planning keeps the best of many.
    """
    values = np.asarray(returns, np.float64)
    yardstick = values[np.asarray(distinct, bool)]
    if len(yardstick) < 2 or np.ptp(yardstick) < NO_VARIANCE:
        return None
    if risk:
        quarter = np.quantile(yardstick, 0.75)
        reach = max(yardstick.max() - quarter, LEAST_DEVIATION)
        return np.maximum((values - quarter) / reach, LEAST_RISK)
    centred = values - yardstick.mean()
    deviation = np.sqrt(((yardstick - yardstick.mean()) ** 2).mean())
    return centred / max(deviation, LEAST_DEVIATION)


def centred_by(advantages: Array, group: Array, distinct: Array) -> Array:
    """Advantages less the mean of their own group where it has at least three rollouts.

    Stages of a forced depth are so compared with stages of the same depth: a bad depth does not
    make every choice under it bad.
    """
    found = np.array(advantages, np.float64)
    for value in np.unique(group):
        mine = group == value
        if mine.sum() >= COMPANY:
            found[mine] -= found[mine & distinct].mean() if (mine & distinct).any() else 0.0
    return found


def returns_to_go(throughput: Array, tried: Array, count: Array, penalty: float) -> Array:
    """Reward-to-go (n, K) before each template, NaN where an episode took no decision.

    throughput: (n, K) after each template that fits, over the ideal. tried: (n,) templates chosen.
    count: (n,) templates that fit. The reward of a template is the throughput after it less that
    before; a first template that does not fit costs `penalty`, a later one nothing. An episode
    decides once more after its last template (STOP), with nothing to come.
    """
    n, templates = throughput.shape
    found = np.full((n, templates), np.nan)
    for i in range(n):
        last = throughput[i, count[i] - 1] if count[i] else -penalty
        for k in range(min(tried[i] + 1, templates)):
            before = throughput[i, k - 1] if 0 < k <= count[i] else 0.0
            found[i, k] = last - before if k <= count[i] else 0.0
    return found
