"""The door of the store: arachne-db."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from specs.door import (
    ArachneGroup,
    console,
    json_option,
    print_json,
    store_option,
    verbosity_options,
)

if TYPE_CHECKING:
    from db.merge import TableCount


@click.group(cls=ArachneGroup)
def main() -> None:
    """Make, upgrade, look into, export and import the store that keeps all profiles and plans."""


@main.command()
@store_option
@json_option
@verbosity_options
def init(store: str, as_json: bool) -> None:
    """Make a store, or check that one is there.

    Every command that writes does this by itself; here it can be done alone.

    Example: arachne-db init --store lab.db
    """
    from db.store import open_store

    with open_store(store) as opened:
        made, where, revision = opened.opening.created, opened.where, opened.opening.after
    if as_json:
        print_json({"store": where, "revision": revision, "created": made})
    else:
        said = "made, with" if made else "there already, now at"
        console().print(
            f"store {where}: {said} revision {revision}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


@main.command()
@store_option
@json_option
@verbosity_options
def upgrade(store: str, as_json: bool) -> None:
    """Bring an older store to this version; a file is copied beside itself before.

    Every command that opens a store does this by itself; here it can be done alone.

    Example: arachne-db upgrade --store lab.db
    """
    from db.store import open_store

    with open_store(store, create=False) as opened:
        opening, where = opened.opening, opened.where
    backup = str(opening.backup) if opening.backup else None
    if as_json:
        print_json({"store": where, "from": opening.before, "to": opening.after, "backup": backup})
        return
    if opening.upgraded:
        said = f"upgraded from revision {opening.before} to {opening.after}"
        said += f"; the old one is kept as {backup}" if backup else ""
    else:
        said = f"is at revision {opening.after} already"
    console().print(f"store {where}: {said}", markup=False, highlight=False, soft_wrap=True)


@main.command()
@store_option
@json_option
@verbosity_options
def info(store: str, as_json: bool) -> None:
    """Show what is in a store, and the revision of its schema. Changes nothing.

    Example: arachne-db info --store lab.db
    """
    from db.info import describe

    told = describe(store)
    if as_json:
        print_json(told.to_json())
        return
    from rich.markup import escape
    from rich.table import Table

    from specs.units import human_bytes

    facts = Table(show_header=False)
    facts.add_column()
    facts.add_column(overflow="fold")  # a path is not to be cut
    facts.add_row("store", escape(told.where))
    facts.add_row("backend", told.backend)
    facts.add_row(
        "revision", f"{told.revision} ({told.state}; this program: {told.program_revision})"
    )
    facts.add_row("size", human_bytes(told.size_bytes))
    for step in told.history:
        when = f"{step.applied:%Y-%m-%d %H:%M} UTC"
        facts.add_row(
            f"revision {step.revision}", f"{when} by Arachne {escape(step.arachne_version)}"
        )
    console().print(facts)
    rows = Table("table", "rows")
    rows.columns[1].justify = "right"
    for name, count in told.rows.items():
        rows.add_row(name, f"{count:,}")
    console().print(rows)


@main.command()
@click.argument("folder", metavar="DIR", type=click.Path())
@store_option
@json_option
@verbosity_options
def export(folder: str, store: str, as_json: bool) -> None:
    """Write all tables to DIR as CSV files, with a manifest of versions and checksums.

    DIR is made, and appears when it is complete. `arachne-db import` reads it back, into this or
    another store.

    Example: arachne-db export backup-2026-11 --store lab.db
    """
    from db.exchange import export_store
    from db.store import open_store

    with open_store(store, create=False) as opened:
        export = export_store(opened, folder)
    if as_json:
        print_json({"folder": str(export.folder), "rows": export.rows})
        return
    from rich.table import Table

    table = Table("file", "rows", caption=f"{sum(export.rows.values()):,} rows")
    table.columns[1].justify = "right"
    for name, count in export.rows.items():
        table.add_row(f"{name}.csv", f"{count:,}")
    console().print(table)
    console().print(f"written to {export.folder}", markup=False, highlight=False, soft_wrap=True)


@main.command(name="import")
@click.argument("folder", metavar="DIR", type=click.Path())
@store_option
@json_option
@verbosity_options
def import_(folder: str, store: str, as_json: bool) -> None:
    """Bring an exported DIR into a store, all of it or, after an error, nothing.

    What the store has already is not doubled: runs, plans and measurements keep who made them.
    Exports of older versions are upgraded on the way.

    Example: arachne-db import backup-2026-11 --store team.db
    """
    from db.exchange import import_store
    from db.store import open_store

    with open_store(store) as opened:
        counts = import_store(opened, folder)
        where = opened.where
    if as_json:
        print_json(
            {
                "store": where,
                "tables": {
                    name: {"added": count.added, "present": count.present}
                    for name, count in counts.items()
                },
            }
        )
        return
    _print_counts(where, counts)


def _print_counts(where: str, counts: dict[str, TableCount]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table("table", "added", "there already", caption=f"into {escape(where)}")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, count in counts.items():
        table.add_row(name, f"{count.added:,}", f"{count.present:,}")
    console().print(table)


if __name__ == "__main__":
    main()
