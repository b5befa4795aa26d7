"""`arachne-report serve`."""

from __future__ import annotations

import click

from reports.cli.options import open_in_browser, provenance_of
from specs.door import store_option, verbosity_options


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8237,
    show_default=True,
    help="Port on 127.0.0.1; 0 takes any free one.",
)
@click.option("--open", "show", is_flag=True, help="Open the first page in a browser.")
@store_option
@verbosity_options
def serve(port: int, show: bool, store: str | None) -> None:
    """Serve the pages on this machine; they refresh themselves as runs come in.

    Reads the store, never writes it, and answers on 127.0.0.1 only. Ctrl-C ends it.

    Example: arachne-report serve --port 8237
    """
    import contextlib
    import functools

    from db.store import open_store
    from reports.server import PageServer

    with open_store(store) as opened:
        provenance = provenance_of(opened)
    with PageServer(port, functools.partial(open_store, store), provenance) as server:
        click.echo(server.address)
        open_in_browser(server.address, show)
        with contextlib.suppress(KeyboardInterrupt):  # that is how it is meant to end
            server.serve_forever()
