"""What a figure is: traces for plotly.js or a drawing, and its data as a table.

Colours are written as `var(--name)`: the page resolves them in its theme, light or dark.
"""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Cell = str | int | float | bool | None

CATEGORY_COLOURS = 8  # --c1 ... --c8 of static/page.css
CELLS_SHOWN = 200  # rows of a figure's data that the page shows as a table
ROWS_CARRIED = 20_000  # rows that the page itself holds; of more only the file beside it has all


@dataclass(frozen=True)
class Table:
    """Columns and rows: what is drawn, and what the CSV file beside the page holds."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...] = ()

    def to_csv(self) -> str:
        """The table as CSV with a header line."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([csv_cell(cell) for cell in row] for row in self.rows)
        return out.getvalue()

    def kind(self, column: int) -> str:
        """Whether a column holds numbers (`number`, right-aligned) or text."""
        return self._kinds[column]

    @cached_property
    def _kinds(self) -> tuple[str, ...]:
        kinds = []
        for column in range(len(self.columns)):
            cells = [row[column] for row in self.rows if row[column] is not None]
            numeric = all(isinstance(c, int | float) and not isinstance(c, bool) for c in cells)
            kinds.append("number" if cells and numeric else "text")
        return tuple(kinds)

    @property
    def shown(self) -> tuple[tuple[Cell, ...], ...]:
        """The rows that the page itself holds as a table."""
        return self.rows[:CELLS_SHOWN]


@dataclass(frozen=True)
class Figure:
    """A figure of a page.

    name: part of file names. caption: what there is to see, for eyes and screen readers. traces
    and layout: as plotly.js has them; empty where the page draws by itself (`drawn_by`) or where
    `svg` is the drawing. table: the data. wide: takes the whole row. height: in CSS pixels.
    """

    name: str
    title: str
    caption: str
    table: Table
    traces: Sequence[dict[str, Any]] = ()
    layout: dict[str, Any] = field(default_factory=dict)
    svg: str = ""
    drawn_by: str = ""
    wide: bool = False
    height: int = 380

    def spec(self) -> dict[str, Any]:
        """What plotly.js gets; NaN and infinity become null.

        cut: the page does not hold the data, its CSV link leads to the file.
        """
        cut = len(self.table.rows) > ROWS_CARRIED
        return {
            "name": self.name,
            "drawnBy": self.drawn_by,
            "traces": finite(list(self.traces)),
            "layout": finite(self.layout),
            "columns": list(self.table.columns),
            "rows": [] if self.drawn_by or cut else finite([list(row) for row in self.table.rows]),
            "cut": cut and not self.drawn_by,
        }


def csv_cell(cell: Cell) -> Cell:
    """A cell as CSV holds it: text that a spreadsheet would run as a formula gets an apostrophe."""
    if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + cell
    return cell


def finite(value: Any) -> Any:
    """The value with NaN and infinity, which JSON lacks, as None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def category_colour(index: int) -> str:
    """The colour of the n-th category; after eight they come again (labels tell them apart)."""
    return f"var(--c{index % CATEGORY_COLOURS + 1})"


def plot_text(text: str, limit: int = 60) -> str:
    """Text that plotly.js shows as it is: it would read <b> and links in it as markup."""
    short = text if len(text) <= limit else text[: limit - 1] + "…"
    return html.escape(short, quote=False)


def significant(value: float, digits: int = 7) -> float:
    """The value to so many significant digits: a page of 10,000 rows need not carry 17."""
    return float(f"{value:.{digits}g}")
