"""Random compositions of the reference profiles, odd node sizes and all."""

from __future__ import annotations

from typing import Any

from planner.policy.composition import Composition
from planner.policy.training.clusters import node_of, random_cluster
from planner.problem import Problem
from specs.cluster import Cluster
from specs.model import load_model
from specs.workload import Workload
from tests.planner.reference import HEADROOM, reference_profiles

GPUS = ("a100-40gb", "a6000", "h100")


def problem_on(model: str, cluster: Cluster, global_batch: int = 1024) -> Problem:
    return Problem(
        load_model(model),
        Workload(global_batch, 4096),
        cluster,
        reference_profiles(model),
        HEADROOM,
    )


def cluster_of_sizes(*nodes: tuple[str, int]) -> Cluster:
    """A cluster of nodes (GPU type, GPUs)."""
    return Cluster(
        "test", tuple(node_of(gpu, gpus, f"n{i}", 12.5) for i, (gpu, gpus) in enumerate(nodes))
    )


def random_composition(draw: Any, model: str = "llama-3-8b") -> Composition:
    return Composition(problem_on(model, random_cluster(GPUS, draw, "random")))


ODD = (
    cluster_of_sizes(("h100", 1)),
    cluster_of_sizes(("h100", 3), ("h100", 5), ("h100", 7)),
    cluster_of_sizes(("a6000", 3), ("a100-40gb", 5), ("h100", 7), ("h100", 1)),
    cluster_of_sizes(*[("a100-40gb", 4)] * 8),
)
