"""Every plan of a tiny problem, by enumeration: ground truth for what no plan can beat."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

from planner.experts import tilings
from planner.filled import FilledTemplate
from planner.problem import Problem
from specs.plan import Stage

# One replica: its micro-batch, (gpu, tp, first layer, end) of each stage, and the stages' nodes.
Shape = tuple[int, tuple[tuple[str, int, int, int], ...]]
Replica = tuple[Shape, tuple[int, ...]]


def every_plan(problem: Problem) -> Iterator[list[FilledTemplate]]:
    """All sets of replicas on disjoint GPUs, equal shapes taken as one template, all tilings."""
    nodes = problem.cluster.nodes
    replicas = sorted(_replicas(problem))
    for chosen in _sets(replicas, 0, [node.gpus for node in nodes]):
        by_shape: dict[Shape, list[tuple[int, ...]]] = {}
        for shape, places in chosen:
            by_shape.setdefault(shape, []).append(places)
        yield from (
            list(laid) for laid in product(*(_tiled(problem, *one) for one in by_shape.items()))
        )


def _replicas(problem: Problem) -> Iterator[Replica]:
    nodes, layers = problem.cluster.nodes, len(problem.model.layers)
    for depth in range(1, min(layers, problem.cluster.gpus) + 1):
        for places in product(range(len(nodes)), repeat=depth):
            for degrees in product((1, 2), repeat=depth):
                if not _room([node.gpus for node in nodes], places, degrees):
                    continue
                for cuts in combinations(range(1, layers), depth - 1):
                    ends = [0, *cuts, layers]
                    stages = tuple(
                        (nodes[places[s]].gpu, degrees[s], ends[s], ends[s + 1])
                        for s in range(depth)
                    )
                    for b in (1, 2, 4):
                        yield (b, stages), places


def _room(free: list[int], places: tuple[int, ...], degrees: tuple[int, ...]) -> list[int] | None:
    left = list(free)
    for node, tp in zip(places, degrees, strict=True):
        left[node] -= tp
    return left if min(left) >= 0 else None


def _sets(replicas: list[Replica], start: int, free: list[int]) -> Iterator[list[Replica]]:
    for n in range(start, len(replicas)):
        (_, stages), places = replicas[n]
        left = _room(free, places, tuple(stage[1] for stage in stages))
        if left is None:
            continue
        yield [replicas[n]]
        for more in _sets(replicas, n, left):
            yield [replicas[n], *more]


def _tiled(
    problem: Problem, shape: Shape, places: list[tuple[int, ...]]
) -> Iterator[FilledTemplate]:
    b, stages = shape
    choices = []
    for s, (gpu, tp, first, end) in enumerate(stages):
        moe = [layer for layer in problem.model.layers[first:end] if layer.expert_parameters]
        tiles = [(1, 1)]
        if moe:
            held = [row[s] for row in places]
            tiles = tilings(moe[0].shape("experts"), moe[0].shape("expert_ffn"), tp, held)
        choices.append([Stage(gpu, tp, range(first, end), ep, etp) for ep, etp in tiles])
    for laid in product(*choices):
        yield FilledTemplate(b, tuple(laid), tuple(places))
