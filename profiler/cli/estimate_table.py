"""What an estimate says: as one document, and as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from profiler.calibration import constants_version
from profiler.cli.run_result import host_document, layer_document, refusal_document
from profiler.estimates.devices import Grade
from profiler.estimates.question import Estimates, provenance
from specs.units import MIB

Document = dict[str, Any]


def estimate_document(
    estimates: Estimates, run_id: int | None = None, outcome: str = "dry run"
) -> Document:
    """Estimates as one document: every layer row, counts of link rows, where constants are from."""
    question = estimates.question
    kinds = {layer.hash: layer.label for layer in question.model.layer_types}
    return {
        "run_id": run_id,
        "outcome": outcome,
        "source": "estimated",
        "origin": question.origin,
        "constants_version": constants_version(),
        "rows": [layer_document(row, kinds) for row in estimates.layers],
        "refused": [refusal_document(row, kinds) for row in estimates.refusals],
        "link_rows": len(estimates.links),
        "host_rows": [host_document(row) for row in estimates.hosts],
        "provenance": {
            gpu: [part.to_json() for part in provenance(gpu, question.topologies_of(gpu))]
            for gpu in question.gpus
        },
        "notes": estimates.notes,
    }


def estimate_tables(document: Document) -> Iterator[Table]:
    """The layers at the smallest micro-batch, where the constants are from, what was refused."""
    yield _layer_table(document)
    yield constants_table(document["provenance"], document["constants_version"])
    if document["refused"]:
        yield _refusal_table(document)


def _layer_table(document: Document) -> Table:
    rows = document["rows"]
    table = Table(
        title=f"Estimated layers, ms and MiB ({_outcome(document)})",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    smallest = min((row["micro_batch"] for row in rows), default=0)
    untiled = [row for row in rows if row["ep"] == 1 and row["etp"] in (1, row["tp"])]
    shown: dict[tuple[Any, ...], Document] = {}
    for row in untiled:
        if row["micro_batch"] == smallest and (row["etp"] == row["tp"] or not _has_experts(row)):
            key = (row["gpu"], row["layer"], row["tp"], row["recompute"])
            shown.setdefault(key, row)
    table.caption = (
        f"micro-batch {smallest} of {len(rows)} layer rows, {document['link_rows']} link rows, "
        f"{len(document['host_rows'])} host rows; one rank, without expert tiling; --json has all"
    )
    table.caption_justify = "left"
    several = len({row["recompute"] for row in rows}) > 1
    table.add_column("gpu", no_wrap=True)
    table.add_column("layer", no_wrap=True)
    for name in ("TP", "forward", "backward", "comm", "update", "kept", "weights"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in shown.values():
        name = row["layer"]
        if several and row["recompute"] == "full":
            name += " (recompute)"
        weights = row["parameter_bytes"] + row["expert_parameter_bytes"]
        comm = "-" if row["tp"] == 1 else _ms(row["comm_ms"])
        table.add_row(
            row["gpu"],
            name,
            str(row["tp"]),
            *(_ms(row[f"{part}_ms"]) for part in ("forward", "backward")),
            comm,
            _ms(row["update_ms"]),
            f"{row['activation_bytes'] / MIB:.0f}",
            f"{weights / MIB:.0f}",
        )
    return table


def _ms(ms: float) -> str:
    return f"{ms:.2f}" if ms >= 1 else f"{ms:.3f}"


def _has_experts(row: Document) -> bool:
    return bool(row["expert_parameter_bytes"])


def _outcome(document: Document) -> str:
    if document["run_id"] is None:
        return "dry run: nothing is written"
    if document["outcome"] == "unchanged":
        return f"already in the store as profile run {document['run_id']}: nothing is written"
    return f"profile run {document['run_id']}, {document['outcome']}"


_SHORT = {
    "matrix products": "products",
    "attention forward": "attention",
    "host floor and overhead": "host",
    "sustained derate": "derate",
}


def constants_table(provenance: Mapping[str, Sequence[Document]], version: str) -> Table:
    """A line per GPU type: on which type the constants of each part were fitted.

    provenance: by GPU type, the parts of `profiler.estimates.question.provenance` as JSON.
    """
    table = Table(
        title=f"On which GPU type the constants were fitted (version {version})",
        title_justify="left",
        caption="by hand: memory-bound operators, the backward of attention, p2p latency; "
        "notes on each part stand in --json",
        caption_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("gpu", no_wrap=True)
    for name in (*_SHORT.values(), "links"):
        table.add_column(name, overflow="fold")
    for gpu, parts in provenance.items():
        words = {part["component"]: _where(part) for part in parts}
        links = [f"{name[6:]}: {word}" for name, word in words.items() if name.startswith("links ")]
        table.add_row(gpu, *(words[name] for name in _SHORT), "\n".join(links))
    return table


def _where(part: Document) -> str:
    if part["grade"] == Grade.CARRIED.value:
        return str(part["fitted_on"])
    return "itself" if part["grade"] == Grade.FITTED.value else "by hand"


def _refusal_table(document: Document) -> Table:
    table = Table(title="Keys that do not exist", title_justify="left", box=SIMPLE_HEAD)
    for name in ("gpu", "layer", "tp", "reason"):
        table.add_column(name, overflow="fold")
    seen: dict[tuple[str, str, str, str], None] = {}
    for row in document["refused"]:
        seen[row["gpu"], row["layer"], str(row["tp"]), row["reason"]] = None
    for line in seen:
        table.add_row(*map(Text, line))
    return table
