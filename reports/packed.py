"""Tables on their way into a page: column by column, text that comes again only once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reports.figures import Cell, significant


def indexed(values: Sequence[str]) -> list[Any]:
    """Texts as [the different ones, the number of each]."""
    numbers: dict[str, int] = {}
    index = [numbers.setdefault(value, len(numbers)) for value in values]
    return [list(numbers), index]


def packed_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> dict[str, Any]:
    """Rows as the page's Arachne.unpack reads them; numbers to seven digits.

    text: name -> [values, index per row], for columns of text alone; values: name -> value per row.
    """
    text: dict[str, list[Any]] = {}
    values: dict[str, list[Cell]] = {}
    for i, name in enumerate(columns):
        cells = [row[i] for row in rows]
        if rows and all(isinstance(cell, str) for cell in cells):
            text[name] = indexed([str(cell) for cell in cells])
        else:
            values[name] = [significant(c) if isinstance(c, float) else c for c in cells]
    return {"count": len(rows), "text": text, "numbers": values}
