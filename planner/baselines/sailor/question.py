"""A planning problem as Sailor asks it: one region of GPUs, figures from our profiles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.baselines.sailor.inputs import Figures, FiguresKey, Inputs, Zone
from planner.links import LinkCurve
from planner.lookup import host_row, link_curve, nic_bytes_per_ms
from planner.memory import limit_bytes
from planner.problem import Problem
from planner.transfers import activation_bytes
from specs.cluster import Node, topologies_of
from specs.gpu import gpu_type
from specs.layer import LayerKind
from specs.profile import LayerProfile, Operation

Floats = NDArray[np.float64]


def gpu_types(problem: Problem) -> tuple[str, ...]:
    """The GPU types in Sailor's order, which is the alphabet's."""
    return tuple(sorted(problem.cluster.gpus_by_type))


def uneven_types(problem: Problem) -> list[str]:
    """GPU types whose nodes differ in size: Sailor has no word for them."""
    return [
        gpu
        for gpu in gpu_types(problem)
        if len({node.gpus for node in problem.cluster.nodes if node.gpu == gpu}) > 1
    ]


def question(problem: Problem) -> Inputs:
    """What Sailor's search reads. Raises ProfileMissing for a missing host or link row."""
    types = gpu_types(problem)
    nodes = [[n for n in problem.cluster.nodes if n.gpu == gpu] for gpu in types]
    uneven = uneven_types(problem)
    figures: dict[FiguresKey, Figures] = {}
    tps: list[tuple[int, ...]] = []
    for t, gpu in enumerate(types):
        widest = 1 if gpu in uneven else nodes[t][0].gpus
        degrees = [tp for tp in problem.profiles.tps(gpu) if tp <= widest]
        for tp in degrees:
            for b in problem.profiles.micro_batches(gpu):
                found = layer_figures(problem, gpu, tp, b)
                if found is not None:
                    figures[FiguresKey(t, b, tp)] = found
        tps.append(tuple(degrees))
    network = Network.of(problem, nodes)
    gpus = tuple(problem.cluster.gpus_by_type[gpu] for gpu in types)
    size = problem.workload.dtype.bytes
    return Inputs(
        types=types,
        global_batch=problem.workload.global_batch,
        zones=(Zone("cluster", "cluster", gpus),),
        tps=tuple(tps),
        figures=figures,
        capacity_bytes=tuple(
            min(limit_bytes(problem, node) for node in of_type) for of_type in nodes
        ),
        gradient_bytes=np.array(
            [(lt.parameters + lt.expert_parameters) * float(size) for lt in problem.model.layers]
        ),
        send_ms=lambda b, t, tp, a, u, other_tp, z: network.send_ms(
            activation_bytes(problem, b), t, u
        ),
        step_ms=lambda nbytes, t, tp, z: network.step_ms(nbytes, t),
        bandwidth=lambda t, tp, a, b: network.bytes_per_ms[t],
        sent_bytes=float(activation_bytes(problem, 1)),
        largest_peers=problem.cluster.gpus + 1,
        usd_per_ms=tuple(gpu_type(gpu).price_per_hour / 3_600_000 for gpu in types),
        egress_usd_per_byte=np.zeros((1, 1)),
    )


def layer_figures(problem: Problem, gpu: str, tp: int, micro_batch: int) -> Figures | None:
    """Every layer on a GPU type at one TP degree and micro-batch size; None where a row lacks.

    On several kinds of node the slowest row counts.
    """
    size = problem.workload.dtype.bytes
    # Weights, gradients, optimizer, and the two further copies that Sailor's rule counts.
    per_parameter = problem.workload.state_bytes_per_parameter + 2 * size
    rows: dict[str, LayerProfile] = {}
    for layer in problem.model.layer_types:
        etp = tp if layer.kind is LayerKind.MOE_BLOCK else 1
        here = [
            problem.profiles.layer(gpu, layer.hash, tp, micro_batch, topology, 1, etp)
            for topology in sorted(topologies_of(problem.cluster.nodes)[gpu])
        ]
        found = [row for row in here if row is not None]
        if len(found) < len(here):
            return None
        rows[layer.hash] = max(
            found, key=lambda row: row.forward_ms + row.backward_ms + row.comm_ms
        )
    each = [rows[layer.hash] for layer in problem.model.layers]
    return Figures(
        layer_ms=np.array([r.forward_ms + r.backward_ms + r.comm_ms for r in each]),
        update_ms=np.array([r.update_ms for r in each]),
        state_bytes=np.array(
            [(r.parameter_bytes + r.expert_parameter_bytes) / size * per_parameter for r in each]
        ),
        kept_bytes=np.array([float(r.activation_bytes) for r in each]),
        constant_bytes=host_row(problem, gpu).framework_bytes
        + max(float(r.transient_bytes) for r in each),
    )


@dataclass(frozen=True)
class Network:
    """Links between replicas, each of which Sailor takes for a machine of its own.

    bytes_per_ms, latency_ms: of the slowest card of each GPU type; in a cluster of one node the
    curve of its own link stands for both.
    """

    bytes_per_ms: tuple[float, ...]
    latency_ms: tuple[float, ...]
    curve: LinkCurve | None = None

    @classmethod
    def of(cls, problem: Problem, nodes: list[list[Node]]) -> Network:
        """The links of a cluster, nodes by GPU type. Raises ProfileMissing."""
        if len(problem.cluster.nodes) == 1:
            node = problem.cluster.nodes[0]
            if node.gpus == 1:
                return cls((1.0,), (0.0,))  # nothing to link
            curve = link_curve(problem, node, Operation.P2P, 2)
            return cls((curve.bytes_per_ms,), (0.0,), curve)
        return cls(
            tuple(min(nic_bytes_per_ms(problem, node) for node in of_type) for of_type in nodes),
            tuple(max(node.latency_ms for node in of_type) for of_type in nodes),
        )

    def send_ms(self, nbytes: float, sender: int, receiver: int) -> float:
        """One message between GPU types: the larger latency, the smaller bandwidth."""
        if self.curve is not None:
            return self.curve.time_ms(nbytes)
        latency = max(self.latency_ms[sender], self.latency_ms[receiver])
        return latency + nbytes / min(self.bytes_per_ms[sender], self.bytes_per_ms[receiver])

    def step_ms(self, nbytes: Floats, gpu: int) -> Floats:
        """One step of a ring on links of a GPU type, elementwise."""
        if self.curve is not None:
            flat = [self.curve.time_ms(size) for size in nbytes.ravel()]
            return np.array(flat).reshape(nbytes.shape)
        return np.asarray(self.latency_ms[gpu] + nbytes / self.bytes_per_ms[gpu])
