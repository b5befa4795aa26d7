"""`arachne-report compare`."""

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
from specs.door import err_console, store_option, verbosity_options


@click.command()
@output_option
@backdrop_option
@open_option
@store_option
@verbosity_options
def compare(output: Path, backdrop: int, show: bool, store: str | None) -> None:
    """All comparisons of planners in the store, on one page.

    Throughput by question and planner, search time, where the plans lie among random ones, search
    efficiency, clusters that grow; the paper's published figures beside those of its suite.

    Example: arachne-report compare -o report
    """
    from db.store import open_store
    from reports.compare_page import compare_page
    from reports.comparisons import read_comparisons, with_backdrop
    from reports.page import write_page

    with open_store(store) as opened:
        found = read_comparisons(opened)
        if backdrop:
            with err_console().status("pricing random plans"):
                found = with_backdrop(opened, found, backdrop)
        provenance = provenance_of(opened)
    finish(write_page(compare_page(found, provenance), output), show)
