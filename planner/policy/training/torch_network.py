"""The network in torch, for gradients; planner/policy/network.py gives the formulas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from planner.policy.network import SCALE, WIDTH, films_of

Array = Any


class PolicyNetwork(nn.Module):
    """The same parameters by the same names; film=False leaves FiLM the identity (ablation)."""

    def __init__(self, parameters: Mapping[str, Array], *, film: bool = True) -> None:
        super().__init__()
        self.film = film
        self._films = films_of(parameters)
        self.values = nn.ParameterDict(
            {_key(name): nn.Parameter(torch.tensor(value)) for name, value in parameters.items()}
        )

    def _of(self, name: str) -> Tensor:
        value: Tensor = self.values[_key(name)]
        return value

    def films(self, summary: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Gain and shift of every conditioned layer for summaries (..., SUMMARIES)."""
        if not self.film:
            one = torch.ones(*summary.shape[:-1], WIDTH)
            return {name: (one, torch.zeros_like(one)) for name in self._films}
        hidden = torch.tanh(summary @ self._of("condition1.weight") + self._of("condition1.bias"))
        out = hidden @ self._of("condition2.weight") + self._of("condition2.bias")
        out = out.reshape(*summary.shape[:-1], len(self._films), 2, WIDTH)
        return {
            name: (1.0 + torch.tanh(out[..., i, 0, :]), torch.tanh(out[..., i, 1, :]))
            for i, name in enumerate(self._films)
        }

    def log_probabilities(
        self,
        head: str,
        films: Mapping[str, tuple[Tensor, Tensor]],
        state: Tensor,
        tokens: Tensor,
        candidates: Tensor,
        mask: Tensor,
        present: Tensor | None = None,
    ) -> Tensor:
        """Log-probabilities (n, C) of candidates (n, C, F), -inf where the mask (n, C) forbids.

        films: of one composition (W,), or of each row (n, W). present: (n, G) which types are
        there, where rows of several compositions are padded to as many.
        """
        encoded = torch.tanh(tokens @ self._of("token.weight") + self._of("token.bias"))
        if present is None:
            mean, most = encoded.mean(dim=1), encoded.amax(dim=1)
        else:
            count = present.sum(dim=1, keepdim=True)
            mean = (encoded * present[:, :, None]).sum(dim=1) / count
            most = encoded.masked_fill(~present[:, :, None], -2.0).amax(dim=1)
        h = torch.cat([state, mean, most], dim=1)
        for layer in ("trunk1", "trunk2"):
            gain, shift = films[layer]
            h = h @ self._of(f"{layer}.weight") + self._of(f"{layer}.bias")
            h = torch.tanh(h * gain + shift)
        gain, shift = films[head]
        inner = candidates @ self._of(f"{head}.candidate")
        inner = inner + (h @ self._of(f"{head}.state") + self._of(f"{head}.bias"))[:, None, :]
        if gain.dim() == 2:
            gain, shift = gain[:, None, :], shift[:, None, :]
        scores = SCALE * (torch.tanh(inner * gain + shift) @ self._of(f"{head}.score"))
        return torch.log_softmax(scores.masked_fill(~mask, -torch.inf), dim=1)

    def arrays(self) -> dict[str, Array]:
        """The parameters as numpy arrays, to plan with or to write to a file."""
        found = {}
        for key, value in self.values.items():
            found[key.replace("__", ".")] = value.detach().numpy().astype(np.float32, copy=True)
        return found


def _key(name: str) -> str:
    return name.replace(".", "__")  # torch forbids dots in names of parameters
