"""Random small plans of every kind that the runtime executes."""

from __future__ import annotations

import random

from specs.layer import LayerKind
from specs.model import Model
from specs.plan import Plan
from specs.workload import Recompute
from tests.runtime.plans import Pipe, make_plan
from tests.runtime.tiny import tiny_model

FAMILIES = ("llama", "qwen3", "mixtral")


def random_plan(dice: random.Random, processes: int) -> Plan:
    """A plan of at most so many processes: one to three templates of any shape."""
    family = dice.choice(FAMILIES)
    tied = family != "mixtral" and dice.random() < 0.3
    model = tiny_model(family, num_hidden_layers=dice.randint(1, 4), tie_word_embeddings=tied)
    pipes: list[Pipe] = []
    left = processes
    for _ in range(dice.randint(1, 3)):
        if left:
            pipe, used = _random_pipe(dice, model, left)
            pipes.append(pipe)
            left -= used
    recompute = dice.choice([Recompute.NONE, Recompute.FULL])
    nodes = dice.choice([1, 1, 2, 3])
    return make_plan(model, pipes, seq_len=dice.choice([5, 8]), recompute=recompute, nodes=nodes)


def _random_pipe(dice: random.Random, model: Model, left: int) -> tuple[Pipe, int]:
    while True:
        depth = dice.randint(1, min(model.blocks, 3))
        degrees = [dice.choice([1, 1, 2, 2, 4]) for _ in range(depth)]
        replicas = dice.randint(1, 2)
        if sum(degrees) * replicas <= left:
            break
    borders = sorted(dice.sample(range(1, model.blocks), depth - 1))
    blocks = [b - a for a, b in zip([0, *borders], [*borders, model.blocks], strict=True)]
    micro_batch = dice.randint(1, 3)
    moe = model.layers[1].kind is LayerKind.MOE_BLOCK
    stages: list[tuple[int, int, int, int]] = []
    for tp, count in zip(degrees, blocks, strict=True):
        stages.append((tp, count, *(_random_tiling(dice, tp * replicas) if moe else (1, 1))))
    spans = any(tp % (ep * etp) for tp, _, ep, etp in stages)
    together = dice.randint(1, 4)
    shares = [
        (together if spans else dice.randint(1, 4), dice.randint(1, micro_batch))
        for _ in range(replicas)
    ]
    return Pipe(micro_batch, stages, shares), sum(degrees) * replicas


def _random_tiling(dice: random.Random, devices: int) -> tuple[int, int]:
    """EP and ETP whose product divides the stage's devices (four experts of width 48)."""
    choices = [(ep, etp) for ep in (1, 2, 4) for etp in (1, 2, 4) if devices % (ep * etp) == 0]
    return dice.choice(choices)
