"""`arachne-prof host`: what this host is and which GPUs it has."""

from __future__ import annotations

import click

from specs.door import console, json_option, print_json, verbosity_options


@click.command()
@json_option
@verbosity_options
def host(as_json: bool) -> None:
    """Show this host: processor, memory, GPUs, their links, driver and clocks.

    GPUs are named as in the catalogue, so the names are what --gpu takes.

    Example: arachne-prof host --json
    """
    from profiler.host import read_host

    facts = read_host()
    if as_json:
        print_json(facts.to_json())
        return
    from profiler.cli.host_table import host_tables

    for table in host_tables(facts):
        console().print(table)
