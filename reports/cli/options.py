"""Options that the commands of this door share, and what each does after it wrote its page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from db.store import Store
    from reports.page import Provenance

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

backdrop_option = click.option(
    "--backdrop",
    type=click.IntRange(min=0),
    default=200,
    show_default=True,
    help="Priced random plans behind the plans of each question; 0 for none.",
)
output_option = click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("report"),
    show_default=True,
    metavar="DIR",
    help="Folder of the page and its data.",
)
open_option = click.option(
    "--open", "show", is_flag=True, help="Open the page in the browser of this machine."
)


def provenance_of(store: Store) -> Provenance:
    """Where the numbers of a page come from: this store, now, by this command."""
    from datetime import UTC, datetime
    from importlib.metadata import PackageNotFoundError, version

    from reports.page import Provenance

    try:
        arachne = version("arachne-planner")
    except PackageNotFoundError:
        arachne = "not installed"
    words = click.get_current_context().command_path.split()[1:]
    command = " ".join(["arachne-report", *words])
    return Provenance(store.where, datetime.now(UTC), arachne, command)


def finish(path: Path, show: bool) -> None:
    """Print the path of the page, and open it where that was asked for."""
    click.echo(str(path))
    open_in_browser(path.as_uri(), show)


def open_in_browser(address: str, show: bool) -> None:
    """Open a page in this machine's browser, where that was asked for; say so if there is none."""
    if not show:
        return
    import webbrowser

    if not webbrowser.open(address):
        click.echo(f"no browser found: open {address} yourself", err=True)
