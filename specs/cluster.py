"""A cluster: nodes of one GPU type each, linked inside and between; written in YAML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from specs.errors import SpecError
from specs.files import Document, read_yaml_or_json, validate
from specs.gpu import gpu_type
from specs.topology import Topology
from specs.units import bytes_per_ms

DEFAULT_LATENCY_US = 10.0


@dataclass(frozen=True, slots=True)
class Node:
    """A host with GPUs of one type.

    bandwidth_gb_per_s: of its network card, full duplex, per direction; None = as the store's
    `inter` link profiles say. latency_us: of a message to another node.
    """

    name: str
    gpu: str
    gpus: int
    intra_node: Topology
    bandwidth_gb_per_s: float | None
    latency_us: float
    host: str = ""

    @property
    def nic_bytes_per_ms(self) -> float | None:
        """The network card's bandwidth in bytes/ms, None where link profiles must say."""
        if self.bandwidth_gb_per_s is None:
            return None
        return bytes_per_ms(self.bandwidth_gb_per_s)

    @property
    def latency_ms(self) -> float:
        """Latency of a message to another node, in ms."""
        return self.latency_us / 1000


@dataclass(frozen=True)
class Cluster:
    """Nodes in file order; every name is unique."""

    name: str
    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        if not self.nodes:
            raise SpecError(f"cluster {self.name!r} has no nodes, expected at least one GPU")
        twice = [
            name for name, count in Counter(node.name for node in self.nodes).items() if count > 1
        ]
        if twice:
            raise SpecError(
                f"cluster {self.name!r} names two nodes {twice[0]!r}, expected a name each"
            )

    @cached_property
    def node_by_name(self) -> dict[str, Node]:
        """Nodes by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def gpus_by_type(self) -> dict[str, int]:
        """GPUs of each type, in order of first appearance."""
        totals: dict[str, int] = {}
        for node in self.nodes:
            totals[node.gpu] = totals.get(node.gpu, 0) + node.gpus
        return totals

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return sum(node.gpus for node in self.nodes)

    def node(self, name: str) -> Node:
        """The node of that name. Raises SpecError for any other."""
        found = self.node_by_name.get(name)
        if found is None:
            raise SpecError(f"cluster {self.name!r} has no node {name!r}")
        return found

    def to_json(self) -> dict[str, Any]:
        """The cluster in the form of its file, one entry a node."""
        return {
            "name": self.name,
            "nodes": [
                {
                    "name": node.name,
                    "gpu": node.gpu,
                    "gpus": node.gpus,
                    "intra_node": node.intra_node.value,
                    "inter_node": _inter_node_json(node),
                    **({"hosts": [node.host]} if node.host else {}),
                }
                for node in self.nodes
            ],
        }


def _inter_node_json(node: Node) -> dict[str, Any]:
    if node.bandwidth_gb_per_s is None:
        return {"bandwidth": "measured", "latency_us": node.latency_us}
    return {"bandwidth_gb_per_s": node.bandwidth_gb_per_s, "latency_us": node.latency_us}


class InterNodeFile(Document):
    """A link between nodes: a figure, or `bandwidth: measured`."""

    bandwidth_gb_per_s: float | None = Field(
        None, gt=0, le=1e6, description="GB/s per direction, decimal"
    )
    bandwidth: Literal["measured"] | None = Field(
        None, description="take the store's link profiles"
    )
    latency_us: float | None = Field(None, ge=0, le=1e6, description="microseconds of one message")

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> InterNodeFile:
        if self.bandwidth is not None and self.bandwidth_gb_per_s is not None:
            raise ValueError("either bandwidth_gb_per_s or 'bandwidth: measured', not both")
        return self


class NodeFile(Document):
    """`count` equal nodes."""

    gpu: str = Field(description="a GPU type of the catalogue")
    gpus: int = Field(ge=1, le=64, description="GPUs in each node")
    count: int = Field(1, ge=1, le=100_000, description="how many such nodes")
    name: str | None = Field(
        None, min_length=1, max_length=200, description="default: <gpu>-<number>"
    )
    intra_node: Literal["nvswitch", "nvlink", "pcie", "host"] | None = Field(
        None, description="link inside the node; default: that of the GPU type"
    )
    inter_node: InterNodeFile | None = Field(None, description="this node's own network card")
    hosts: list[str] | None = Field(None, description="host names for launching, one a node")

    @model_validator(mode="after")
    def _a_host_each(self) -> NodeFile:
        if self.hosts is not None and len(self.hosts) != self.count:
            raise ValueError(f"hosts to name {self.count} hosts, one a node")
        return self


class ClusterFile(Document):
    """A cluster as people write it."""

    name: str = Field(min_length=1, max_length=200)
    inter_node: InterNodeFile | None = Field(
        None, description="link between nodes, where a node says nothing else"
    )
    nodes: list[NodeFile] = Field(min_length=1)


def cluster_from_document(content: Any, where: str | Path) -> Cluster:
    """The cluster of a parsed file. Raises SpecError with file, field, value and expectation."""
    document = validate(ClusterFile, content, where)
    numbers: Counter[str] = Counter()
    nodes: list[Node] = []
    for i, entry in enumerate(document.nodes):
        try:
            gpu = gpu_type(entry.gpu)
        except SpecError as error:
            raise SpecError(f"{where}: nodes[{i}].gpu: {error}") from None
        bandwidth, latency = _link(
            document.inter_node, entry.inter_node, where, i, len(document.nodes)
        )
        topology = Topology(entry.intra_node) if entry.intra_node else gpu.default_topology
        if gpu.is_cpu != (topology is Topology.HOST):
            raise SpecError.in_file(
                where, f"nodes[{i}].intra_node", topology.value, "host for cpu, and for cpu only"
            )
        for k in range(entry.count):
            if entry.name is None:
                name = f"{entry.gpu}-{numbers[entry.gpu]}"
                numbers[entry.gpu] += 1
            else:
                name = entry.name if entry.count == 1 else f"{entry.name}-{k}"
            host = entry.hosts[k] if entry.hosts else ""
            nodes.append(Node(name, entry.gpu, entry.gpus, topology, bandwidth, latency, host))
    try:
        return Cluster(document.name, tuple(nodes))
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None


def _link(
    common: InterNodeFile | None, own: InterNodeFile | None, where: str | Path, i: int, entries: int
) -> tuple[float | None, float]:
    """Bandwidth (None = measured) and latency of one entry; its own figures before the common."""
    latency = DEFAULT_LATENCY_US
    bandwidth: float | None = None
    said = False
    for link in (common, own):
        if link is None:
            continue
        if link.latency_us is not None:
            latency = link.latency_us
        if link.bandwidth_gb_per_s is not None or link.bandwidth is not None:
            bandwidth, said = link.bandwidth_gb_per_s, True
    if not said:
        raise SpecError.in_file(
            where,
            f"nodes[{i}].inter_node",
            None,
            "a bandwidth, here or for all nodes",
            "write inter_node: {bandwidth_gb_per_s: 12.5} or {bandwidth: measured}",
        )
    return bandwidth, latency


def load_cluster(path: str | Path) -> Cluster:
    """The cluster of a YAML or JSON file. Raises SpecError where the file is not right."""
    return cluster_from_document(read_yaml_or_json(path), path)


def topologies_of(nodes: Iterable[Node]) -> dict[str, set[Topology]]:
    """The intra-node topologies that each GPU type has in these nodes."""
    found: dict[str, set[Topology]] = {}
    for node in nodes:
        found.setdefault(node.gpu, set()).add(node.intra_node)
    return found
