"""`arachne-report profile`."""

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
def profile(output: Path, show: bool, store: str | None) -> None:
    """Layers and links of every GPU type in the store, and where each figure comes from.

    Heat maps of layer time by TP degree and micro-batch, achieved TFLOP/s against the datasheet,
    link curves with fits, estimates against measurements.

    Example: arachne-report profile -o report
    """
    from db.store import open_store
    from reports.page import write_page
    from reports.profile_page import profile_page, read_profiles

    with open_store(store) as opened:
        profiles = read_profiles(opened)
        provenance = provenance_of(opened)
    finish(write_page(profile_page(profiles, provenance), output), show)
