"""The network in numpy and in torch are one function."""

from typing import Any

import numpy as np
import pytest
import torch

from planner.policy.features import STATES, SUMMARIES, TOKENS
from planner.policy.network import (
    HEADS,
    Conditioned,
    initial_parameters,
    log_probabilities,
    shapes,
)
from planner.policy.training.torch_network import PolicyNetwork


def random_parameters(seed: int) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    return {
        name: draw.normal(0, 0.15, shape).astype(np.float32) for name, shape in shapes().items()
    }


@pytest.mark.parametrize("head", list(HEADS))
@pytest.mark.parametrize("types", [1, 4])
def test_both_networks_give_the_same_log_probabilities(head: str, types: int) -> None:
    parameters, draw = random_parameters(3), np.random.default_rng(4)
    summary = draw.normal(size=SUMMARIES).astype(np.float32)
    state = draw.normal(size=(9, STATES)).astype(np.float32)
    tokens = draw.normal(size=(9, types, TOKENS)).astype(np.float32)
    candidates = draw.normal(size=(9, 5, HEADS[head])).astype(np.float32)
    mask = draw.random((9, 5)) < 0.6
    mask[:, 0] = True
    net = Conditioned.of(parameters, summary)
    hidden = net.trunk(state, net.types(tokens))
    mine = log_probabilities(net.scores(head, hidden, candidates), mask)
    twin = PolicyNetwork(parameters)
    with torch.no_grad():
        theirs = twin.log_probabilities(
            head,
            twin.films(torch.from_numpy(summary)),
            *(torch.from_numpy(x) for x in (state, tokens, candidates, mask)),
        ).numpy()
    assert np.array_equal(np.isfinite(mine), mask)
    assert np.abs(mine[mask] - theirs[mask]).max() < 1e-5
    assert np.exp(mine).sum(axis=1) == pytest.approx(np.ones(9), abs=1e-5)


def test_rows_of_several_compositions_can_be_padded() -> None:
    parameters, draw = random_parameters(5), np.random.default_rng(6)
    twin = PolicyNetwork(parameters)
    summaries = torch.from_numpy(draw.normal(size=(2, SUMMARIES)).astype(np.float32))
    state = torch.from_numpy(draw.normal(size=(2, STATES)).astype(np.float32))
    tokens = torch.from_numpy(draw.normal(size=(2, 3, TOKENS)).astype(np.float32))
    candidates = torch.from_numpy(draw.normal(size=(2, 4, HEADS["type"])).astype(np.float32))
    mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
    present = torch.tensor([[True, True, False], [True, True, True]])
    with torch.no_grad():
        together = twin.log_probabilities(
            "type", twin.films(summaries), state, tokens, candidates, mask, present
        )
        alone = twin.log_probabilities(
            "type",
            twin.films(summaries[0]),
            state[:1],
            tokens[:1, :2],
            candidates[:1, :2],
            mask[:1, :2],
        )
    assert torch.allclose(together[0, :2], alone[0], atol=1e-5)


def test_conditioning_starts_as_the_identity() -> None:
    draw = np.random.default_rng(0)
    for summary in draw.normal(size=(5, SUMMARIES)):
        for gain, shift in Conditioned.of(initial_parameters(1), summary).films.values():
            assert (gain == 1).all()
            assert (shift == 0).all()


def test_without_film_the_torch_network_ignores_the_composition() -> None:
    twin = PolicyNetwork(random_parameters(2), film=False)
    for gain, shift in twin.films(torch.randn(SUMMARIES)).values():
        assert (gain == 1).all()
        assert (shift == 0).all()


def test_parameters_survive_the_way_through_torch() -> None:
    parameters = initial_parameters(7)
    back = PolicyNetwork(parameters).arrays()
    assert back.keys() == parameters.keys()
    assert all(np.array_equal(back[name], parameters[name]) for name in back)
