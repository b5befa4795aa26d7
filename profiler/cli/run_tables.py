"""The tables that show profile runs."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from profiler.heat_map import SHADES, Cell, HeatMap
from profiler.run_summary import RunSummary
from specs.profile import HostProfile, LayerRefusal, LinkProfile
from specs.units import human_bytes, human_ms

_COLOURS = ("green", "green4", "yellow", "dark_orange", "red")  # fastest per sample to slowest


def runs_table(runs: Sequence[RunSummary]) -> Table:
    """One line per run, oldest first; `show` has the whole origin where it is cut here."""
    table = Table(title="Profile runs", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column("run", justify="right")
    table.add_column("source")
    table.add_column("GPUs", overflow="fold")
    table.add_column("of", overflow="fold")
    table.add_column("rows")
    table.add_column("plans", justify="right")
    table.add_column("origin")
    for summary in runs:
        run = summary.run
        source = run.run.source.value
        if run.status != "complete":
            source += f" ({run.status.value})"
        counts = (
            (run.layer_rows, "layers"),
            (run.refused_rows, "refused"),
            (run.link_rows, "links"),
            (run.host_rows, "hosts"),
        )
        table.add_row(
            str(run.id),
            source,
            ", ".join(summary.gpus) or "-",
            Text(_of(summary)),
            ", ".join(f"{count} {name}" for count, name in counts if count) or "-",
            str(len(summary.plans) or "-"),
            Text(shorten(run.run.origin, 48, placeholder="...")),
        )
    return table


def _of(summary: RunSummary) -> str:
    """Models, or the kinds of the layers where no model is whole."""
    if summary.models:
        return ", ".join(summary.models)
    return ", ".join(dict.fromkeys(layer.label for layer in summary.layers)) or "-"


def provenance_table(summary: RunSummary) -> Table:
    """Where a run's figures come from, and which plans rest on them."""
    run, new = summary.run, summary.run.run
    table = Table(title=f"Profile run {run.id}", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    plans = ", ".join(map(str, summary.plans))
    ended = f" to {run.ended:%Y-%m-%d %H:%M:%S}" if run.ended else ""
    for name, value in (
        ("source", f"{new.source.value}, {run.status.value}"),
        ("origin", new.origin),
        ("licence", new.licence),
        ("of", _of(summary)),
        ("GPUs", ", ".join(summary.gpus)),
        ("host", new.host),
        ("driver", new.driver),
        ("torch", new.torch_version),
        ("NCCL", new.nccl_version),
        ("reference work", human_ms(new.reference_ms) if new.reference_ms is not None else ""),
        ("when", f"{run.started:%Y-%m-%d %H:%M:%S}{ended} UTC"),
        ("plans predicted from it", plans),
    ):
        if value:
            table.add_row(name, Text(value))
    return table


def heat_table(found: HeatMap, metric: str) -> Table:
    """TP degrees down, micro-batches across, shaded by time per sample."""
    unit = "bytes kept" if metric == "activation" else "ms"
    table = Table(
        title=f"{found.title}: {metric} {unit}", title_justify="left", caption_justify="left"
    )
    table.add_column("TP \\ micro-batch", justify="right")
    for micro_batch in found.micro_batches:
        table.add_column(str(micro_batch), justify="right")
    for tp in found.tps:
        cells = [found.cells.get((tp, micro_batch)) for micro_batch in found.micro_batches]
        table.add_row(str(tp), *(_cell_text(cell, metric) for cell in cells))
    if metric in ("total", "comm") and any(cell.comm_included for cell in found.cells.values()):
        table.caption = "collectives of a TP group are inside forward and backward"
    return table


def _cell_text(cell: Cell | None, metric: str) -> Text:
    if cell is None:
        return Text("")
    if cell.value is None:
        return Text(cell.refusal, style="dim italic")
    shown = human_bytes(cell.value) if metric == "activation" else f"{cell.value:.4g}"
    text = Text(f"{shown} {SHADES[cell.level]}".rstrip(), style=_COLOURS[cell.level])
    if cell.spread is not None:
        mark = "!" if cell.unsteady else ""
        text.append(f" ±{cell.spread:.0%}{mark}", style="bold red" if mark else "dim")
    return text


def hosts_table(hosts: Sequence[HostProfile]) -> Table:
    """What a process costs on each GPU type."""
    table = Table(title="Hosts", title_justify="left")
    for name in ("GPU", "host ms a micro-batch", "framework memory", "usable memory"):
        table.add_column(name, justify="left" if name == "GPU" else "right")
    for host in hosts:
        spread = f" ± {host.host_mad_ms:.3g}" if host.host_mad_ms is not None else ""
        table.add_row(
            host.gpu,
            f"{host.host_ms:.4g}{spread}",
            human_bytes(host.framework_bytes),
            human_bytes(host.usable_bytes),
        )
    return table


def links_table(links: Sequence[LinkProfile]) -> Table:
    """Each link and group in a line: from its smallest message to its largest."""
    curves: dict[tuple[str, str, str, str, int], list[LinkProfile]] = {}
    for row in links:
        key = (row.gpu, row.peer, row.topology.value, row.operation.value, row.ranks)
        curves.setdefault(key, []).append(row)
    table = Table(title="Links", title_justify="left")
    for name in ("GPU", "link", "operation"):
        table.add_column(name, no_wrap=name == "operation")
    for name in ("ranks", "sizes", "smallest", "takes", "largest", "takes", "bytes/time, GB/s"):
        table.add_column(name, justify="right")
    for (gpu, peer, topology, operation, ranks), rows in curves.items():
        rows.sort(key=lambda row: row.nbytes)
        small, large = rows[0], rows[-1]
        table.add_row(
            gpu if peer == gpu else f"{gpu} to {peer}",
            topology,
            operation,
            str(ranks),
            str(len(rows)),
            human_bytes(small.nbytes),
            human_ms(small.time_ms),
            human_bytes(large.nbytes),
            human_ms(large.time_ms),
            f"{large.nbytes / large.time_ms / 1e6:.4g}" if large.time_ms else "-",
        )
    return table


def refusals_table(refusals: Sequence[LayerRefusal], kinds: dict[str, str]) -> Table:
    """Every key without figures, and why."""
    table = Table(title="Keys without figures", title_justify="left")
    for name in ("GPU", "layer"):
        table.add_column(name)
    for name in ("TP", "micro-batch"):
        table.add_column(name, justify="right")
    table.add_column("status")
    table.add_column("reason", overflow="fold", ratio=1)
    for row in refusals:
        key = row.key
        table.add_row(
            key.gpu,
            kinds[key.layer_type],
            str(key.tp),
            str(key.micro_batch),
            row.status.value.replace("_", " "),
            Text(row.reason),
        )
    return table
