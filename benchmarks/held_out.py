"""Compositions that no training has seen: what the policy is chosen on, and what it is judged on.

`selection`: forty-four, the first list of this project. The default schedule was chosen on ten
dense ones of it, and which ten was not written down, so none of them judges anything any more.

`held_out`: forty-six, drawn after that choice and used for no other: uniform and uneven, one to
five GPU types, 32 to 1,024 GPUs, llama-3-8b, qwen3-32b, mixtral-8x7b, and qwen3-64b, whose 128
blocks are twice what training saw; twelve have h200 or rtx-3090, which training leaves out.

Profiles are estimated. tests/planner/policy/test_held_out.py holds training, selection and
held-out apart.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from planner.policy.training.clusters import node_of, random_cluster
from planner.policy.training.pool import Trained, holds
from planner.problem import Problem
from planner.profiles import Origin, ProfileSet
from profiler.estimates.question import Question, answer
from specs.cluster import Cluster, Node
from specs.model import load_model
from specs.profile import Source

SEEN = (
    "a100-40gb",
    "a100-80gb",
    "a40",
    "a5000",
    "a6000",
    "h100",
    "gh200",
    "l40s",
    "rtx-pro-6000",
    "v100-32gb",
    "titan-rtx",
)
UNSEEN = ("h200", "rtx-3090")
MODELS = ("llama-3-8b", "qwen3-32b", "mixtral-8x7b", "qwen3-64b")
SELECTION_SEED, HELD_OUT_SEED, VALIDATION_SEED = 20261130, 4_060_708, 51_202_612


@cache
def trained(name: str) -> Trained:
    model = load_model(name)
    workload = model.default_workload
    rows = answer(
        Question(
            gpus=SEEN + UNSEEN,
            model=model,
            tps=(1, 2, 4, 8),
            micro_batches=(1, 2, 4, 8),
            seq_len=workload.seq_len,
            dtype=workload.dtype,
            optimizer=workload.optimizer,
        )
    )
    profiles = ProfileSet.of_rows(rows.layers, rows.links, rows.hosts, Origin(0, Source.ESTIMATED))
    return Trained(model, workload, profiles)


def even(name: str, counts: dict[str, int], size: int, bandwidth: float = 12.5) -> Cluster:
    """A cluster of nodes of one size."""
    nodes: list[Node] = []
    for gpu, count in counts.items():
        for i in range(count // size):
            nodes.append(node_of(gpu, size, f"{gpu}-{i}", bandwidth))
    return Cluster(name, tuple(nodes))


def fragmented(name: str, counts: dict[str, int], draw: np.random.Generator) -> Cluster:
    """A cluster of nodes of 1 to 8 GPUs."""
    nodes: list[Node] = []
    for gpu, count in counts.items():
        left, number = count, 0
        while left:
            held = min(left, int(draw.integers(1, 9)))
            nodes.append(node_of(gpu, held, f"{gpu}-{number}", 12.5))
            left, number = left - held, number + 1
    return Cluster(name, tuple(nodes))


def selection() -> list[Problem]:
    """What schedules and recipes may be chosen on."""
    draw = np.random.default_rng(SELECTION_SEED)
    three = {"a100-40gb": 32, "a6000": 32, "h100": 64}
    large = {"a100-80gb": 200, "l40s": 200, "gh200": 192}
    fixed = [
        ("llama-3-8b", even("mixed-128", three, 4)),
        ("qwen3-32b", even("mixed-128", three, 4)),
        ("mixtral-8x7b", even("mixed-128", three, 4)),
        ("qwen3-64b", even("mixed-512", {k: 4 * v for k, v in three.items()}, 4)),
        ("llama-3-8b", even("mixed-512", {k: 4 * v for k, v in three.items()}, 4)),
        ("qwen3-32b", even("mixed-512", {k: 4 * v for k, v in three.items()}, 4)),
        ("qwen3-32b", even("mixed-1024", {k: 8 * v for k, v in three.items()}, 8)),
        (
            "qwen3-32b",
            fragmented("pieces-592", large, draw),
        ),
        ("llama-3-8b", fragmented("pieces-592", {"a40": 200, "l40s": 200, "h100": 192}, draw)),
        ("qwen3-32b", even("uniform-64", {"h100": 64}, 8)),
        ("llama-3-8b", even("uniform-32", {"a100-40gb": 32}, 8)),
        ("mixtral-8x7b", even("uniform-256", {"a100-80gb": 256}, 8)),
    ]
    found = [_problem(model, cluster) for model, cluster in fixed]
    order = ("llama-3-8b", "qwen3-32b", "llama-3-8b", "qwen3-32b", "mixtral-8x7b", "qwen3-64b")
    while len(found) < 36:
        _random(order[len(found) % len(order)], SEEN, draw, found, "selection")
    while len(found) < 44:
        _random(order[len(found) % 4], SEEN + UNSEEN, draw, found, "selection", needs=UNSEEN)
    return found


def validation() -> list[Problem]:
    """What the recipe of the second training and its schedule were chosen on: all random."""
    draw = np.random.default_rng(VALIDATION_SEED)
    found: list[Problem] = []
    order = ("llama-3-8b", "qwen3-32b", "mixtral-8x7b", "llama-3-8b", "qwen3-32b", "qwen3-64b")
    while len(found) < 30:
        _random(order[len(found) % len(order)], SEEN, draw, found, "validation")
    while len(found) < 36:
        _random(order[len(found) % 6], SEEN + UNSEEN, draw, found, "validation", needs=UNSEEN)
    for model, counts, size in (
        ("qwen3-64b", {"h100": 512, "a100-40gb": 256}, 8),
        ("qwen3-32b", {"l40s": 640}, 4),
        ("mixtral-8x7b", {"a100-80gb": 128, "a40": 64}, 4),
        ("llama-3-8b", {"h100": 256, "v100-32gb": 256, "a6000": 512}, 8),
    ):
        found.append(_problem(model, even(f"validation-{len(found)}", counts, size)))
    return found


def held_out() -> list[Problem]:
    """What the policy is judged on; nothing is chosen by them."""
    draw = np.random.default_rng(HELD_OUT_SEED)
    five = {"a100-80gb": 288, "gh200": 128, "l40s": 160, "rtx-pro-6000": 96, "a6000": 96}
    fixed = [
        ("llama-3-8b", even("uniform-48", {"l40s": 48}, 8)),
        ("qwen3-32b", even("uniform-128", {"a100-80gb": 128}, 8)),
        ("mixtral-8x7b", even("uniform-512", {"h100": 512}, 8, 25.0)),
        ("qwen3-64b", even("uniform-256", {"gh200": 256}, 4, 25.0)),
        ("llama-3-8b", even("old-128", {"v100-32gb": 64, "titan-rtx": 32, "a5000": 32}, 4)),
        ("qwen3-32b", even("pro-96", {"rtx-pro-6000": 48, "a6000": 48}, 4)),
        ("mixtral-8x7b", even("three-384", {"h100": 128, "a100-40gb": 128, "a40": 128}, 4)),
        (
            "qwen3-32b",
            even("three-1024", {"a100-80gb": 512, "l40s": 256, "a6000": 256}, 8),
        ),
        ("qwen3-64b", even("two-1024", {"h100": 512, "a100-80gb": 512}, 8, 25.0)),
        ("llama-3-8b", fragmented("five-768", five, draw)),
        ("qwen3-32b", fragmented("pieces-416", {"h100": 160, "a40": 96, "l40s": 160}, draw)),
        ("qwen3-32b", even("new-256", {"h200": 128, "h100": 128}, 8)),
        ("llama-3-8b", fragmented("small-192", {"rtx-3090": 128, "a5000": 64}, draw)),
        ("mixtral-8x7b", even("new-uniform-64", {"h200": 64}, 8)),
        ("qwen3-64b", even("new-mixed-320", {"h200": 128, "rtx-3090": 192}, 8)),
    ]
    found = [_problem(model, cluster) for model, cluster in fixed]
    order = ("llama-3-8b", "qwen3-32b", "mixtral-8x7b", "llama-3-8b", "qwen3-32b", "qwen3-64b")
    while len(found) < 38:
        _random(order[len(found) % len(order)], SEEN, draw, found, "held-out")
    while len(found) < 46:
        _random(order[len(found) % 4], SEEN + UNSEEN, draw, found, "held-out", needs=UNSEEN)
    return found


def _problem(model: str, cluster: Cluster) -> Problem:
    one = trained(model)
    return Problem(one.model, one.workload, cluster, one.profiles)


def _random(
    model: str,
    gpus: tuple[str, ...],
    draw: np.random.Generator,
    found: list[Problem],
    name: str,
    needs: tuple[str, ...] = (),
) -> None:
    """Add a random cluster of at least 32 GPUs that holds the model, and has a needed type."""
    while True:
        cluster = random_cluster(gpus, draw, f"{name}-{len(found)}")
        if cluster.gpus < 32 or not holds(trained(model), cluster):
            continue
        if needs and not set(needs) & set(cluster.gpus_by_type):
            continue
        found.append(_problem(model, cluster))
        return
