"""`arachne-report index`."""

from __future__ import annotations

from pathlib import Path

import click

from reports.cli.options import (
    backdrop_option,
    finish,
    open_option,
    output_option,
    provenance_of,
)
from specs.door import store_option, verbosity_options


@click.command()
@output_option
@click.option(
    "--plans",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="How many plans get a page of their own: those with runs first, then the newest.",
)
@backdrop_option
@open_option
@store_option
@verbosity_options
def index(output: Path, plans: int, backdrop: int, show: bool, store: str | None) -> None:
    """All pages, linked from one that tells what the store holds and where it comes from.

    Example: arachne-report index -o report --open
    """
    from db.store import open_store
    from reports.page_set import chosen_plans, write_set

    with open_store(store) as opened:
        path = write_set(
            opened,
            output,
            provenance_of(opened),
            chosen_plans(opened, plans),
            lambda line: click.echo(line, err=True),
            backdrop,
        )
    finish(path, show)
