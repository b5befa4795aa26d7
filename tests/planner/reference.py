"""The reference problems as planning problems, and their golden plans."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from planner.filled import FilledTemplate
from planner.problem import Problem
from planner.profiles import Origin, ProfileSet
from specs.cluster import Cluster, load_cluster
from specs.layer import LayerKind
from specs.model import load_model
from specs.plan import Stage
from specs.profile import HostProfile, LayerKey, LayerProfile, LinkProfile, Operation, Source
from specs.topology import Topology
from specs.workload import DType, Optimizer, Recompute, Workload

DATA = Path(__file__).parent / "data"
TOPOLOGY = {"a100-40gb": Topology.NVLINK, "h100": Topology.NVLINK, "a6000": Topology.PCIE}
HEADROOM = 0.05


@cache
def reference_profiles(name: str) -> ProfileSet:
    document = json.loads((DATA / "profiles" / f"{name}.json").read_text())
    model = load_model(name)
    hashes = {layer.kind.value: layer.hash for layer in model.layer_types}
    layers = [
        LayerProfile(
            LayerKey(
                row["gpu"],
                hashes[row["layer"]],
                row["tp"],
                row["micro_batch"],
                row["seq_len"],
                DType.BF16,
                Recompute.NONE,
                Optimizer.ADAMW,
                TOPOLOGY[row["gpu"]],
            ),
            row["forward_ms"],
            row["backward_ms"],
            row["comm_ms"],
            row["update_ms"],
            int(row["activation_bytes"]),
            int(row["transient_bytes"]),
            int(row["parameter_bytes"]),
        )
        for row in document["layers"]
    ]
    links = [
        LinkProfile(
            row["gpu"],
            TOPOLOGY[row["gpu"]],
            Operation(row["op"]),
            row["ranks"],
            row["bytes"],
            row["time_ms"],
        )
        for row in document["links"]
    ]
    hosts = [
        HostProfile(
            gpu,
            row["host_ms"],
            int(row["framework_bytes"]),
            round(row["usable_bytes"] / (1 - HEADROOM)),
        )
        for gpu, row in document["hosts"].items()
    ]
    return ProfileSet.of_rows(layers, links, hosts, Origin(1, Source.ESTIMATED))


@cache
def reference_cluster(name: str) -> Cluster:
    return load_cluster(DATA / "clusters" / f"{name}.yaml")


@cache
def reference_problem(model: str, cluster: str, global_batch: int = 1024) -> Problem:
    return Problem(
        load_model(model),
        replace(Workload(1, 4096), global_batch=global_batch),
        reference_cluster(cluster),
        reference_profiles(model),
        HEADROOM,
    )


@cache
def golden_plans() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((DATA / "golden_plans.json").read_text())
    return found


def golden_templates(entry: dict[str, Any]) -> list[FilledTemplate]:
    return [
        FilledTemplate(
            template["micro_batch"],
            tuple(Stage(s["gpu"], s["tp"], range(*s["layers"])) for s in template["stages"]),
            tuple(tuple(row) for row in template["nodes"]),
        )
        for template in entry["plan"]["templates"]
    ]


def block_hash(model: str) -> str:
    """Hash of the block of a dense reference model."""
    return next(t.hash for t in load_model(model).layer_types if t.kind is LayerKind.BLOCK)
