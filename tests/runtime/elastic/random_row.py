"""Random plans of one model and workload, for training that goes from one to the next."""

from __future__ import annotations

import random
from typing import Any

from specs.plan import Plan
from specs.workload import Recompute
from tests.runtime.plans import Pipe, make_plan
from tests.runtime.tiny import tiny_model


def random_row(seed: int, count: int) -> list[Plan]:
    """Plans of one model and workload of at most four processes each."""
    dice = random.Random(seed)
    family = ("llama", "qwen3", "mixtral")[seed % 3]
    tied = family != "mixtral" and dice.random() < 0.4
    blocks = dice.randint(2, 4)
    model = tiny_model(family, num_hidden_layers=blocks, tie_word_embeddings=tied)
    recompute = dice.choice([Recompute.NONE, Recompute.FULL])
    return [_random_plan(dice, model, blocks, recompute) for _ in range(count)]


def _random_plan(dice: random.Random, model: Any, blocks: int, recompute: Recompute) -> Plan:
    """One of global batch 8: one or two templates, of up to four processes together."""
    shares = [8] if dice.random() < 0.5 else [5, 3]
    pipes = []
    for share in shares:
        width = 4 // len(shares)
        degrees = dice.choice([[1], [2], [1, 1]] + ([[2, 1], [1, 2], [2, 2], [4]] * (width == 4)))
        cut = dice.randint(1, blocks - 1)
        counts = [blocks] if len(degrees) == 1 else [cut, blocks - cut]
        tilings = [(1, t) if dice.random() < 0.5 else (t, 1) for t in degrees]
        moe = "mixtral" in model.name
        stages = [
            (t, n, *tiling) if moe else (t, n)
            for t, n, tiling in zip(degrees, counts, tilings, strict=True)
        ]
        pipes.append(Pipe(1, stages, [(share, 1)]))
    return make_plan(model, pipes, recompute=recompute)
