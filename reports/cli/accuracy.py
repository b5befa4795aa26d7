"""`arachne-report accuracy`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from reports.cli.options import finish, open_in_browser, open_option, output_option, provenance_of
from specs.door import console, json_option, print_json, store_option, verbosity_options

if TYPE_CHECKING:
    from rich.table import Table

    from reports.accuracy import Accuracy


@click.command()
@output_option
@click.option(
    "--against",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="An earlier accuracy.json to compare with; default: the one beside the page.",
)
@open_option
@json_option
@store_option
@verbosity_options
def accuracy(
    output: Path, against: Path | None, show: bool, as_json: bool, store: str | None
) -> None:
    """Planned against measured: how true the predictions of all runs were.

    One page, with its data as CSV and accuracy.json beside it. A group of runs that is predicted
    worse than in the earlier report is flagged.

    Example: arachne-report accuracy -o report --open
    """
    from db.store import open_store
    from reports import regression
    from reports.accuracy import read_accuracy
    from reports.accuracy_page import accuracy_document, accuracy_page
    from reports.page import write_page

    earlier = regression.read_earlier(
        against or output / "accuracy.json", must_exist=against is not None
    )
    with open_store(store) as opened:
        found = read_accuracy(opened)
        runs = opened.profile_runs()
        provenance = provenance_of(opened)
    change = regression.against(earlier, found.rows)
    document = accuracy_document(found, provenance, change, earlier)
    page = accuracy_page(found, runs, provenance, regression=change, document=document)
    path = write_page(page, output)
    if as_json:
        print_json({"page": str(path), **document})
        open_in_browser(path.as_uri(), show)
        return
    if found.rows:
        console().print(summary_table(found))
    finish(path, show)
    if change and change.worse:
        click.echo(f"accuracy got worse since the report of {change.earlier}", err=True)


def summary_table(accuracy: Accuracy) -> Table:
    """The summary of the page for the terminal: per source and hardware, then all mixed."""
    from rich.table import Table

    from reports import words
    from reports.summary import by_source_and_hardware, overall

    table = Table(title="Planned against measured iteration time")
    for name in ("source", "hardware"):
        table.add_column(name)
    for name in ("runs", "median error", "mean error", "within 10 %", "worst"):
        table.add_column(name, justify="right")
    groups = by_source_and_hardware(accuracy.rows)
    whole = overall(accuracy.rows)
    if whole and len(groups) > 1:
        groups.append(whole)
    for group in groups:
        table.add_row(
            group.source,
            group.hardware,
            words.number(group.runs),
            words.percent(group.median_percent),
            words.percent(group.mean_percent),
            words.percent(group.within_10_percent),
            words.signed_percent(group.worst_percent),
        )
    return table
