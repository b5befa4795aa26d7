"""A planning problem as HexiScale asks it: a graph of single GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.baselines.espresso.question import Figures, figures_of
from planner.baselines.hexiscale.inputs import Floats, Inputs, LayerTimes, TimesKey
from planner.baselines.sailor.question import gpu_types
from planner.lookup import link_curve, nic_bytes_per_ms
from planner.memory import limit_bytes
from planner.problem import Problem
from planner.transfers import activation_bytes
from specs.profile import Operation


def question(problem: Problem) -> Inputs:
    """What HexiScale's search reads. Raises ProfileMissing for a missing host or link row."""
    types = gpu_types(problem)
    nodes = problem.cluster.nodes
    figures: dict[TimesKey, Figures] = {}
    for t, name in enumerate(types):
        for tp in problem.profiles.tps(name):
            for b in problem.profiles.micro_batches(name):
                found = figures_of(problem, name, tp, b)
                if found is not None:
                    figures[TimesKey(t, tp, b)] = found
    times = {
        key: LayerTimes(sum(f.block_ms), sum(f.first_ms), sum(f.last_ms))
        for key, f in figures.items()
    }
    speed = [
        max(
            (key.micro_batch / (key.tp * times[key].block) for key in times if key.gpu == t),
            default=0.0,
        )
        for t in range(len(types))
    ]
    kinds = [types.index(n.gpu) for n in nodes]
    # GPUs without times are no vertices of the graph.
    node = np.array(
        [i for i, n in enumerate(nodes) for _ in range(n.gpus) if speed[kinds[i]] > 0], np.int64
    )
    gpu = np.array([kinds[i] for i in node], np.int64)
    memory = [min(limit_bytes(problem, n) for n in nodes if n.gpu == name) for name in types]
    layers = problem.model.layers[1:-1]
    gradients = sum(lt.parameters + lt.expert_parameters for lt in layers) / len(layers)

    def most_blocks(t: int, tp: int, b: int, stage: int, depth: int, m: int) -> int:
        found = figures.get(TimesKey(t, tp, b))
        return 0 if found is None else found.most_blocks(depth, stage, m, len(layers))

    return Inputs(
        blocks=len(layers),
        global_batch=problem.workload.global_batch,
        micro_batches=tuple(sorted({key.micro_batch for key in figures})),
        gpu=gpu,
        node=node,
        bandwidth=bandwidths(problem, node.tolist()),
        power=np.array([speed[t] for t in gpu]),
        memory=np.array([memory[t] for t in gpu]),
        times=times,
        most_blocks=most_blocks,
        sent_bytes=lambda b: float(activation_bytes(problem, b)),
        gradient_bytes=gradients * problem.workload.dtype.bytes,
    )


def bandwidths(problem: Problem, node: Sequence[int]) -> Floats:
    """Bytes/ms between any two GPUs: the node's own link, else the slower of the two cards."""
    nodes = problem.cluster.nodes
    inside = [
        link_curve(problem, n, Operation.P2P, 2).bytes_per_ms if n.gpus > 1 else 1.0 for n in nodes
    ]
    several = len(nodes) > 1
    card = [nic_bytes_per_ms(problem, n) if several else 1.0 for n in nodes]
    between = np.minimum.outer(card, card)
    np.fill_diagonal(between, inside)
    return np.asarray(between[np.ix_(node, node)], np.float64)
