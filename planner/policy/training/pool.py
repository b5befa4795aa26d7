"""The pool of compositions to train on: models with their profiles, on random clusters.

Half of the models are as they are, the others have half to one and a half times the blocks, so
that what is learned holds for other depths too. Some global batches are halved or doubled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.policy.training.clusters import random_cluster
from planner.problem import Problem
from planner.profiles import ProfileSet
from specs.cluster import Cluster
from specs.errors import PlanError
from specs.model import Model
from specs.workload import STATE_BYTES_PER_PARAMETER, Workload

LEAST_ROOM = 1.3  # of the cluster's memory over the model's state, where anything can fit
TRIES = 200
LEAST_STRETCH, MOST_STRETCH = 0.5, 1.5  # blocks over those of the model


@dataclass(frozen=True)
class Trained:
    """A model to train on, with the profiles of all GPU types that clusters may have."""

    model: Model
    workload: Workload
    profiles: ProfileSet


def random_pool(
    models: Sequence[Trained], gpus: Sequence[str], count: int, seed: int
) -> list[Problem]:
    """So many problems, the models in turn, on random clusters that can hold them.

    Raises PlanError where no cluster of these types holds a model.
    """
    draw = np.random.default_rng([seed, 7])
    found: list[Problem] = []
    for number in range(count):
        one = varied(models[number % len(models)], draw)
        for _ in range(TRIES):
            cluster = random_cluster(gpus, draw, f"random-{number}")
            if holds(one, cluster):
                found.append(Problem(one.model, one.workload, cluster, one.profiles))
                break
        else:
            raise PlanError(
                f"no random cluster of {', '.join(gpus)} holds {one.model.name}: give larger GPU "
                "types or smaller models"
            )
    return found


def varied(one: Trained, draw: np.random.Generator) -> Trained:
    """A model as it is or with more or fewer blocks, its global batch the default or near it."""
    model, workload = one.model, one.workload
    factor = (1.0, 1.0, 0.5, 2.0)[int(draw.integers(4))]
    workload = replace(workload, global_batch=max(1, int(workload.global_batch * factor)))
    stretch = float(draw.uniform(LEAST_STRETCH, MOST_STRETCH))
    if draw.random() < 0.5:
        count = max(1, round(model.blocks * stretch))
        embedding, *blocks, head = model.layers
        blocks = (blocks + [blocks[-1]] * count)[:count]
        name = f"{model.name} of {count} blocks"
        model = replace(model, name=name, layers=(embedding, *blocks, head))
    return Trained(model, workload, one.profiles)


def pool_of_clusters(models: Sequence[Trained], clusters: Sequence[Cluster]) -> list[Problem]:
    """Every model on every cluster that can hold it. Raises PlanError where none can."""
    found = list(_held(models, clusters))
    if not found:
        raise PlanError("none of the clusters has the memory for any of the models")
    return found


def _held(models: Sequence[Trained], clusters: Sequence[Cluster]) -> Iterator[Problem]:
    for one in models:
        for cluster in clusters:
            if holds(one, cluster):
                yield Problem(one.model, one.workload, cluster, one.profiles)


def holds(one: Trained, cluster: Cluster) -> bool:
    """Whether the cluster's memory is 1.3 times the state of the model, framework taken out."""
    each = STATE_BYTES_PER_PARAMETER[(one.workload.dtype, one.workload.optimizer)]
    room = 0.0
    for gpu, count in cluster.gpus_by_type.items():
        host = one.profiles.host(gpu)
        if host is not None:
            room += count * max(0.0, 0.95 * host.usable_bytes - host.framework_bytes)
    return room >= LEAST_ROOM * each * one.model.parameters
