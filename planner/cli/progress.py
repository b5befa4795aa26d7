"""How a search goes, on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from specs.door import err_console
from specs.units import human_ms

if TYPE_CHECKING:
    from planner.race import Standing
    from planner.search import Search


@contextmanager
def progress(planner: str) -> Iterator[None]:
    """Show seconds, evaluations and the best iteration time while planners search."""
    from planner.search import WATCHER

    with err_console().status(f"{planner}: searching") as status:

        def show(search: Search) -> None:
            best = human_ms(search.best_ms) if search.best_ms < float("inf") else "none yet"
            status.update(
                f"{search.planner}: {search.seconds:.0f} s, {search.evaluations:,} plans priced, "
                f"best {best}"
            )

        token = WATCHER.set(show)
        try:
            yield
        finally:
            WATCHER.reset(token)


@contextmanager
def race_progress(what: str = "") -> Iterator[Callable[[dict[str, Standing]], None]]:
    """Show how all running searches stand; gives the function that is told."""
    with err_console().status(what or "searching") as status:

        def show(standing: dict[str, Standing]) -> None:
            parts = [
                f"{one.label} {one.seconds:.0f} s, {one.evaluations:,} priced, "
                + (human_ms(one.best_ms) if one.best_ms < float("inf") else "no plan yet")
                for one in standing.values()
            ]
            status.update(f"{what}{': ' if what else ''}{' | '.join(parts) or 'searching'}")

        yield show
