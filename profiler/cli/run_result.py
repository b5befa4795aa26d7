"""What a profile run says at its end, and what a dry run says: as documents and as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from specs.model import Model
from specs.profile import HostProfile, LayerKey, LayerProfile, LayerRefusal
from specs.units import MIB, human_bytes

if TYPE_CHECKING:
    from db.store import Store
    from profiler.measure.entries import Entry, Question
    from profiler.measure.run import Finished

Document = dict[str, Any]

TIMES = ("forward", "backward", "comm", "update")
NOISY = 0.1  # a median absolute deviation above this share of the median is marked


def run_document(store: Store, finished: Finished, model: Model) -> Document:
    """A run as one document: its rows, the refused keys with reasons, the host row."""
    run = store.profile_run(finished.run_id)
    kinds = {layer.hash: layer.label for layer in model.layer_types}
    hosts = [stored.profile for stored in store.host_profiles(run_id=run.id)]
    return {
        "run_id": run.id,
        "status": run.status.value,
        "origin": run.run.origin,
        "host": run.run.host,
        "torch_version": run.run.torch_version,
        "reference_ms": run.run.reference_ms,
        "drift": finished.drift,
        "rows": [
            layer_document(stored.profile, kinds)
            | {"unsteady": stored.profile.key in finished.unsteady}
            for stored in store.layer_profiles(run_id=run.id)
        ],
        "refused": [
            refusal_document(stored.refusal, kinds)
            for stored in store.layer_refusals(run_id=run.id)
        ],
        "host_rows": [host_document(row) for row in hosts],
    }


def key_fields(key: LayerKey, kinds: dict[str, str]) -> Document:
    """A layer key as a document, with the kind of layer in words."""
    return {
        "gpu": key.gpu,
        "layer": kinds.get(key.layer_type, ""),
        "layer_type": key.layer_type,
        "tp": key.tp,
        "micro_batch": key.micro_batch,
        "seq_len": key.seq_len,
        "dtype": key.dtype.value,
        "recompute": key.recompute.value,
        "optimizer": key.optimizer.value,
        "topology": key.topology.value,
        "ep": key.ep,
        "etp": key.etp,
    }


def layer_document(row: LayerProfile, kinds: dict[str, str]) -> Document:
    """One measured row as a document."""
    return key_fields(row.key, kinds) | {
        "forward_ms": row.forward_ms,
        "backward_ms": row.backward_ms,
        "comm_ms": row.comm_ms,
        "update_ms": row.update_ms,
        "forward_mad_ms": row.forward_mad_ms,
        "backward_mad_ms": row.backward_mad_ms,
        "comm_mad_ms": row.comm_mad_ms,
        "update_mad_ms": row.update_mad_ms,
        "samples": row.samples,
        "activation_bytes": row.activation_bytes,
        "transient_bytes": row.transient_bytes,
        "parameter_bytes": row.parameter_bytes,
        "expert_parameter_bytes": row.expert_parameter_bytes,
    }


def refusal_document(refusal: LayerRefusal, kinds: dict[str, str]) -> Document:
    """One refused key as a document."""
    return key_fields(refusal.key, kinds) | {
        "status": refusal.status.value,
        "reason": refusal.reason,
    }


def host_document(row: HostProfile) -> Document:
    """A host row as a document."""
    return {
        "gpu": row.gpu,
        "host_ms": row.host_ms,
        "host_mad_ms": row.host_mad_ms,
        "framework_bytes": row.framework_bytes,
        "usable_bytes": row.usable_bytes,
    }


def run_tables(document: Document) -> Iterator[Table | str]:
    """The tables of a finished run: figures with spread, what was refused, the host."""
    if document["rows"]:
        yield _figures(document)
    if document["refused"]:
        yield _refusals(document["refused"])
    for host in document["host_rows"]:
        spread = f" ±{host['host_mad_ms']:.2f}" if host["host_mad_ms"] is not None else ""
        yield (
            f"Host: {host['host_ms']:.2f}{spread} ms per micro-batch and stage, "
            f"{human_bytes(host['framework_bytes'])} per process before any layer, "
            f"{human_bytes(host['usable_bytes'])} usable."
        )
    rows, refused = len(document["rows"]), len(document["refused"])
    yield (
        f"Profile run {document['run_id']} ({document['status']}): {rows} measured, {refused} "
        f"refused; the machine drifted by {document['drift']:+.1%} from start to end."
    )


def _figures(document: Document) -> Table:
    first = document["rows"][0]
    table = Table(
        title=f"{first['gpu']}, length {first['seq_len']}, {first['dtype']}, {first['optimizer']}: "
        "medians in ms ± median absolute deviation, memory in MiB",
        title_justify="left",
        caption="! unsteady, or a spread above 10 %" if _any_marked(document) else None,
        caption_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("layer", no_wrap=True)
    columns = ("TP", "batch", "forward", "backward", "comm", "update", "kept", "peak")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for row in document["rows"]:
        name = row["layer"] if row["recompute"] == "none" else f"{row['layer']} (recompute)"
        times = [_time(row, part) for part in TIMES]
        if row["tp"] == 1:
            times[2] = "-"
        table.add_row(
            name,
            str(row["tp"]),
            str(row["micro_batch"]),
            *times,
            f"{row['activation_bytes'] / MIB:.2f}",
            f"{row['transient_bytes'] / MIB:.2f}",
        )
    return table


def _any_marked(document: Document) -> bool:
    return any(_marked(row, part) for row in document["rows"] for part in TIMES)


def _marked(row: Document, part: str) -> bool:
    ms, mad_ms = row[f"{part}_ms"], row[f"{part}_mad_ms"]
    return bool(row["unsteady"] or (mad_ms is not None and mad_ms > NOISY * ms > 0))


def _time(row: Document, part: str) -> str:
    """A time with its spread: "3.51±2%!"."""
    ms, mad_ms = row[f"{part}_ms"], row[f"{part}_mad_ms"]
    digits = 2 if ms >= 1 else 3
    spread = f"±{mad_ms / ms:.0%}" if mad_ms is not None and ms > 0 else ""
    return f"{ms:.{digits}f}{spread}{'!' if _marked(row, part) else ''}"


def _refusals(refused: Sequence[Document]) -> Table:
    """Refused keys, those with one reason in one line."""
    table = Table(title="Refused", title_justify="left", box=SIMPLE_HEAD, show_edge=False)
    for column in ("layers", "TP", "batch", "status", "reason"):
        table.add_column(column)
    groups: dict[tuple[str, str], list[Document]] = {}
    for row in refused:
        groups.setdefault((row["status"], row["reason"]), []).append(row)
    for (status, reason), rows in groups.items():
        columns = [
            ", ".join(dict.fromkeys(str(row[name]) for row in rows))
            for name in ("layer", "tp", "micro_batch")
        ]
        table.add_row(*columns, status, Text(reason))
    return table


def list_document(
    question: Question, entries: Sequence[Entry], refusals: Sequence[LayerRefusal]
) -> Document:
    """What a run would measure, in order, and about how long that takes."""
    kinds = {layer.hash: layer.label for layer in question.model.layer_types}
    return {
        "origin": question.origin,
        "expected_s": sum(entry.expected_s for entry in entries),
        "entries": [
            key_fields(entry.key, kinds) | {"expected_s": entry.expected_s} for entry in entries
        ],
        "refused": [refusal_document(refusal, kinds) for refusal in refusals],
    }


def list_table(document: Document) -> Table:
    """The list of a dry run."""
    table = Table(title=document["origin"], title_justify="left")
    for column in ("layer", "TP", "micro-batch", "recompute", "about"):
        table.add_column(column)
    for entry in document["entries"]:
        table.add_row(
            entry["layer"],
            str(entry["tp"]),
            str(entry["micro_batch"]),
            entry["recompute"],
            f"{entry['expected_s']:.1f} s",
        )
    for row in document["refused"]:
        table.add_row(
            row["layer"],
            str(row["tp"]),
            str(row["micro_batch"]),
            row["recompute"],
            Text(f"{row['status']}: {row['reason']}"),
        )
    table.caption = (
        f"{len(document['entries'])} entries, about {document['expected_s']:.0f} s and 10 s to "
        f"start; {len(document['refused'])} refused. Nothing was measured."
    )
    return table
