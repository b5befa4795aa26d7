"""PCGrad: gradients of several tasks without the parts that work against each other.

Source: Yu et al., Gradient Surgery for Multi-Task Learning (NeurIPS 2020), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def without_conflicts(gradients: Sequence[Tensor], draw: torch.Generator) -> list[Tensor]:
    """Each gradient less its components against the others.

    gradients: one flat vector a task. h_i = g_i; for every other j in random order: where
    h_i . g_j < 0, h_i -= (h_i . g_j) / |g_j|^2 g_j, always with the original g_j. A zero gradient
    changes nothing.
    """
    found = []
    for i, gradient in enumerate(gradients):
        own = gradient.clone()
        for j in torch.randperm(len(gradients), generator=draw).tolist():
            other = gradients[j]
            if j == i:
                continue
            along = torch.dot(own, other)
            if along < 0:
                own -= along / (torch.dot(other, other) + 1e-12) * other
        found.append(own)
    return found
