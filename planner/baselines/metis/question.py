"""A planning problem as a question to Metis."""

from __future__ import annotations

from planner.baselines.metis.inputs import Inputs, MetisNode, Rows, prefix_sums
from planner.lookup import host_row, nic_bytes_per_ms
from planner.memory import limit_bytes
from planner.problem import Problem
from planner.transfers import activation_bytes
from specs.cluster import topologies_of
from specs.layer import LayerKind, LayerType
from specs.profile import LayerProfile


def question(problem: Problem) -> Inputs:
    """What Metis plans with. Raises ProfileMissing where a host row or network figure lacks."""
    nodes = []
    for node in problem.cluster.nodes:
        card = nic_bytes_per_ms(problem, node) if len(problem.cluster.nodes) > 1 else 1.0
        bus = problem.profiles.bus_bytes_per_ms(node.gpu, node.intra_node)
        nodes.append(MetisNode(node.gpu, node.gpus, bus or card, card))
    size = problem.workload.dtype.bytes
    rows: dict[tuple[str, int, int], Rows] = {}
    room: dict[str, float] = {}
    for gpu in problem.cluster.gpus_by_type:
        host = host_row(problem, gpu)
        transient = 0.0
        for tp in problem.profiles.tps(gpu):
            for b in problem.profiles.micro_batches(gpu):
                layers = _slowest_rows(problem, gpu, tp, b)
                if layers is not None:
                    rows[gpu, tp, b] = _rows(problem, layers, host.host_ms)
                    transient = max(transient, *(row.transient_bytes for row in layers))
        limits = [limit_bytes(problem, node) for node in problem.cluster.nodes if node.gpu == gpu]
        room[gpu] = min(limits) - host.framework_bytes - transient
    return Inputs(
        nodes=tuple(nodes),
        layers=len(problem.model.layers),
        global_batch=problem.workload.global_batch,
        rows=rows,
        room=room,
        gradient_bytes=prefix_sums(
            [float((lt.parameters + lt.expert_parameters) * size) for lt in problem.model.layers]
        ),
        activation_bytes=float(activation_bytes(problem, 1)),
    )


def _slowest_rows(
    problem: Problem, gpu: str, tp: int, micro_batch: int
) -> list[LayerProfile] | None:
    """The row of every layer, on nodes of several kinds the slowest; None where one lacks."""
    found: dict[LayerType, LayerProfile] = {}
    for layer in problem.model.layer_types:
        etp = tp if layer.kind is LayerKind.MOE_BLOCK else 1
        here = [
            problem.profiles.layer(gpu, layer.hash, tp, micro_batch, topology, 1, etp)
            for topology in sorted(topologies_of(problem.cluster.nodes)[gpu])
        ]
        rows = [row for row in here if row is not None]
        if len(rows) < len(here):
            return None
        found[layer] = max(rows, key=lambda row: row.forward_ms + row.backward_ms + row.comm_ms)
    return [found[layer] for layer in problem.model.layers]


def _rows(problem: Problem, layers: list[LayerProfile], overhead_ms: float) -> Rows:
    workload = problem.workload
    per_byte = workload.state_bytes_per_parameter / workload.dtype.bytes
    return Rows(
        times=prefix_sums([row.forward_ms + row.backward_ms + row.comm_ms for row in layers]),
        held=prefix_sums(
            [(row.parameter_bytes + row.expert_parameter_bytes) * per_byte for row in layers]
        ),
        kept=prefix_sums([float(row.activation_bytes) for row in layers]),
        update_ms=prefix_sums([row.update_ms for row in layers]),
        overhead_ms=overhead_ms,
    )
