"""Where progress and remarks of long commands go: stderr, or nowhere with --quiet."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from specs.door import err_console

if TYPE_CHECKING:
    from rich.console import Console


def progress_console() -> Console:
    """The console of stderr; silent where --quiet was given."""
    console = err_console()
    console.quiet = logging.getLogger().level >= logging.ERROR
    return console
