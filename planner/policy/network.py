"""The network that planning uses: numpy alone, equal to its torch twin to 1e-5.

Candidates are scored by their features, never by index. Widths: W = 64 throughout.

    token_GW  = tanh(tokens E + e)                             one row a GPU type
    h         = [state, mean_G token, max_G token]
    h         = tanh(film_1(h A + a)); h = tanh(film_2(h B + b))
    score_C   = 5 v . tanh(film_head(candidates C + h H + c))  masked, then softmax
    film(x)   = (1 + tanh gamma) x + tanh beta, with gamma, beta = tanh(summary P + p) Q + q

Q and q start at zero, so that FiLM starts as the identity (DESIGN section 9).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.policy.features import (
    BLOCK_SHARES,
    DEGREES,
    DEPTHS,
    MICRO_BATCHES,
    REPLICA_COUNTS,
    STATES,
    SUMMARIES,
    TOKENS,
    TYPES,
)

Array = Any

WIDTH = 64
CONDITION = 32
HEADS = {"depth": DEPTHS, "type": TYPES, "degree": DEGREES}
FLAT_HEADS = HEADS | {
    "blocks": BLOCK_SHARES,
    "replicas": REPLICA_COUNTS,
    "micro-batch": MICRO_BATCHES,
}
SCALE = 5.0


def films_of(parameters: Collection[str]) -> tuple[str, ...]:
    """The layers that FiLM conditions in a network of these parameters, in their order."""
    return ("trunk1", "trunk2", *(h for h in FLAT_HEADS if f"{h}.candidate" in parameters))


def shapes(heads: Mapping[str, int] = HEADS) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter of a network with these heads."""
    films = 2 + len(heads)
    found: dict[str, tuple[int, ...]] = {
        "token.weight": (TOKENS, WIDTH),
        "token.bias": (WIDTH,),
        "trunk1.weight": (STATES + 2 * WIDTH, WIDTH),
        "trunk1.bias": (WIDTH,),
        "trunk2.weight": (WIDTH, WIDTH),
        "trunk2.bias": (WIDTH,),
        "condition1.weight": (SUMMARIES, CONDITION),
        "condition1.bias": (CONDITION,),
        "condition2.weight": (CONDITION, 2 * WIDTH * films),
        "condition2.bias": (2 * WIDTH * films,),
    }
    for head, features in heads.items():
        found[f"{head}.candidate"] = (features, WIDTH)
        found[f"{head}.state"] = (WIDTH, WIDTH)
        found[f"{head}.bias"] = (WIDTH,)
        found[f"{head}.score"] = (WIDTH,)
    return found


def initial_parameters(seed: int, heads: Mapping[str, int] = HEADS) -> dict[str, Array]:
    """Untrained parameters: uniform by fan-in, small scores, FiLM the identity."""
    draw = np.random.default_rng(seed)
    found = {}
    for name, shape in shapes(heads).items():
        if name.startswith("condition2") or name.endswith("bias"):
            value = np.zeros(shape)
        elif name.endswith("score"):
            value = draw.normal(0.0, 0.01, shape)
        else:
            bound = (3.0 / shape[0]) ** 0.5
            value = draw.uniform(-bound, bound, shape)
        found[name] = value.astype(np.float32)
    return found


@dataclass(frozen=True)
class Conditioned:
    """The network on one composition: what FiLM says is worked out once."""

    parameters: Mapping[str, Array]
    films: Mapping[str, tuple[Array, Array]]

    @classmethod
    def of(cls, parameters: Mapping[str, Array], summary: Array) -> Conditioned:
        """The network for a composition with this summary, shape (SUMMARIES,)."""
        p, names = parameters, films_of(parameters)
        hidden = np.tanh(np.float32(summary) @ p["condition1.weight"] + p["condition1.bias"])
        out = (hidden @ p["condition2.weight"] + p["condition2.bias"]).reshape(-1, 2, WIDTH)
        films = {
            name: (1.0 + np.tanh(out[i, 0]), np.tanh(out[i, 1])) for i, name in enumerate(names)
        }
        return cls(p, films)

    def types(self, tokens: Array) -> Array:
        """Mean and largest of the encoded types, (n, 2 W), of tokens (n, G, TOKENS)."""
        p = self.parameters
        encoded = np.tanh(np.float32(tokens) @ p["token.weight"] + p["token.bias"])
        return np.concatenate([encoded.mean(axis=1), encoded.max(axis=1)], axis=1)

    def trunk(self, state: Array, types: Array) -> Array:
        """What the heads read, (n, W), of states (n, STATES) and encoded types (n, 2 W)."""
        p = self.parameters
        h = np.concatenate([np.float32(state), types], axis=1)
        for layer in ("trunk1", "trunk2"):
            gain, shift = self.films[layer]
            h = np.tanh((h @ p[f"{layer}.weight"] + p[f"{layer}.bias"]) * gain + shift)
        return h

    def scores(self, head: str, hidden: Array, candidates: Array) -> Array:
        """Scores (n, C) of candidates (n, C, F) by a head, before the mask."""
        p = self.parameters
        gain, shift = self.films[head]
        inner = np.float32(candidates) @ p[f"{head}.candidate"]
        inner += (hidden @ p[f"{head}.state"] + p[f"{head}.bias"])[:, None, :]
        return SCALE * (np.tanh(inner * gain + shift) @ p[f"{head}.score"])


def log_probabilities(scores: Array, mask: Array) -> Array:
    """Log-softmax over legal candidates, -inf elsewhere and in a row without a legal one."""
    masked = np.where(mask, scores, -np.inf)
    top = masked.max(axis=-1, keepdims=True)
    shifted = masked - np.where(np.isfinite(top), top, 0.0)
    total = np.exp(shifted).sum(axis=-1, keepdims=True)
    return shifted - np.log(np.where(total > 0, total, 1.0))
