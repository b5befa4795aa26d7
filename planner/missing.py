"""What a store lacks for a planning question, and the one command that completes it."""

from __future__ import annotations

from planner.profiles import LayerRowKey, ProfileSet, holds_every_layer
from specs.cluster import Cluster
from specs.discovered import FIELD
from specs.gpu import gpu_type
from specs.layer import LayerKind, LayerType
from specs.model import Model
from specs.profile import Operation
from specs.topology import Topology
from specs.workload import Workload


def what_is_missing(
    profiles: ProfileSet, model: Model, workload: Workload, cluster: Cluster
) -> str:
    """One line: the first missing key and the command that completes the store; "" if nothing is.

    A GPU type needs one TP degree with every layer type at one micro-batch size, a host row, and,
    where its nodes hold several GPUs, link rows of them.
    """
    first = ""
    lacking: list[str] = []
    links_only = True
    for gpu in cluster.gpus_by_type:
        layers, links = (
            _layer_complaint(profiles, model, workload, cluster, gpu),
            _link_complaint(profiles, model, cluster, gpu),
        )
        if layers or links:
            lacking.append(gpu)
            first = first or layers or links
            links_only = links_only and not layers
    if lacking:
        command = completing_command(lacking, model, workload, cluster, links_only=links_only)
        return f"{first}: run `{command}`"
    for node in cluster.nodes:
        if len(cluster.nodes) > 1 and profiles.nic_bytes_per_ms(node) is None:
            return (
                f"node {node.name} says `bandwidth: measured`, but the store has no `inter` link "
                f"profile of {node.gpu}: write its bandwidth_gb_per_s into the cluster file, or "
                "import link profiles"
            )
    return ""


def _layer_complaint(
    profiles: ProfileSet, model: Model, workload: Workload, cluster: Cluster, gpu: str
) -> str:
    hashes = {layer.hash for layer in model.layer_types}
    largest = max(node.gpus for node in cluster.nodes if node.gpu == gpu)
    by_tp: dict[int, list[LayerRowKey]] = {}
    for key in profiles.layers:
        if key.gpu == gpu and key.tp <= largest:
            by_tp.setdefault(key.tp, []).append(key)
    if not any(holds_every_layer(keys, hashes) for keys in by_tp.values()):
        held = {key.layer_type for keys in by_tp.values() for key in keys}
        lacks = next(
            (layer for layer in model.layer_types if layer.hash not in held), model.layers[0]
        )
        return f"no profile of {describe_layer(gpu, lacks, 1, workload)}"
    if profiles.host(gpu) is None:
        return f"no host profile of {gpu}"
    return ""


def describe_layer(gpu: str, layer: LayerType, tp: int, workload: Workload) -> str:
    """A layer key as a person reads it."""
    return (
        f"{gpu} {layer.label} at tp={tp} seq_len={workload.seq_len} dtype={workload.dtype.value} "
        f"recompute={workload.recompute.value} optimizer={workload.optimizer.value}"
    )


def _link_complaint(profiles: ProfileSet, model: Model, cluster: Cluster, gpu: str) -> str:
    wanted = [Operation.P2P, Operation.ALL_REDUCE, Operation.ALL_GATHER]
    if any(layer.kind is LayerKind.MOE_BLOCK for layer in model.layer_types):
        wanted.append(Operation.ALL_TO_ALL)
    for node in cluster.nodes:
        if node.gpu != gpu or node.gpus == 1:
            continue
        held = {
            key.operation
            for key in profiles.links
            if key.gpu == gpu and key.topology is node.intra_node
        }
        for operation in wanted:
            if operation not in held:
                return f"no link profile of {gpu}: {operation.value} over {node.intra_node.value}"
    return ""


def completing_command(
    gpus: list[str],
    model: Model,
    workload: Workload,
    cluster: Cluster,
    *,
    links_only: bool = False,
) -> str:
    """The command line that writes every row that planning needs for these GPU types.

    Of a family without a closed form nothing can be estimated: its layers are measured, each GPU
    type on a host that has it.
    """
    if model.config.get("model_type") == "sailor":
        return "arachne-prof import sailor PATH"
    largest = max(node.gpus for node in cluster.nodes if node.gpu in gpus)
    degrees = [1 << k for k in range(largest.bit_length()) if 1 << k <= largest]
    options = f"--model {model.name} --tp {','.join(map(str, degrees))}"
    default = model.default_workload
    for name, value, usual in (
        ("seq-len", workload.seq_len, default.seq_len),
        ("dtype", workload.dtype.value, default.dtype.value),
        ("recompute", workload.recompute.value, default.recompute.value),
        ("optimizer", workload.optimizer.value, default.optimizer.value),
    ):
        if value != usual:
            options += f" --{name} {value}"
    commands: list[str] = []
    others = [gpu for gpu in gpus if not gpu_type(gpu).is_cpu]
    if others and FIELD in model.config:
        if not links_only:
            commands += [f"arachne-prof run --gpu {gpu} {options}" for gpu in others]
        commands += [f"arachne-prof links --gpu {gpu}" for gpu in others]
    elif others:
        links = _unusual_topologies(others, cluster)
        commands.append(f"arachne-prof estimate --gpu {','.join(others)} {options}{links}")
    if len(others) < len(gpus):
        if not links_only:
            commands.append(f"arachne-prof run --gpu cpu {options}")
        if any(node.intra_node is Topology.HOST and node.gpus > 1 for node in cluster.nodes):
            commands.append("arachne-prof links --gpu cpu")
    return " && ".join(commands)


def _unusual_topologies(gpus: list[str], cluster: Cluster) -> str:
    """` --topology ...` where nodes of these types have links that are not estimated unasked."""
    found = {(node.gpu, node.intra_node) for node in cluster.nodes if node.gpu in gpus}
    usual = {
        (gpu, topology)
        for gpu in gpus
        for default in (gpu_type(gpu).default_topology,)
        for topology in (
            (Topology.NVLINK, Topology.NVSWITCH) if default is Topology.NVLINK else (default,)
        )
    }
    if found <= usual:
        return ""
    return f" --topology {','.join(sorted({topology.value for _, topology in found}))}"
