"""Estimated profiles in the store: for a question, and for whatever a plan would miss."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from enum import StrEnum

from db.store import Store
from profiler.calibration import constants_version
from profiler.estimates.layers import Style
from profiler.estimates.question import (
    Estimates,
    Question,
    answer,
    divisors,
    powers_of_two,
)
from specs.cluster import Cluster, topologies_of
from specs.gpu import gpu_type
from specs.layer import LayerKind
from specs.model import Model
from specs.profile import LayerKey, NewRun, Operation, RunStatus, Source
from specs.topology import Topology
from specs.workload import Workload

LICENCE = "constants: Apache-2.0, MIT and BSD-3-Clause sources, profiler/calibration/README.md"
MICRO_BATCHES = (1, 2, 4, 8)


class Outcome(StrEnum):
    """What became of an estimate in the store."""

    ADDED = "added"
    UNCHANGED = "unchanged"
    COMPLETED = "completed"  # one that was cut off before is whole now


@dataclass(frozen=True, slots=True)
class Recorded:
    """Estimates, the run that holds them, and what happened to it."""

    estimates: Estimates
    run_id: int
    outcome: Outcome


def estimate(store: Store, question: Question) -> Recorded:
    """Write the estimates of a question as one run, once: the same question again adds nothing.

    The same = the same options, model and constants. A run that a kill left unfinished is
    completed. Raises SpecError where something cannot be estimated, StoreError as the store does.
    """
    estimates = answer(question)
    found = store.find_run(Source.ESTIMATED, question.origin)
    if found is not None and found.status is RunStatus.COMPLETE:
        return Recorded(estimates, found.id, Outcome.UNCHANGED)
    store.add_model(question.model)
    if found is None:
        new = NewRun(Source.ESTIMATED, question.origin, licence=LICENCE)
        run_id, outcome = store.start_run(new), Outcome.ADDED
    else:
        run_id, outcome = found.id, Outcome.COMPLETED
        store.resume_run(run_id)
    store.add_layer_profiles(run_id, [*estimates.layers, *estimates.refusals])
    store.add_link_profiles(run_id, estimates.links)
    for host in estimates.hosts:
        store.add_host_profile(run_id, host)
    store.finish_run(run_id, RunStatus.COMPLETE)
    return Recorded(estimates, run_id, outcome)


def estimate_missing(
    store: Store,
    model: Model,
    workload: Workload,
    cluster: Cluster,
    *,
    micro_batches: tuple[int, ...] = MICRO_BATCHES,
    style: Style | None = None,
) -> list[int]:
    """Estimate the GPU types of a cluster that lack measured or imported rows; the runs' ids.

    For each such type all layer types of the model, TP degrees 1, 2, 4, ... up to its largest node,
    micro-batches 1, 2, 4, 8, every expert tiling its GPUs can hold, links of the topologies that
    its nodes have, and its host row (DESIGN section 5). A type counts as having rows when one
    TP degree holds every layer type at the workload's key, its nodes of several GPUs have links,
    and it has a host row. `cpu` is never estimated: only this host can measure it. Calling it
    again adds nothing. Raises SpecError for a model or topology that cannot be estimated.
    """
    found: list[int] = []
    for gpu, topologies in topologies_of(cluster.nodes).items():
        if gpu_type(gpu).is_cpu or _has_rows(store, gpu, topologies, model, workload, cluster):
            continue
        question = _question(gpu, topologies, model, workload, cluster, micro_batches, style)
        found.append(_present(store, question) or estimate(store, question).run_id)
    return list(dict.fromkeys(found))


def _question(
    gpu: str,
    topologies: set[Topology],
    model: Model,
    workload: Workload,
    cluster: Cluster,
    micro_batches: tuple[int, ...],
    style: Style | None,
) -> Question:
    largest = max(node.gpus for node in cluster.nodes if node.gpu == gpu)
    tps = powers_of_two(largest)
    eps: set[int] = set()
    etps: set[int] = set()
    for layer in model.layer_types:
        if layer.kind is LayerKind.MOE_BLOCK:
            eps.update(divisors(layer.shape("experts"), cluster.gpus_by_type[gpu]))
            etps.update(divisors(layer.shape("expert_ffn"), largest))
    return Question(
        gpus=(gpu,),
        model=model,
        tps=tps,
        micro_batches=micro_batches,
        seq_len=workload.seq_len,
        dtype=workload.dtype,
        optimizer=workload.optimizer,
        recomputes=(workload.recompute,),
        topologies={gpu: tuple(sorted(topologies))},
        eps=tuple(sorted(eps)) if eps else None,
        etps=tuple(sorted(etps)) if etps else None,
        style=style or Style(),
    )


def _has_rows(
    store: Store,
    gpu: str,
    topologies: set[Topology],
    model: Model,
    workload: Workload,
    cluster: Cluster,
) -> bool:
    """Whether measured or imported rows alone let a plan use a GPU type."""
    hashes = {layer.hash for layer in model.layer_types}
    held: dict[tuple[Source, int, int, Topology | None], set[str]] = defaultdict(set)
    for stored in store.layer_profiles(
        layer_types=hashes,
        gpus={gpu},
        seq_len=workload.seq_len,
        dtype=workload.dtype,
        recompute=workload.recompute,
        optimizer=workload.optimizer,
    ):
        key, source = stored.profile.key, stored.run.run.source
        where = key.topology if key.tp > 1 else None
        if source is not Source.ESTIMATED and (where is None or where in topologies):
            held[source, key.tp, key.micro_batch, where].add(key.layer_type)
    if hashes not in held.values():
        return False
    if all(stored.run.run.source is Source.ESTIMATED for stored in store.host_profiles(gpus={gpu})):
        return False
    linked = {
        (stored.profile.topology, stored.profile.operation)
        for stored in store.link_profiles(gpus={gpu})
        if stored.run.run.source is not Source.ESTIMATED
    }
    wanted = [Operation.P2P, Operation.ALL_REDUCE, Operation.ALL_GATHER]
    return all(
        (node.intra_node, operation) in linked
        for node in cluster.nodes
        if node.gpu == gpu and node.gpus > 1
        for operation in wanted
    )


def _present(store: Store, question: Question) -> int | None:
    """A complete run of these constants that already has every row of a question, or None."""
    estimates = answer(question)
    version = f"constants {constants_version()})"
    wanted = {_looked_up(row.key) for row in estimates.layers}
    wanted |= {_looked_up(row.key) for row in estimates.refusals}
    links = {(row.topology, row.operation, row.ranks) for row in estimates.links}
    for run in reversed(store.profile_runs()):
        if (
            run.run.source is not Source.ESTIMATED
            or run.status is not RunStatus.COMPLETE
            or not run.run.origin.endswith(version)
        ):
            continue
        if not wanted <= {_looked_up(key) for key in store.entries(run.id)}:
            continue
        gpus = set(question.gpus)
        have = {
            (row.profile.topology, row.profile.operation, row.profile.ranks)
            for row in store.link_profiles(run_id=run.id, gpus=gpus)
        }
        if links <= have and store.host_profiles(run_id=run.id, gpus=gpus):
            return run.id
    return None


def _looked_up(key: LayerKey) -> LayerKey:
    """The key as a lookup sees it: without a collective the topology does not matter."""
    return replace(key, topology=Topology.HOST) if key.tp == key.etp == 1 else key
