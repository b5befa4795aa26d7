"""Layer, link and host profiles in the store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, select

from db import tables
from db.engine import Database
from db.models import layer_type_ids
from db.records import StoredHost, StoredLayer, StoredLink, StoredRefusal
from db.rows import Row, big, gpu_type_ids, maybe, number, put, table_of, whole
from db.runs import read_runs, require_run
from specs.errors import StoreError
from specs.profile import (
    EntryStatus,
    HostProfile,
    LayerKey,
    LayerProfile,
    LayerRefusal,
    LinkProfile,
    Operation,
)
from specs.topology import Topology
from specs.workload import DType, Optimizer, Recompute

_LAYERS = table_of(tables.LayerProfile)
_LINKS = table_of(tables.LinkProfile)
_HOSTS = table_of(tables.HostProfile)
_GPUS = table_of(tables.GpuType)
_LAYER_TYPES = table_of(tables.LayerType)

_TIMES = ("forward_ms", "backward_ms", "comm_ms", "update_ms")
_BYTES = ("activation_bytes", "transient_bytes", "parameter_bytes", "expert_parameter_bytes")
_SPREADS = ("forward_mad_ms", "backward_mad_ms", "comm_mad_ms", "update_mad_ms")
_SIZES = ("tp", "micro_batch", "seq_len", "ep", "etp")
_WORDS = {"dtype": DType, "recompute": Recompute, "optimizer": Optimizer, "topology": Topology}

_KEY_COLUMNS = [
    _LAYERS.c[name]
    for name in (
        *("run_id", "gpu_type_id", "layer_type_id", "tp", "micro_batch", "seq_len"),
        *("dtype", "recompute", "optimizer", "topology", "ep", "etp"),
    )
]
_FIGURE_COLUMNS = [
    _LAYERS.c[name] for name in (*_TIMES, *_BYTES, "samples", *_SPREADS, "comm_included")
]


def _key_text(key: LayerKey) -> str:
    tiling = "" if key.ep == key.etp == 1 else f" ep {key.ep} etp {key.etp}"
    return (
        f"{key.gpu} layer type {key.layer_type} tp {key.tp} micro-batch {key.micro_batch} "
        f"length {key.seq_len} {key.dtype} {key.topology}{tiling}"
    )


def _layer_row(run_id: int, gpu: int, layer: int, entry: LayerProfile | LayerRefusal) -> Row:
    key = entry.key
    what = f"profile of {_key_text(key)}"
    row: Row = {"run_id": run_id, "gpu_type_id": gpu, "layer_type_id": layer}
    row |= {name: whole(what, name, getattr(key, name), least=1) for name in _SIZES}
    row |= {name: word(getattr(key, name)).value for name, word in _WORDS.items()}
    if isinstance(entry, LayerRefusal):
        if entry.status is EntryStatus.OK:
            raise StoreError(f"{what}: a refusal has status ok, expected why it was refused")
        row |= {"status": entry.status.value, "reason": entry.reason, "samples": None}
        row |= dict.fromkeys((*_TIMES, *_BYTES, *_SPREADS))
        row["comm_included"] = False
        return row
    row |= {"status": EntryStatus.OK.value, "reason": ""}
    row |= {name: number(what, name, getattr(entry, name)) for name in _TIMES}
    row |= {name: big(what, name, getattr(entry, name)) for name in _BYTES}
    row |= {name: maybe(what, name, getattr(entry, name)) for name in _SPREADS}
    row["samples"] = whole(what, "samples", entry.samples, least=1)
    row["comm_included"] = bool(entry.comm_included)
    return row


def _names(connection: Connection) -> tuple[dict[int, str], dict[int, str]]:
    """Names of GPU types and hashes of layer types, by id."""
    gpus = connection.execute(select(_GPUS.c.id, _GPUS.c.name))
    layers = connection.execute(select(_LAYER_TYPES.c.id, _LAYER_TYPES.c.hash))
    return dict(gpus.all()), dict(layers.all())


def _gpu_rule(column: ColumnElement[int], gpus: Collection[str]) -> ColumnElement[bool]:
    return column.in_(select(_GPUS.c.id).where(_GPUS.c.name.in_(sorted(set(gpus)))))


class _Keys:
    """Builds layer keys from rows; the few enum members are looked up, not made."""

    def __init__(self, gpus: dict[int, str], layers: dict[int, str]) -> None:
        self.gpus, self.layers = gpus, layers
        self.dtypes = {word.value: word for word in DType}
        self.recomputes = {word.value: word for word in Recompute}
        self.optimizers = {word.value: word for word in Optimizer}
        self.topologies = {word.value: word for word in Topology}

    def key(self, row: Sequence[Any]) -> LayerKey:
        """The key of a row that starts with _KEY_COLUMNS."""
        _, gpu, layer, tp, micro_batch, seq_len, dtype, recompute, optimizer, topology, ep, etp = (
            row[:12]
        )
        return LayerKey(
            self.gpus[gpu],
            self.layers[layer],
            tp,
            micro_batch,
            seq_len,
            self.dtypes[dtype],
            self.recomputes[recompute],
            self.optimizers[optimizer],
            self.topologies[topology],
            ep,
            etp,
        )


class ProfileQueries(Database):
    """Rows of profile runs: written in one transaction a call, read with their runs."""

    def add_layer_profiles(self, run_id: int, rows: Sequence[LayerProfile | LayerRefusal]) -> None:
        """Write rows of a run in one transaction; a key that the run has already is replaced.

        Raises StoreError for an unknown run or layer type, or a figure that is negative or no
        number; SpecError for a GPU type that the catalogue lacks. Then nothing is written.
        """
        with self.write() as connection:
            require_run(connection, run_id)
            gpus = gpu_type_ids(connection, (row.key.gpu for row in rows))
            layers = layer_type_ids(connection, (row.key.layer_type for row in rows))
            for row in rows:
                if row.key.layer_type not in layers:
                    raise StoreError(
                        f"no layer type {row.key.layer_type} in the store: its model must be "
                        "added before its profiles"
                    )
            put(
                connection,
                _LAYERS,
                [
                    _layer_row(run_id, gpus[row.key.gpu], layers[row.key.layer_type], row)
                    for row in rows
                ],
                replace=True,
            )

    def add_link_profiles(self, run_id: int, rows: Sequence[LinkProfile]) -> None:
        """Write link profiles of a run in one transaction; the same key again is replaced.

        Raises like `add_layer_profiles`.
        """
        with self.write() as connection:
            require_run(connection, run_id)
            gpus = gpu_type_ids(connection, (name for row in rows for name in (row.gpu, row.peer)))
            put(connection, _LINKS, [_link_row(run_id, gpus, row) for row in rows], replace=True)

    def add_host_profile(self, run_id: int, row: HostProfile) -> None:
        """Write the host profile of a run; of the same GPU type again is replaced.

        Raises like `add_layer_profiles`.
        """
        what = f"host profile of {row.gpu}"
        with self.write() as connection:
            require_run(connection, run_id)
            entry = {
                "run_id": run_id,
                "gpu_type_id": gpu_type_ids(connection, [row.gpu])[row.gpu],
                "host_ms": number(what, "host_ms", row.host_ms),
                "framework_bytes": big(what, "framework_bytes", row.framework_bytes),
                "usable_bytes": big(what, "usable_bytes", row.usable_bytes),
                "host_mad_ms": maybe(what, "host_mad_ms", row.host_mad_ms),
            }
            put(connection, _HOSTS, [entry], replace=True)

    def entries(self, run_id: int) -> dict[LayerKey, EntryStatus]:
        """What became of each layer key of a run. Raises StoreError where there is no such run."""
        with self.read() as connection:
            require_run(connection, run_id)
            keys = _Keys(*_names(connection))
            query = select(*_KEY_COLUMNS, _LAYERS.c.status).where(_LAYERS.c.run_id == run_id)
            return {keys.key(row): EntryStatus(row[12]) for row in connection.execute(query)}

    def layer_profiles(
        self,
        *,
        run_id: int | None = None,
        layer_types: Collection[str] | None = None,
        gpus: Collection[str] | None = None,
        seq_len: int | None = None,
        dtype: DType | None = None,
        recompute: Recompute | None = None,
        optimizer: Optimizer | None = None,
    ) -> list[StoredLayer]:
        """Rows with figures, by run id; what is None does not restrict.

        layer_types: hashes. Raises StoreError for a run_id that is not there.
        """
        rules: list[ColumnElement[bool]] = [_LAYERS.c.status == EntryStatus.OK.value]
        if layer_types is not None:
            wanted = select(_LAYER_TYPES.c.id).where(
                _LAYER_TYPES.c.hash.in_(sorted(set(layer_types)))
            )
            rules.append(_LAYERS.c.layer_type_id.in_(wanted))
        if gpus is not None:
            rules.append(_gpu_rule(_LAYERS.c.gpu_type_id, gpus))
        if seq_len is not None:
            rules.append(_LAYERS.c.seq_len == seq_len)
        for column, word in (("dtype", dtype), ("recompute", recompute), ("optimizer", optimizer)):
            if word is not None:
                rules.append(_LAYERS.c[column] == word.value)
        query = (
            select(*_KEY_COLUMNS, *_FIGURE_COLUMNS)
            .where(*rules)
            .order_by(_LAYERS.c.run_id, _LAYERS.c.id)
        )
        with self.read() as connection:
            if run_id is not None:
                require_run(connection, run_id)
                query = query.where(_LAYERS.c.run_id == run_id)
            runs = read_runs(connection)
            key = _Keys(*_names(connection)).key
            return [
                StoredLayer(runs[row[0]], LayerProfile(key(row), *row[12:]))
                for row in connection.execute(query)
            ]

    def layer_refusals(self, *, run_id: int | None = None) -> list[StoredRefusal]:
        """Keys that could not be profiled, of one run or all, by run id."""
        query = (
            select(*_KEY_COLUMNS, _LAYERS.c.status, _LAYERS.c.reason)
            .where(_LAYERS.c.status != EntryStatus.OK.value)
            .order_by(_LAYERS.c.run_id, _LAYERS.c.id)
        )
        with self.read() as connection:
            if run_id is not None:
                require_run(connection, run_id)
                query = query.where(_LAYERS.c.run_id == run_id)
            runs = read_runs(connection)
            key = _Keys(*_names(connection)).key
            return [
                StoredRefusal(runs[row[0]], LayerRefusal(key(row), EntryStatus(row[12]), row[13]))
                for row in connection.execute(query)
            ]

    def link_profiles(
        self, *, run_id: int | None = None, gpus: Collection[str] | None = None
    ) -> list[StoredLink]:
        """Link profiles by run id, of one run or all; gpus: the types at the sending end."""
        query = select(_LINKS).order_by(_LINKS.c.run_id, _LINKS.c.id)
        if gpus is not None:
            query = query.where(_gpu_rule(_LINKS.c.gpu_type_id, gpus))
        with self.read() as connection:
            if run_id is not None:
                require_run(connection, run_id)
                query = query.where(_LINKS.c.run_id == run_id)
            runs = read_runs(connection)
            names, _ = _names(connection)
            return [
                StoredLink(runs[row.run_id], _link_profile(names, row))
                for row in connection.execute(query)
            ]

    def host_profiles(
        self, *, run_id: int | None = None, gpus: Collection[str] | None = None
    ) -> list[StoredHost]:
        """Host profiles by run id, of one run or all, of these GPU types or all."""
        query = select(_HOSTS).order_by(_HOSTS.c.run_id, _HOSTS.c.id)
        if gpus is not None:
            query = query.where(_gpu_rule(_HOSTS.c.gpu_type_id, gpus))
        with self.read() as connection:
            if run_id is not None:
                require_run(connection, run_id)
                query = query.where(_HOSTS.c.run_id == run_id)
            runs = read_runs(connection)
            names, _ = _names(connection)
            return [
                StoredHost(
                    runs[row.run_id],
                    HostProfile(
                        names[row.gpu_type_id],
                        row.host_ms,
                        row.framework_bytes,
                        row.usable_bytes,
                        row.host_mad_ms,
                    ),
                )
                for row in connection.execute(query)
            ]


def _link_row(run_id: int, gpus: dict[str, int], row: LinkProfile) -> Row:
    what = f"link profile of {row.gpu} {row.operation} {row.nbytes} bytes"
    return {
        "run_id": run_id,
        "gpu_type_id": gpus[row.gpu],
        "peer_gpu_type_id": gpus[row.peer],
        "topology": Topology(row.topology).value,
        "operation": Operation(row.operation).value,
        "ranks": whole(what, "ranks", row.ranks, least=2),
        "nbytes": big(what, "nbytes", row.nbytes),
        "time_ms": number(what, "time_ms", row.time_ms),
        "samples": whole(what, "samples", row.samples, least=1),
        "mad_ms": maybe(what, "mad_ms", row.mad_ms),
    }


def _link_profile(names: dict[int, str], row: Any) -> LinkProfile:
    same = row.gpu_type_id == row.peer_gpu_type_id
    return LinkProfile(
        names[row.gpu_type_id],
        Topology(row.topology),
        Operation(row.operation),
        row.ranks,
        row.nbytes,
        row.time_ms,
        "" if same else names[row.peer_gpu_type_id],
        row.samples,
        row.mad_ms,
    )
