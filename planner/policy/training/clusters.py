"""Random clusters to train on: sizes, types and node sizes drawn anew each time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specs.cluster import Cluster, Node
from specs.gpu import gpu_type
from specs.topology import Topology

BANDWIDTHS_GB_PER_S = (6.25, 12.5, 12.5, 25.0, 50.0)
LATENCY_US = 10.0
SMALLEST, LARGEST = 8, 640  # GPUs


def random_cluster(gpus: Sequence[str], draw: Any, name: str) -> Cluster:
    """A cluster of 1 to 5 of these types and 8 to 640 GPUs, about even in the logarithm.

    draw: a numpy Generator. Half of the types have nodes of one size (4 or 8 mostly), the others
    are fragmented: nodes of 1 to 8 GPUs, also 3, 5, 6 and 7.
    """
    count = min(len(gpus), int(draw.choice([1, 2, 3, 4, 5], p=[0.1, 0.25, 0.35, 0.2, 0.1])))
    types = draw.choice(len(gpus), count, replace=False)
    total = float(SMALLEST * (LARGEST / SMALLEST) ** draw.random())
    shares = draw.dirichlet([1.5] * count)
    bandwidth = float(draw.choice(BANDWIDTHS_GB_PER_S))
    nodes: list[Node] = []
    for t, share in zip(types, shares, strict=True):
        gpu = gpus[int(t)]
        want = max(1, round(total * share))
        even = draw.random() < 0.5
        size = int(draw.choice([1, 2, 4, 8], p=[0.1, 0.1, 0.45, 0.35]))
        number = 0
        while want > 0:
            if not even:
                size = int(
                    draw.choice(
                        [1, 2, 3, 4, 5, 6, 7, 8],
                        p=[0.25, 0.15, 0.05, 0.25, 0.05, 0.05, 0.05, 0.15],
                    )
                )
            held = min(size, want)
            nodes.append(node_of(gpu, held, f"{gpu}-{number}", bandwidth))
            number += 1
            want -= held
    return Cluster(name, tuple(nodes))


def node_of(gpu: str, gpus: int, name: str, bandwidth_gb_per_s: float) -> Node:
    """A node with the usual link inside of its type."""
    kind = gpu_type(gpu)
    topology: Topology = kind.default_topology
    return Node(name, gpu, gpus, topology, bandwidth_gb_per_s, LATENCY_US)
