"""`arachne-report reconfigure`."""

from __future__ import annotations

from pathlib import Path

import click

from reports.cli.options import finish, open_option, output_option, provenance_of
from specs.door import store_option, verbosity_options


@click.command()
@output_option
@open_option
@store_option
@verbosity_options
def reconfigure(output: Path, show: bool, store: str | None) -> None:
    """Live changes of the cluster: how long training stood still, phase by phase.

    Example: arachne-report reconfigure -o report
    """
    from db.store import open_store
    from reports.page import write_page
    from reports.reconfigure_page import reconfigure_page

    with open_store(store) as opened:
        rows = opened.reconfigurations()
        provenance = provenance_of(opened)
    finish(write_page(reconfigure_page(rows, provenance), output), show)
