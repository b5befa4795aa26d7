"""Losses of one composition: the clipped objective of a group, and imitation of plans."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from planner.policy.features import STATES, TOKENS
from planner.policy.network import FLAT_HEADS
from planner.policy.training.decisions import HeadBatch
from planner.policy.training.memory import Remembered
from planner.policy.training.recipe import Recipe
from planner.policy.training.torch_network import PolicyNetwork

Array = Any


def group_loss(
    network: PolicyNetwork,
    summary: Tensor,
    batches: Mapping[str, HeadBatch],
    advantages: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    recipe: Recipe,
    entropy: float,
) -> tuple[Tensor, float, float]:
    """Loss of a group, mean KL from the policy that sampled, and mean entropy.

    -mean(w min(rho A, clip(rho) A)) - entropy * mean(H / log C) over all decisions, C the legal
    candidates. advantages: (n,) a head; NaN leaves a decision out of the objective. weights: (n,)
    of choices that were forced, else 1. The KL is estimated as mean(rho - 1 - log rho).
    """
    films = network.films(summary)
    objective, spread, divergence = torch.zeros(()), torch.zeros(()), 0.0
    decisions = sum(len(batch.choice) for batch in batches.values())
    for head, batch in batches.items():
        logp = network.log_probabilities(
            head, films, batch.state, batch.tokens, batch.candidates, batch.mask
        )
        chosen = logp.gather(1, batch.choice[:, None]).squeeze(1)
        change = chosen - batch.log_probability
        ratio = change.exp()
        advantage = advantages[head]
        counts = ~advantage.isnan()
        value = torch.where(counts, advantage, 0.0)
        gained = ratio * value
        if recipe.has("clip"):
            kept = ratio.clamp(1 - recipe.clip, 1 + recipe.clip) * value
            gained = torch.minimum(gained, kept)
        else:
            gained = chosen * value
        objective = objective + (weights[head] * gained).sum() / decisions
        if recipe.has("entropy"):
            legal = batch.mask.sum(dim=1)
            # -inf * 0 is NaN, also in the gradient: forbidden candidates are taken out before.
            finite = logp.masked_fill(~batch.mask, 0.0)
            own = -(finite.exp() * finite).masked_fill(~batch.mask, 0.0).sum(dim=1)
            share = own / legal.clamp(min=2).float().log()
            spread = spread + share.sum() / decisions
        with torch.no_grad():
            divergence += float((ratio - 1 - change).sum()) / decisions
    return -objective - entropy * spread, divergence, float(spread.detach())


def imitation_loss(
    network: PolicyNetwork,
    compositions: Sequence[tuple[Array, Sequence[tuple[Remembered, float]]]],
) -> Tensor:
    """Mean negative log-likelihood of the plans of several compositions, by their weights.

    compositions: summary (SUMMARIES,), and plans with weights that sum to 1. A template weighs one
    for its depth and two for its stages (mean over stages, both heads), a plan the mean of its
    templates, STOP as one more depth. All compositions go through the network at once, padded.
    """
    summaries = torch.from_numpy(np.stack([summary for summary, _ in compositions])).float()
    films = network.films(summaries)
    loss = torch.zeros(())
    for head in FLAT_HEADS:  # all there are; a network without one has no decisions of it
        parts = [
            (c, one.decisions[head], weight * share_of_decisions(head, one))
            for c, (_, plans) in enumerate(compositions)
            for one, weight in plans
            if head in one.decisions
        ]
        if not parts:
            continue
        rows = sum(len(share) for _, _, share in parts)
        types = max(arrays["tokens"].shape[1] for _, arrays, _ in parts)
        choices = max(arrays["mask"].shape[1] for _, arrays, _ in parts)
        state = np.empty((rows, STATES), np.float32)
        tokens = np.zeros((rows, types, TOKENS), np.float32)
        candidates = np.zeros((rows, choices, FLAT_HEADS[head]), np.float32)
        mask = np.zeros((rows, choices), np.bool_)
        present = np.zeros((rows, types), np.bool_)
        choice, owner = np.empty(rows, np.int64), np.empty(rows, np.int64)
        shares = np.empty(rows, np.float32)
        at = 0
        for c, arrays, share in parts:
            mine = slice(at, at + len(share))
            at += len(share)
            state[mine] = arrays["state"]
            tokens[mine, : arrays["tokens"].shape[1]] = arrays["tokens"]
            present[mine, : arrays["tokens"].shape[1]] = True
            candidates[mine, : arrays["mask"].shape[1]] = arrays["candidates"]
            mask[mine, : arrays["mask"].shape[1]] = arrays["mask"]
            choice[mine], owner[mine], shares[mine] = arrays["choice"], c, share
        index = torch.from_numpy(owner)
        logp = network.log_probabilities(
            head,
            {name: (gain[index], shift[index]) for name, (gain, shift) in films.items()},
            torch.from_numpy(state),
            torch.from_numpy(tokens),
            torch.from_numpy(candidates),
            torch.from_numpy(mask),
            torch.from_numpy(present),
        )
        chosen = logp.gather(1, torch.from_numpy(choice)[:, None]).squeeze(1)
        loss = loss - (torch.from_numpy(shares) * chosen).sum()
    return loss / len(compositions)


def share_of_decisions(head: str, remembered: Remembered) -> Array:
    """What each decision of a plan weighs, (n,).

    1 / (templates + 1) for a depth, STOP counted; else 1 / templates, shared by the decisions of
    the head in its template.
    """
    template = remembered.decisions[head]["template"]
    templates = len(remembered.plan)
    if head == "depth":
        return np.full(len(template), 1.0 / (templates + 1))
    return 1.0 / (np.bincount(template)[template] * float(templates))


def forced_weight(log_probability: float, even: float, share: float, most: float) -> float:
    """Truncated importance weight of a choice drawn from share * even + (1 - share) * policy."""
    policy = math.exp(log_probability)
    return min(policy / (share * even + (1 - share) * policy), most)
