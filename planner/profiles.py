"""The profile rows that the cost model reads, and the rule that picks them from a store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from planner.links import LinkCurve
from specs.cluster import Cluster, Node, topologies_of
from specs.errors import ProfileMissing
from specs.gpu import gpu_type
from specs.host import host_fingerprint
from specs.model import Model
from specs.profile import HostProfile, LayerProfile, LinkProfile, Operation, ProfileRun, Source
from specs.topology import Topology
from specs.workload import Workload

if TYPE_CHECKING:
    from db.records import StoredLayer
    from db.store import Store

__all__ = [
    "HostKey",
    "LayerRowKey",
    "LinkCurve",
    "LinkKey",
    "Origin",
    "ProfileSet",
    "load_profiles",
]


class LayerRowKey(NamedTuple):
    """What tells layer rows of one workload apart; topology is None where no collective runs."""

    gpu: str
    layer_type: str
    tp: int
    micro_batch: int
    topology: Topology | None
    ep: int = 1
    etp: int = 1


class LinkKey(NamedTuple):
    """What tells link curves apart."""

    gpu: str
    peer: str
    topology: Topology
    operation: Operation
    ranks: int


class HostKey(NamedTuple):
    """What tells host rows apart."""

    gpu: str


class Origin(NamedTuple):
    """Where a row comes from."""

    run_id: int
    source: Source


Key = LayerRowKey | LinkKey | HostKey


@dataclass(frozen=True)
class ProfileSet:
    """Rows for one workload; every lookup is an exact match, None where there is no row.

    origins: run and source of every row. warnings: what a reader of a prediction must know.
    host rows are as stored: the memory of a `cpu` is the whole host's (see planner/memory.py).
    """

    layers: Mapping[LayerRowKey, LayerProfile]
    links: Mapping[LinkKey, LinkCurve]
    hosts: Mapping[str, HostProfile]
    origins: Mapping[Key, Origin] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @classmethod
    def of_rows(
        cls,
        layers: Iterable[LayerProfile],
        links: Iterable[LinkProfile],
        hosts: Iterable[HostProfile],
        origin: Origin | None = None,
    ) -> ProfileSet:
        """The set of these rows, all of one workload and one origin; a later row replaces."""
        layer_rows = {layer_row_key(row): row for row in layers}
        points: dict[LinkKey, dict[int, float]] = defaultdict(dict)
        for link in links:
            points[link_key(link)][link.nbytes] = link.time_ms
        curves = {key: LinkCurve.of(found.items()) for key, found in points.items()}
        host_rows = {row.gpu: row for row in hosts}
        origins: dict[Key, Origin] = {}
        if origin is not None:
            origins |= dict.fromkeys(layer_rows, origin)
            origins |= dict.fromkeys(curves, origin)
            origins |= {HostKey(gpu): origin for gpu in host_rows}
        return cls(layer_rows, curves, host_rows, origins)

    def layer(
        self,
        gpu: str,
        layer_type: str,
        tp: int,
        micro_batch: int,
        topology: Topology,
        ep: int = 1,
        etp: int = 1,
    ) -> LayerProfile | None:
        """The row of one layer type (by hash); with tp = etp = 1 the topology does not matter."""
        where = None if tp == 1 and etp == 1 else topology
        return self.layers.get(LayerRowKey(gpu, layer_type, tp, micro_batch, where, ep, etp))

    def link(
        self, gpu: str, peer: str, topology: Topology, operation: Operation, ranks: int
    ) -> LinkCurve | None:
        """The curve of an operation between these GPU types, in either direction."""
        key = LinkKey(gpu, peer, topology, operation, ranks)
        return self.links.get(key) or self.links.get(key._replace(gpu=peer, peer=gpu))

    def host(self, gpu: str) -> HostProfile | None:
        """The host row of a GPU type."""
        return self.hosts.get(gpu)

    @cached_property
    def _degrees(self) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
        tps: dict[str, set[int]] = defaultdict(set)
        batches: dict[str, set[int]] = defaultdict(set)
        for key in self.layers:
            tps[key.gpu].add(key.tp)
            batches[key.gpu].add(key.micro_batch)
        return {gpu: (tuple(sorted(tps[gpu])), tuple(sorted(batches[gpu]))) for gpu in tps}

    def tps(self, gpu: str) -> tuple[int, ...]:
        """TP degrees that a GPU type has rows of, rising."""
        return self._degrees.get(gpu, ((), ()))[0]

    def micro_batches(self, gpu: str) -> tuple[int, ...]:
        """Micro-batch sizes that a GPU type has rows of, rising."""
        return self._degrees.get(gpu, ((), ()))[1]

    @cached_property
    def _bus(self) -> dict[tuple[str, Topology], tuple[LinkKey, float]]:
        found: dict[tuple[str, Topology], tuple[LinkKey, float]] = {}
        for key, curve in self.links.items():
            if key.operation is not Operation.ALL_REDUCE or key.ranks < 2 or key.gpu != key.peer:
                continue
            here = (key.gpu, key.topology)
            if here not in found or key.ranks > found[here][0].ranks:
                share = 2 * (key.ranks - 1) / key.ranks
                found[here] = (key, share * curve.nbytes[-1] / curve.times_ms[-1])
        return found

    def bus_bytes_per_ms(self, gpu: str, topology: Topology) -> float | None:
        """Bus bandwidth of a node link, in bytes/ms.

        2 (n-1)/n * bytes / time of its all_reduce row with the most ranks n and, of these, the
        most bytes (DESIGN section 13, 11).
        """
        found = self._bus.get((gpu, topology))
        return found[1] if found else None

    def bus_key(self, gpu: str, topology: Topology) -> LinkKey | None:
        """The curve that the bus bandwidth comes from."""
        found = self._bus.get((gpu, topology))
        return found[0] if found else None

    def inter_key(self, gpu: str, gpus: int = 1) -> LinkKey | None:
        """The `inter` point-to-point curve of nodes with so many GPUs of a type.

        To their own kind, of as many pairs that send at once as there are GPUs (2n ranks are n
        pairs), else of the most pairs below; without one, the fastest to another kind.
        """
        inter = [
            key
            for key in self.links
            if key.topology is Topology.INTER
            and key.operation is Operation.P2P
            and gpu in (key.gpu, key.peer)
            and key.ranks <= max(2, 2 * gpus)
        ]
        own = [key for key in inter if key.gpu == key.peer]
        if own:
            return max(own, key=lambda key: key.ranks)
        return max(inter, key=lambda key: (self.links[key].bytes_per_ms, key), default=None)

    def nic_bytes_per_ms(self, node: Node) -> float | None:
        """Bandwidth of a node's network card per direction, in bytes/ms.

        The cluster file's figure; where it says `bandwidth: measured`, that of the `inter` link
        rows (DESIGN section 13, 7); None where there are none.
        """
        if node.nic_bytes_per_ms is not None:
            return node.nic_bytes_per_ms
        key = self.inter_key(node.gpu, node.gpus)
        return self.links[key].bytes_per_ms if key else None

    @cached_property
    def run_ids(self) -> tuple[int, ...]:
        """Profile runs of all rows, rising."""
        return tuple(sorted({origin.run_id for origin in self.origins.values()}))

    @cached_property
    def sources(self) -> dict[str, Source]:
        """The least trusted source among the layer rows of each GPU type."""
        order = list(Source)
        found: dict[str, Source] = {}
        for key, origin in self.origins.items():
            if isinstance(key, LayerRowKey):
                before = found.get(key.gpu, origin.source)
                found[key.gpu] = max(before, origin.source, key=order.index)
        return found


def layer_row_key(row: LayerProfile) -> LayerRowKey:
    """The key of a layer row within its workload."""
    key = row.key
    topology = None if key.tp == 1 and key.etp == 1 else key.topology
    return LayerRowKey(key.gpu, key.layer_type, key.tp, key.micro_batch, topology, key.ep, key.etp)


def link_key(row: LinkProfile) -> LinkKey:
    """The key of the curve that a link row is a point of."""
    return LinkKey(row.gpu, row.peer, row.topology, row.operation, row.ranks)


def load_profiles(
    store: Store,
    model: Model,
    workload: Workload,
    cluster: Cluster,
    *,
    source: Source | None = None,
    complete: bool = True,
) -> ProfileSet:
    """The rows for this model, workload and cluster, by the rule of DESIGN section 4.

    Per (GPU type, TP, topology) the first source in the order measured, imported, estimated, or
    `source` alone, that holds every layer type of the model at the workload's key; within it the
    newest row per key. Link curves and host rows come first from the sources that the GPU type's
    layer rows have, so that one answer does not mix them without need, then from the others in
    order; a curve is taken whole from the newest run that has it. Rows of `cpu` count only where
    they were measured on this host. Raises ProfileMissing with the command that completes the
    store where a GPU type of the cluster has no TP degree with every layer type, no host row, or
    no links that its nodes need;
    complete=False leaves that to the first lookup that finds nothing.
    """
    order = [source] if source is not None else list(Source)
    topologies = topologies_of(cluster.nodes)
    origins: dict[Key, Origin] = {}
    layers, warnings = _choose_layers(store, model, workload, topologies, order, origins)
    orders = {gpu: _order_like_layers(gpu, origins, order) for gpu in topologies}
    links = _choose_links(store, topologies, orders, origins)
    hosts = _choose_hosts(store, topologies, orders, origins)
    warnings += _bandwidth_warnings(links, cluster)
    for key in _unused_inter_links(links, cluster):
        del links[key], origins[key]
    found = ProfileSet(layers, links, hosts, origins, tuple(warnings))
    if complete:
        from planner.missing import what_is_missing  # it reads profile sets: imported late

        complaint = what_is_missing(found, model, workload, cluster)
        if complaint:
            raise ProfileMissing(complaint)
    return found


def _counts_here(gpu: str, run: ProfileRun) -> bool:
    """Whether rows of a run are true here: those of `cpu` only on the host that measured them."""
    return not gpu_type(gpu).is_cpu or run.run.host == host_fingerprint()


def _choose_layers(
    store: Store,
    model: Model,
    workload: Workload,
    topologies: Mapping[str, set[Topology]],
    order: Sequence[Source],
    origins: dict[Key, Origin],
) -> tuple[dict[LayerRowKey, LayerProfile], list[str]]:
    hashes = {layer.hash for layer in model.layer_types}
    rows: dict[tuple[str, int], dict[Source, dict[LayerRowKey, StoredLayer]]] = {}
    for stored in store.layer_profiles(
        layer_types=hashes,
        gpus=set(topologies),
        seq_len=workload.seq_len,
        dtype=workload.dtype,
        recompute=workload.recompute,
        optimizer=workload.optimizer,
    ):  # rising run ids: a newer row replaces an older one
        key = layer_row_key(stored.profile)
        if _counts_here(key.gpu, stored.run):
            by_source = rows.setdefault((key.gpu, key.tp), {})
            by_source.setdefault(stored.run.run.source, {})[key] = stored
    chosen: dict[LayerRowKey, StoredLayer] = {}
    for (gpu, _), by_source in rows.items():
        for topology in sorted(topologies[gpu]):
            for source in order:
                here = {
                    key: stored
                    for key, stored in by_source.get(source, {}).items()
                    if key.topology in (None, topology)
                }
                if holds_every_layer(here, hashes):
                    chosen |= here
                    break
    for key, stored in chosen.items():
        origins[key] = Origin(stored.run.id, stored.run.run.source)
    layers = {key: stored.profile for key, stored in chosen.items()}
    return layers, _version_warnings(chosen.values())


def holds_every_layer(keys: Iterable[LayerRowKey], layer_types: set[str]) -> bool:
    """Whether rows of one (GPU type, TP) have every layer type at one micro-batch size at least."""
    by_batch: dict[int, set[str]] = defaultdict(set)
    for key in keys:
        by_batch[key.micro_batch].add(key.layer_type)
    return any(found == layer_types for found in by_batch.values())


def _order_like_layers(
    gpu: str, origins: Mapping[Key, Origin], order: Sequence[Source]
) -> list[Source]:
    """The sources of a GPU type's layer rows before the others, each part in the order of trust."""
    used = {
        origin.source
        for key, origin in origins.items()
        if isinstance(key, LayerRowKey) and key.gpu == gpu
    }
    return sorted(order, key=lambda source: (source not in used, order.index(source)))


def by_trust(origins: Iterable[Origin], order: Sequence[Source]) -> Origin:
    """Of several origins the newest run of the first source in the order."""
    return min(origins, key=lambda origin: (order.index(origin.source), -origin.run_id))


def _choose_links(
    store: Store,
    topologies: Mapping[str, set[Topology]],
    orders: Mapping[str, Sequence[Source]],
    origins: dict[Key, Origin],
) -> dict[LinkKey, LinkCurve]:
    points: dict[LinkKey, dict[Origin, dict[int, float]]] = {}
    for stored in store.link_profiles(gpus=set(topologies)):
        key = link_key(stored.profile)
        order = orders[key.gpu]
        if stored.run.run.source not in order or not _counts_here(key.gpu, stored.run):
            continue
        origin = Origin(stored.run.id, stored.run.run.source)
        points.setdefault(key, {}).setdefault(origin, {})[stored.profile.nbytes] = (
            stored.profile.time_ms
        )
    curves: dict[LinkKey, LinkCurve] = {}
    for key, by_origin in points.items():
        origin = by_trust(by_origin, orders[key.gpu])
        origins[key] = origin
        curves[key] = LinkCurve.of(by_origin[origin].items())
    return curves


def _choose_hosts(
    store: Store,
    topologies: Mapping[str, set[Topology]],
    orders: Mapping[str, Sequence[Source]],
    origins: dict[Key, Origin],
) -> dict[str, HostProfile]:
    found: dict[str, HostProfile] = {}
    for stored in store.host_profiles(gpus=set(topologies)):
        gpu, source = stored.profile.gpu, stored.run.run.source
        order = orders[gpu]
        if source not in order or not _counts_here(gpu, stored.run):
            continue
        before = origins.get(HostKey(gpu))
        if before is None or order.index(source) <= order.index(before.source):
            origins[HostKey(gpu)] = Origin(stored.run.id, source)
            found[gpu] = stored.profile
    return found


def _version_warnings(rows: Iterable[StoredLayer]) -> list[str]:
    """One line per GPU type whose rows come from different drivers, torch versions, topologies."""
    facts: dict[str, dict[str, set[str]]] = {}
    for stored in rows:
        new = stored.run.run
        here = facts.setdefault(stored.profile.key.gpu, defaultdict(set))
        here["driver"].add(new.driver)
        here["torch"].add(new.torch_version)
        here["topology"].add(stored.profile.key.topology.value)
    return [
        f"the profile rows of {gpu} used here differ in {name}: {', '.join(sorted(values))}"
        for gpu, here in facts.items()
        for name, values in here.items()
        if len(values - {""}) > 1
    ]


def _unused_inter_links(links: Iterable[LinkKey], cluster: Cluster) -> list[LinkKey]:
    """`inter` curves between GPU types whose nodes all have a figure in the cluster file."""
    measured = {node.gpu for node in cluster.nodes if node.nic_bytes_per_ms is None}
    return [
        key
        for key in links
        if key.topology is Topology.INTER and not measured & {key.gpu, key.peer}
    ]


def _bandwidth_warnings(links: Mapping[LinkKey, LinkCurve], cluster: Cluster) -> list[str]:
    """One line per GPU type whose cluster file and `inter` link rows differ by more than 20 %."""
    profiles = ProfileSet({}, links, {})
    said: dict[tuple[str, float], str] = {}
    for node in cluster.nodes:
        key = profiles.inter_key(node.gpu, node.gpus)
        if key is None or node.nic_bytes_per_ms is None:
            continue
        measured, file = links[key].bytes_per_ms, node.nic_bytes_per_ms
        if abs(measured - file) > 0.2 * file:
            said[node.gpu, file] = (
                f"the cluster file gives {node.gpu} nodes {file / 1e6:.2f} GB/s between nodes, "
                f"link profiles {measured / 1e6:.2f} GB/s: the file is used"
            )
    return list(said.values())
