"""`arachne-prof list`: the profile runs of a store."""

from __future__ import annotations

import click

from specs.door import (
    console,
    err_console,
    json_option,
    print_json,
    store_option,
    verbosity_options,
)


@click.command(name="list")
@store_option
@json_option
@verbosity_options
def list_(store: str, as_json: bool) -> None:
    """List profile runs: where they come from, what they are of, who used them.

    Example: arachne-prof list --json
    """
    from db.store import open_store
    from profiler.run_summary import summarise

    with open_store(store, create=False) as opened:
        runs = summarise(opened)
    if as_json:
        print_json({"runs": [run.to_json() for run in runs]})
        return
    if not runs:
        err_console().print("No profile runs yet: arachne-prof run, estimate or import make them.")
        return
    from profiler.cli.run_tables import runs_table

    console().print(runs_table(runs))
