"""Exact-match lookups that name the key they do not find."""

from __future__ import annotations

from planner.links import LinkCurve
from planner.problem import Problem
from specs.cluster import Node
from specs.errors import ProfileMissing
from specs.layer import LayerType
from specs.plan import Stage
from specs.profile import HostProfile, LayerProfile, Operation


def layer_row(
    problem: Problem, stage: Stage, layer: LayerType, micro_batch: int, node: Node
) -> LayerProfile:
    """The row of a layer on a stage that runs on this node. Raises ProfileMissing."""
    tiled = layer.expert_parameters > 0
    ep, etp = (stage.ep, stage.etp) if tiled else (1, 1)
    row = problem.profiles.layer(
        stage.gpu, layer.hash, stage.tp, micro_batch, node.intra_node, ep, etp
    )
    if row is None:
        tiling = f" ep={ep} etp={etp}" if tiled else ""
        where = "" if stage.tp == 1 and etp == 1 else f" topology={node.intra_node.value}"
        workload = problem.workload
        raise ProfileMissing(
            f"no profile of {stage.gpu} {layer.kind.value} at tp={stage.tp} "
            f"micro_batch={micro_batch}{tiling}{where} seq_len={workload.seq_len} "
            f"dtype={workload.dtype.value} recompute={workload.recompute.value} "
            f"optimizer={workload.optimizer.value}"
        )
    return row


def host_row(problem: Problem, gpu: str) -> HostProfile:
    """The host row of a GPU type. Raises ProfileMissing."""
    row = problem.profiles.host(gpu)
    if row is None:
        raise ProfileMissing(f"no host profile of {gpu}")
    return row


def link_curve(problem: Problem, node: Node, operation: Operation, ranks: int) -> LinkCurve:
    """The curve of an operation inside a node. Raises ProfileMissing."""
    curve = problem.profiles.link(node.gpu, node.gpu, node.intra_node, operation, ranks)
    if curve is None:
        raise ProfileMissing(
            f"no link profile of {node.gpu} {operation.value} over {node.intra_node.value} "
            f"at {ranks} ranks"
        )
    return curve


def bus_bytes_per_ms(problem: Problem, node: Node) -> float:
    """Bus bandwidth of a node's own link, in bytes/ms. Raises ProfileMissing."""
    bus = problem.profiles.bus_bytes_per_ms(node.gpu, node.intra_node)
    if bus is None:
        raise ProfileMissing(
            f"no link profile of {node.gpu} all_reduce over {node.intra_node.value}"
        )
    return bus


def nic_bytes_per_ms(problem: Problem, node: Node) -> float:
    """Bandwidth of a node's network card per direction, in bytes/ms. Raises ProfileMissing."""
    nic = problem.profiles.nic_bytes_per_ms(node)
    if nic is None:
        raise ProfileMissing(
            f"no inter link profile of {node.gpu} for node {node.name}, whose cluster file says "
            "`bandwidth: measured`"
        )
    return nic
