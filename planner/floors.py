"""The least that layers, links and nodes can cost: what the lower bounds are computed from."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from planner.memory import limit_bytes, shared_matrix_elements
from planner.problem import Problem
from specs.errors import ProfileMissing
from specs.layer import LayerKind, LayerType
from specs.profile import LayerProfile, Operation
from specs.topology import Topology


@dataclass(frozen=True, slots=True)
class NodeClass:
    """Nodes that differ in nothing but their network card.

    size: GPUs of each. nodes: how many. nic_bytes_per_ms: the fastest of their cards (inf where
    no figure is known, which no plan can then use). latency_ms: the least. room_bytes: limit of
    one GPU less the framework constant. host_ms: overhead of one micro-batch on one stage.
    """

    gpu: str
    topology: Topology
    size: int
    nodes: int
    nic_bytes_per_ms: float
    latency_ms: float
    room_bytes: float
    host_ms: float

    @property
    def gpus(self) -> int:
        """GPUs of the class."""
        return self.size * self.nodes


@dataclass(frozen=True, slots=True)
class LayerFloor:
    """The least of every figure of one layer at one (class, TP, micro-batch), per GPU.

    time_ms: forward + backward + comm of one micro-batch. The figures are those of the one row of
    a dense layer; of a MoE layer each is the least over all expert tilings that have a row, so
    that no tiling is below it. state_bytes, activation_bytes (per micro-batch in flight),
    transient_bytes: memory (DESIGN section 13, 15). update_ms: optimizer step.
    """

    time_ms: float
    update_ms: float
    state_bytes: float
    activation_bytes: float
    transient_bytes: float

    @property
    def alone_bytes(self) -> float:
        """Memory of the layer alone on a GPU, with one micro-batch in flight."""
        return self.state_bytes + self.activation_bytes + self.transient_bytes


FloorKey = tuple[int, int, int, str]  # class index, TP, micro-batch, layer type hash


@dataclass(frozen=True)
class Floors:
    """Node classes of a cluster that can hold any layer, and what layers cost least there."""

    classes: tuple[NodeClass, ...]
    layers: Mapping[FloorKey, LayerFloor]
    options: Mapping[int, tuple[tuple[int, int], ...]]  # micro-batch -> (class index, TP)

    @classmethod
    def of(cls, problem: Problem) -> Floors:
        """The floors of a problem. A class of nodes without host row or layer rows is left out."""
        classes = _classes(problem)
        rows = _rows_by_key(problem)
        layers: dict[FloorKey, LayerFloor] = {}
        options: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for c, kind in enumerate(classes):
            for tp in problem.profiles.tps(kind.gpu):
                if tp > kind.size:
                    continue
                for b in problem.profiles.micro_batches(kind.gpu):
                    found = False
                    for layer in problem.model.layer_types:
                        usable = [
                            row
                            for topology in (None, kind.topology)
                            for row in rows.get((kind.gpu, layer.hash, tp, b, topology), [])
                            if _tiling_exists(problem, layer, row)
                        ]
                        if usable:
                            layers[c, tp, b, layer.hash] = _floor(problem, layer, usable)
                            found = True
                    if found:
                        options[b].append((c, tp))
        return cls(tuple(classes), layers, {b: tuple(options[b]) for b in sorted(options)})

    def fitting(self, c: int, layer: LayerType) -> list[tuple[int, int, LayerFloor]]:
        """(TP, micro-batch, floor) of a layer where it fits the memory of a class by itself."""
        return [
            (tp, b, floor)
            for b, options in self.options.items()
            for k, tp in options
            if k == c and (floor := self.layers.get((c, tp, b, layer.hash))) is not None
            if floor.alone_bytes <= self.classes[c].room_bytes
        ]


def _classes(problem: Problem) -> list[NodeClass]:
    groups = defaultdict(list)
    for node in problem.cluster.nodes:
        groups[node.gpu, node.intra_node, node.gpus].append(node)
    found = []
    for (gpu, topology, size), nodes in groups.items():
        host = problem.profiles.host(gpu)
        if host is None:
            continue
        cards = [problem.profiles.nic_bytes_per_ms(node) for node in nodes]
        found.append(
            NodeClass(
                gpu,
                topology,
                size,
                len(nodes),
                max(math.inf if card is None else card for card in cards),
                min(node.latency_ms for node in nodes),
                max(limit_bytes(problem, node) for node in nodes) - host.framework_bytes,
                host.host_ms,
            )
        )
    return found


def _rows_by_key(
    problem: Problem,
) -> dict[tuple[str, str, int, int, Topology | None], list[LayerProfile]]:
    rows = defaultdict(list)
    for key, row in problem.profiles.layers.items():
        rows[key.gpu, key.layer_type, key.tp, key.micro_batch, key.topology].append(row)
    return rows


def _tiling_exists(problem: Problem, layer: LayerType, row: LayerProfile) -> bool:
    """Whether a plan can use the row: a dense layer is never tiled, a MoE layer as allowed."""
    tiling = (row.key.ep, row.key.etp)
    if not layer.expert_parameters:
        return tiling == (1, 1)
    return problem.expert_tiling or tiling == (1, row.key.tp)


def _floor(problem: Problem, layer: LayerType, rows: list[LayerProfile]) -> LayerFloor:
    workload = problem.workload
    per_byte = workload.state_bytes_per_parameter / workload.dtype.bytes
    floors = []
    for row in rows:
        held = float(row.parameter_bytes)
        if layer.kind is LayerKind.HEAD and problem.model.tied:
            # With d = 1 the shared matrix counts with the embedding (DESIGN section 13, 13).
            shared = shared_matrix_elements(problem.model) * workload.dtype.bytes / row.key.tp
            held = max(0.0, held - shared)
        share = held / row.parameter_bytes if row.parameter_bytes else 1.0
        floors.append(
            LayerFloor(
                row.forward_ms + row.backward_ms + row.comm_ms,
                row.update_ms * share,
                (held + row.expert_parameter_bytes) * per_byte,
                row.activation_bytes,
                row.transient_bytes,
            )
        )
    return LayerFloor(
        min(floor.time_ms for floor in floors),
        min(floor.update_ms for floor in floors),
        min(floor.state_bytes for floor in floors),
        min(floor.activation_bytes for floor in floors),
        min(floor.transient_bytes for floor in floors),
    )


def neighbour_send_ms(problem: Problem, kind: NodeClass, nbytes: float) -> float:
    """Time of a tensor between two stages on one node of a class, inf where no link is known."""
    if kind.size < 2:
        return math.inf
    curve = problem.profiles.link(kind.gpu, kind.gpu, kind.topology, Operation.P2P, 2)
    return math.inf if curve is None else curve.time_ms(nbytes)


def gradient_bytes(problem: Problem) -> tuple[float, ...]:
    """G_l of every layer of the model without its routed experts, in bytes.

    A tied matrix counts once, with the embedding (DESIGN section 13, 11 and 13).
    """
    model, each = problem.model, problem.workload.dtype.bytes
    sizes = [float(layer.parameters * each) for layer in model.layers]
    sizes[-1] -= shared_matrix_elements(model) * each
    return tuple(sizes)


def require_layers(problem: Problem, floors: Floors) -> None:
    """Raises ProfileMissing where some layer type has no row on any node of the cluster."""
    for layer in problem.model.layer_types:
        if not any(key[3] == layer.hash for key in floors.layers):
            raise ProfileMissing(
                f"no profile of {layer.kind.value} on any GPU type of cluster "
                f"{problem.cluster.name!r}"
            )
