"""The tables that say what an import did."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from profiler.importers.record import Recorded


def import_table(recorded: Sequence[Recorded]) -> Table:
    """One line per run: what became of it, and its rows."""
    table = Table(title="Imported profile runs", title_justify="left")
    table.add_column("run", justify="right")
    table.add_column("what", overflow="fold")
    table.add_column("outcome")
    for name in ("layers", "links", "hosts", "refused"):
        table.add_column(name, justify="right")
    facts = {(run.imported.new.source.value, run.imported.new.licence) for run in recorded}
    table.caption = "; ".join(
        f"source: {source}" + (f", licence: {licence}" if licence else "")
        for source, licence in sorted(facts)
    )
    table.caption_justify = "left"
    for run in recorded:
        imported = run.imported
        table.add_row(
            str(run.run_id),
            Text(imported.title),
            run.outcome.value,
            *(
                str(len(rows)) if rows else "-"
                for rows in (imported.layers, imported.links, imported.hosts, imported.refused)
            ),
        )
    return table


def refusal_table(recorded: Sequence[Recorded]) -> Table:
    """Refused rows by reason, with the first and the last place."""
    table = Table(title="Refused rows (arachne-prof show RUN lists each)", title_justify="left")
    table.add_column("run", justify="right")
    table.add_column("rows", justify="right")
    table.add_column("reason", overflow="fold")
    table.add_column("from ... to", overflow="fold")
    for run in recorded:
        places: dict[str, list[str]] = {}
        for row in run.imported.refused:
            places.setdefault(row.reason, []).append(row.where)
        for reason, where in places.items():
            span = where[0] if len(where) == 1 else f"{where[0]} ... {where[-1]}"
            table.add_row(str(run.run_id), str(len(where)), Text(reason), Text(span))
    return table


def note_lines(recorded: Sequence[Recorded]) -> list[str]:
    """Each note once, with the runs it is about."""
    runs: dict[str, list[str]] = {}
    for run in recorded:
        for note in run.imported.notes:
            runs.setdefault(note, []).append(str(run.run_id))
    return [f"run {', '.join(about)}: {note}" for note, about in runs.items()]
