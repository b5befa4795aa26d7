"""Decisions of episodes as torch tensors, one batch a head and composition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from planner.policy.rollout import Decision, Episodes

Array = Any

FIELDS = (
    "rows",
    "template",
    "stage",
    "state",
    "tokens",
    "candidates",
    "mask",
    "choice",
    "log_probability",
)


@dataclass(frozen=True)
class HeadBatch:
    """All decisions of one head: the fields of planner.policy.rollout.Decision, stacked."""

    rows: Tensor
    template: Tensor
    stage: Tensor
    state: Tensor
    tokens: Tensor
    candidates: Tensor
    mask: Tensor
    choice: Tensor
    log_probability: Tensor


def gather(decisions: Iterable[Decision]) -> dict[str, dict[str, Array]]:
    """Decisions by head, each field stacked along the first axis."""
    by_head: dict[str, list[Decision]] = {}
    for decision in decisions:
        by_head.setdefault(decision.head, []).append(decision)
    return {
        head: {name: np.concatenate([getattr(one, name) for one in found]) for name in FIELDS}
        for head, found in by_head.items()
    }


def of_row(gathered: Mapping[str, Mapping[str, Array]], row: int) -> dict[str, dict[str, Array]]:
    """The decisions of one episode."""
    found = {}
    for head, arrays in gathered.items():
        mine = arrays["rows"] == row
        if mine.any():
            found[head] = {name: values[mine] for name, values in arrays.items()}
    return found


def tensors(gathered: Mapping[str, Mapping[str, Array]]) -> dict[str, HeadBatch]:
    """The same as tensors."""
    return {
        head: HeadBatch(
            **{name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in arrays.items()}
        )
        for head, arrays in gathered.items()
    }


def plan_of_row(episodes: Episodes, row: int, count: int) -> tuple[tuple[int, ...], ...]:
    """The first `count` templates of an episode, as kinds."""
    choices = episodes.rolls.choices[row]
    return tuple(tuple(int(q) for q in choices[k, 1 : 1 + choices[k, 0]]) for k in range(count))


def distinct_rows(plans: Sequence[Any]) -> Array:
    """Whether each plan is the first of its kind, (n,)."""
    seen: set[Any] = set()
    found = np.zeros(len(plans), np.bool_)
    for i, plan in enumerate(plans):
        found[i] = plan not in seen
        seen.add(plan)
    return found
