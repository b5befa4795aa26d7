"""A run as CSV files, in the form of `profiler/importers/csv_form.py`; nothing is lost."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from profiler.exporters.run_rows import Exported, ExportOptions, RunRows
from profiler.importers.csv_form import (
    COLUMNS,
    HOSTS_FILE,
    LAYER_TYPES_FILE,
    LAYERS_FILE,
    LINKS_FILE,
    RUN_FILE,
)
from specs.profile import EntryStatus, LayerProfile, LayerRefusal

_KEY = (
    *("layer_type", "gpu", "tp", "micro_batch", "seq_len", "dtype", "recompute", "optimizer"),
    *("topology", "ep", "etp"),
)
_FIGURES = (
    *("forward_ms", "backward_ms", "comm_ms", "update_ms"),
    *("activation_bytes", "transient_bytes", "parameter_bytes", "expert_parameter_bytes"),
    *("samples", "forward_mad_ms", "backward_mad_ms", "comm_mad_ms", "update_mad_ms"),
    "comm_included",
)


def write(rows: RunRows, options: ExportOptions) -> Exported:
    """The files of these runs, but for those without a row; `run.json` says where they are from."""
    layers = [_layer(row, rows) for row in rows.layers]
    layers += [_layer(row, rows) for row in rows.refusals]
    tables: dict[str, Sequence[Mapping[str, Any]]] = {
        LAYERS_FILE: layers,
        LINKS_FILE: [
            {column.name: getattr(row, column.name) for column in COLUMNS[LINKS_FILE]}
            for row in rows.links
        ],
        HOSTS_FILE: [
            {column.name: getattr(row, column.name) for column in COLUMNS[HOSTS_FILE]}
            for row in rows.hosts
        ],
        LAYER_TYPES_FILE: [
            {
                "layer_type": layer.hash,
                "kind": layer.kind,
                "parameters": layer.parameters,
                "expert_parameters": layer.expert_parameters,
                "shapes": json.dumps(layer.shapes),
            }
            for layer in rows.layer_types.values()
        ],
    }
    files = {name: _text(name, table) for name, table in tables.items() if table}
    files[RUN_FILE] = json.dumps(_facts(rows), indent=2) + "\n"
    return Exported(files)


def _layer(row: LayerProfile | LayerRefusal, rows: RunRows) -> dict[str, Any]:
    cells = {name: getattr(row.key, name) for name in _KEY}
    cells["layer"] = rows.layer_types[row.key.layer_type].kind
    if isinstance(row, LayerRefusal):
        return cells | {"status": row.status, "reason": row.reason}
    return cells | {name: getattr(row, name) for name in _FIGURES} | {"status": EntryStatus.OK}


def _text(name: str, table: Iterable[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    header = [column.name for column in COLUMNS[name] if column.name != "model"]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for cells in table:
        writer.writerow([_cell(cells.get(column)) for column in header])
    return out.getvalue()


def _cell(value: Any) -> str:
    """Floats with every digit, nothing for what is not known."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def _facts(rows: RunRows) -> dict[str, Any]:
    def joined(name: str) -> str:
        return "; ".join(dict.fromkeys(str(v) for r in rows.runs if (v := getattr(r.run, name))))

    facts: dict[str, Any] = {"source": rows.source.value, "runs": [run.id for run in rows.runs]}
    names = ("origin", "licence", "host", "driver", "torch_version", "nccl_version")
    return facts | {name: joined(name) for name in names}
