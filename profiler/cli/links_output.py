"""How a run of links shows itself: progress on stderr, a table or a document at the end."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Table

from profiler.measure.links import LinkOutcome
from specs.profile import Operation
from specs.units import human_bytes

Document = dict[str, Any]

_REFRESH_PER_S = 1  # each refresh takes time of a core that is being measured


class LinkProgress:
    """A bar on a terminal; elsewhere a line at the start, and one for what cannot be measured."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bar: RichProgress | None = None

    def __enter__(self) -> LinkProgress:
        self.console.print("Starting the measuring processes ...", style="dim")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def links_started(self, run_id: int, transfers: int) -> None:
        """Say what is about to happen."""
        self.console.print(f"Profile run {run_id}: {transfers} transfers", highlight=False)
        if self.console.is_terminal:
            self._bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=self.console,
                refresh_per_second=_REFRESH_PER_S,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=transfers)

    def link_finished(self, outcome: LinkOutcome) -> None:
        """Move on by one transfer."""
        point = outcome.transfer
        what = f"{point.operation.value} ranks={point.ranks} {human_bytes(point.nbytes)}"
        if self._bar is not None:
            self._bar.update(self._task, advance=1, description=what)
        if outcome.row is None:
            self.console.print(f"{what}: {outcome.reason}", markup=False, soft_wrap=True)


def links_document(run_id: int, outcomes: Sequence[LinkOutcome]) -> Document:
    """A run of links as one document."""
    return {
        "run_id": run_id,
        "rows": [
            {
                "gpu": row.gpu,
                "topology": row.topology.value,
                "operation": row.operation.value,
                "ranks": row.ranks,
                "nbytes": row.nbytes,
                "time_ms": row.time_ms,
                "mad_ms": row.mad_ms,
                "samples": row.samples,
                "gb_per_s": row.nbytes / row.time_ms / 1e6 if row.time_ms > 0 else None,
                "unsteady": outcome.unsteady,
            }
            for outcome in outcomes
            if (row := outcome.row) is not None
        ],
        "refused": [
            {
                "operation": outcome.transfer.operation.value,
                "ranks": outcome.transfer.ranks,
                "nbytes": outcome.transfer.nbytes,
                "reason": outcome.reason,
            }
            for outcome in outcomes
            if outcome.row is None
        ],
    }


def links_table(document: Document) -> Table:
    """Medians by message size, one column for each operation and rank count."""
    rows = document["rows"]
    columns = sorted(
        {(row["operation"], row["ranks"]) for row in rows},
        key=lambda column: (list(Operation).index(Operation(column[0])), column[1]),
    )
    table = Table(
        title=f"{rows[0]['gpu']}, {rows[0]['topology']}: medians in ms ± median absolute "
        f"deviation in % (profile run {document['run_id']})",
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("message", justify="right", no_wrap=True)
    for operation, ranks in columns:
        table.add_column(f"{operation} x{ranks}", justify="right")
    cells: dict[int, dict[tuple[str, int], str]] = {}
    for row in rows:
        mark = "!" if row["unsteady"] else ""
        spread = f" ±{row['mad_ms'] / row['time_ms']:.0%}" if row["time_ms"] > 0 else ""
        size = 1 << (row["nbytes"] - 1).bit_length()  # sizes cut to whole elements share a line
        column = (row["operation"], row["ranks"])
        cells.setdefault(size, {})[column] = f"{row['time_ms']:.3f}{spread}{mark}"
    for size, values in cells.items():
        table.add_row(human_bytes(size), *(values.get(column, "-") for column in columns))
    return table
