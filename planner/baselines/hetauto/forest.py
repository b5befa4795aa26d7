"""A random forest for regression: trees on bootstrap samples, each split on some features."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LEAF = 3  # samples in a leaf at least
DEEPEST = 10
THRESHOLDS = 8  # candidate thresholds of a feature, at quantiles of the samples


@dataclass
class Tree:
    """Nodes as parallel lists; a leaf has feature -1."""

    feature: list[int] = field(default_factory=list)
    threshold: list[float] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    right: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)

    def grow(self, x: Floats, y: Floats, draw: np.random.Generator, depth: int = 0) -> int:
        """Add the node of these samples and all below it; its index.

        x: (n, features); y: (n,). The split with the least squared error among a third of the
        features.
        """
        node = len(self.value)
        self.feature.append(-1)
        self.threshold.append(0.0)
        self.left.append(-1)
        self.right.append(-1)
        self.value.append(float(y.mean()))
        if depth == DEEPEST or len(y) < 2 * LEAF or np.ptp(y) == 0:
            return node
        split = _best_split(x, y, draw)
        if split is None:
            return node
        feature, threshold = split
        low = x[:, feature] <= threshold
        self.feature[node], self.threshold[node] = feature, threshold
        self.left[node] = self.grow(x[low], y[low], draw, depth + 1)
        self.right[node] = self.grow(x[~low], y[~low], draw, depth + 1)
        return node

    def predict(self, x: Floats) -> float:
        """The value of the leaf that one row of features falls into."""
        node = 0
        while self.feature[node] >= 0:
            low = x[self.feature[node]] <= self.threshold[node]
            node = self.left[node] if low else self.right[node]
        return self.value[node]


def _best_split(x: Floats, y: Floats, draw: np.random.Generator) -> tuple[int, float] | None:
    features = draw.permutation(x.shape[1])[: max(1, x.shape[1] // 3)]
    best: tuple[float, int, float] | None = None
    for feature in features:
        column = x[:, feature]
        steps = np.linspace(0, 1, THRESHOLDS + 2)[1:-1]
        for threshold in np.unique(np.quantile(column, steps, method="lower")):
            low = column <= threshold
            count = int(low.sum())
            if count < LEAF or len(y) - count < LEAF:
                continue
            error = count * y[low].var() + (len(y) - count) * y[~low].var()
            if best is None or error < best[0]:
                best = (float(error), int(feature), float(threshold))
    return None if best is None else best[1:]


class Forest:
    """The mean of trees; deterministic for a seed. trees: how many."""

    def __init__(self, trees: int, seed: int) -> None:
        self._count = trees
        self._draw = np.random.default_rng(seed)
        self.trees: list[Tree] = []

    def fit(self, x: Floats, y: Floats) -> None:
        """Grow all trees anew. x: (n, features); y: (n,), n >= 1."""
        self.trees = []
        for _ in range(self._count):
            chosen = self._draw.integers(len(y), size=len(y))
            tree = Tree()
            tree.grow(x[chosen], y[chosen], self._draw)
            self.trees.append(tree)

    def predict(self, x: Floats) -> float:
        """The mean prediction for one row. Needs `fit`."""
        return float(np.mean([tree.predict(x) for tree in self.trees]))
