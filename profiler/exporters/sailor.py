"""Runs in Sailor's layout: planner profiles, sizes of layers, network fits.

The inverse of `profiler/importers/sailor_layers.py` and `sailor_network.py`: seconds; collectives
of a TP group go half into forward and half into backward; the optimizer step of the whole model
stands on every layer; sizes are numbers of elements at a micro-batch of 1, from the smallest
micro-batch of a TP degree. Bandwidths are fitted as Sailor fits them, by least squares:
GB/s = a u^2 + b u + c, u = log2(bytes / 1e6). Links between nodes stand in one zone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from profiler.exporters.run_rows import Exported, ExportOptions, RunRows
from profiler.exporters.tables import ModelTable, model_tables
from profiler.importers.sailor import GPU_NAMES, PLANNER_FOLDER
from profiler.importers.sailor_layers import SIZES_FILE
from profiler.importers.sailor_network import INTRA_FILE, MIXED_FILE, ZONES_FILE
from specs.layer import LayerKind
from specs.model import Model
from specs.profile import LinkProfile, Operation
from specs.topology import Topology
from specs.workload import DType

ZONE = "local-zone-a"  # Sailor cuts a region out of a zone's name at the second dash
FIT_POINTS = 3  # a parabola needs them


def write(rows: RunRows, options: ExportOptions) -> Exported:
    """Files of the layers, of the links, or of both, whichever the runs have.

    Raises SpecError where the layer rows are not of one model and workload.
    """
    names = {gpu: name for name, gpu in GPU_NAMES.items()} | dict(options.gpus)
    files: dict[str, Any] = {}
    notes: list[str] = []
    if rows.layers:
        model = rows.one_model(options.model)
        tables, notes = model_tables(rows, model)
        name = str(model.config.get("sailor_name", model.name))
        for gpu in dict.fromkeys(table.gpu for table in tables):
            file = f"{PLANNER_FOLDER}/{name}/{names.get(gpu, gpu)}/profile.json"
            files[file] = _times([table for table in tables if table.gpu == gpu], model)
        files[SIZES_FILE] = {name: _sizes(tables, model)}
    notes += _network(rows.links, names, files)
    if rows.hosts:
        notes.append("host rows have no place in this layout")
    texts = {file: json.dumps(content, indent=1) + "\n" for file, content in files.items()}
    return Exported(texts, tuple(notes))


def _times(tables: Iterable[ModelTable], model: Model) -> dict[str, Any]:
    times: dict[str, Any] = {}
    for table in tables:
        rows = [table.row(layer) for layer in model.layers]
        update = sum(row.update_ms for row in rows)
        times.setdefault(str(table.micro_batch), {})[str(table.tp)] = {
            str(i): [
                (row.forward_ms + row.comm_ms / 2) / 1e3,
                (row.backward_ms + row.comm_ms / 2) / 1e3,
                update / 1e3,
            ]
            for i, row in enumerate(rows)
        }
    return times


def _sizes(tables: Iterable[ModelTable], model: Model) -> dict[str, Any]:
    smallest: dict[int, ModelTable] = {}
    for table in tables:
        before = smallest.get(table.tp)
        if before is None or table.micro_batch < before.micro_batch:
            smallest[table.tp] = table
    sizes: dict[str, Any] = {}
    for tp, table in sorted(smallest.items()):
        entry: dict[str, Any] = {}
        for i, layer in enumerate(model.layers):
            row = table.row(layer)
            element = row.key.dtype.bytes
            output = 1 if layer.kind is LayerKind.HEAD else row.key.seq_len * model.hidden
            floats = {
                "params": round(row.parameter_bytes / element),
                "act_output": output,
                "act_input": row.key.seq_len * (1 if i == 0 else model.hidden),
                "act_mem": round(row.activation_bytes / table.micro_batch / element),
            }
            entry[str(i)] = {f"{name}_floats": count for name, count in floats.items()} | {
                f"{name}_bytes": count * DType.FP32.bytes for name, count in floats.items()
            }
        sizes[str(tp)] = entry
    return sizes


def _network(
    links: Iterable[LinkProfile], names: dict[str, str], files: dict[str, Any]
) -> list[str]:
    """Adds the network files; one line for each link with too few sizes to fit."""
    hops: dict[tuple[str, int], list[tuple[float, float]]] = {}  # (bytes, ms) of one ring step
    between: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    for row in links:
        if row.topology is Topology.INTER and row.operation is Operation.P2P:
            between.setdefault((row.gpu, row.peer, row.ranks // 2), []).append(
                (row.nbytes, row.time_ms)
            )
        elif row.topology is not Topology.INTER and row.operation is Operation.ALL_REDUCE:
            steps = 2 * (row.ranks - 1)
            hops.setdefault((row.gpu, row.ranks), []).append(
                (row.nbytes / row.ranks, row.time_ms / steps)
            )
    notes: list[str] = []
    for (gpu, ranks), points in hops.items():
        fitted = _fit(points)
        if fitted is None:
            notes.append(f"{gpu} x {ranks} inside a node has {len(points)} sizes: too few to fit")
            continue
        files.setdefault(INTRA_FILE, {}).setdefault(names.get(gpu, gpu), {})[str(ranks)] = fitted
    for (gpu, peer, count), points in between.items():
        fitted = _fit(points)
        if fitted is None:
            notes.append(f"{gpu} to {peer} x {count} has {len(points)} sizes: too few to fit")
            continue
        file = files.setdefault(ZONES_FILE if gpu == peer else MIXED_FILE, {})
        ends = file.setdefault(ZONE, {}).setdefault(names.get(gpu, gpu), {})
        here = ends.setdefault(str(count), {}).setdefault(ZONE, {})
        here.setdefault(names.get(peer, peer), {})[str(count)] = fitted
    return notes


def _fit(points: list[tuple[float, float]]) -> list[Any] | None:
    """[[a, b, c], best bytes/s] of (bytes, ms) points, None for fewer than three."""
    if len(points) < FIT_POINTS:
        return None
    import numpy as np

    sizes = np.array([size for size, _ in points])
    rates = sizes / np.array([ms for _, ms in points]) / 1e6  # bytes/ms -> GB/s
    fit = np.polyfit(np.log2(sizes / 1e6), rates, 2)
    return [[float(c) for c in fit], float(rates.max() * 1e9)]
