"""Runs in Metis's layout: `DeviceType.<type>_tp<t>_bs<b>.json`, all fields its loader reads.

A layer's time is forward + backward + TP collectives, its memory is training state, activations
and transient; sizes of parameters are those at TP 1. Metis takes a `forward_backward_time_ms` equal
to the sum of the layers for a missing profile, so it is written 0.001 ms above it. Its own list of
types has A100, V100, P100 and T4 only: `--gpu-name a100-40gb=A100` writes one of those.
"""

from __future__ import annotations

import json
from typing import Any

from profiler.exporters.run_rows import Exported, ExportOptions, RunRows
from profiler.exporters.tables import ModelTable, model_tables
from specs.errors import SpecError
from specs.model import Model
from specs.units import MIB
from specs.workload import STATE_BYTES_PER_PARAMETER

SYNC_MS = 0.001


def write(rows: RunRows, options: ExportOptions) -> Exported:
    """One file per GPU type, TP degree and micro-batch that has all layers of the model.

    Raises SpecError where the rows are not of one model and workload, or two GPU types get the
    same name.
    """
    model = rows.one_model(options.model)
    tables, notes = model_tables(rows, model)
    hosts = {host.gpu: host for host in rows.hosts}
    files: dict[str, str] = {}
    for table in tables:
        gpu = options.gpus.get(table.gpu, table.gpu.upper())
        name = f"DeviceType.{gpu}_tp{table.tp}_bs{table.micro_batch}.json"
        if name in files:
            raise SpecError(f"two GPU types are both called {gpu}: add another --gpu-name")
        host_ms = hosts[table.gpu].host_ms if table.gpu in hosts else 0.0
        files[name] = json.dumps(_profile(table, model, host_ms), indent=2) + "\n"
    for gpu in dict.fromkeys(table.gpu for table in tables):
        if gpu not in hosts:
            notes.append(f"no host row of {gpu} in these runs: batch_generator_time_ms is 0")
    if rows.links:
        notes.append("link rows have no place in this layout")
    return Exported(files, tuple(notes))


def _profile(table: ModelTable, model: Model, host_ms: float) -> dict[str, Any]:
    rows = [table.row(layer) for layer in model.layers]
    key = rows[0].key
    state = STATE_BYTES_PER_PARAMETER[(key.dtype, key.optimizer)] / key.dtype.bytes
    layer_ms = [row.forward_ms + row.backward_ms + row.comm_ms for row in rows]
    update_ms = sum(row.update_ms for row in rows)
    memory_mb = [
        (row.parameter_bytes * state + row.activation_bytes + row.transient_bytes) / MIB
        for row in rows
    ]
    weights = [layer.parameters * key.dtype.bytes for layer in model.layers]
    both_ms = sum(layer_ms) + SYNC_MS
    return {
        "model": {
            "model_name": model.name,
            "num_layers": len(rows),
            "parameters": {
                "total_parameters_bytes": sum(weights),
                "parameters_per_layer_bytes": weights,
            },
        },
        "execution_time": {
            "total_time_ms": both_ms + host_ms + update_ms,
            "forward_backward_time_ms": both_ms,
            "batch_generator_time_ms": host_ms,
            "layernorm_grads_all_reduce_time_ms": 0.0,
            "embedding_grads_all_reduce_time_ms": 0.0,
            "optimizer_time_ms": update_ms,
            "layer_compute_total_ms": layer_ms,
        },
        "execution_memory": {
            "total_memory_mb": sum(memory_mb),
            "layer_memory_total_mb": memory_mb,
        },
    }
