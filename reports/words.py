"""Numbers as a page says them. static/words.js says them alike; a browser test holds that."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from specs.units import human_bytes

MISSING = "–"


def ms(value: float | None) -> str:
    """A time: four significant digits in us, ms, s, min or h."""
    if value is None:
        return MISSING
    size = abs(value)
    if size >= 3.6e6:
        return f"{_digits(value / 3.6e6)} h"
    if size >= 1.2e5:
        return f"{_digits(value / 6e4)} min"
    if size >= 1000:
        return f"{_digits(value / 1000)} s"
    if size >= 1 or size == 0:
        return f"{_digits(value)} ms"
    return f"{_digits(value * 1000)} µs"


def _digits(value: float, digits: int = 4) -> str:
    """A number to four significant digits, never in powers of ten between 1e-4 and 1e15."""
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(decimals, 8)}f}"


def memory(value: float | None) -> str:
    """Bytes in binary units."""
    return MISSING if value is None else human_bytes(value)


def percent(value: float | None) -> str:
    """A figure in percent: one decimal, two below 1."""
    if value is None:
        return MISSING
    return f"{value:.2f} %" if abs(value) < 1 else f"{value:.1f} %"


def signed_percent(value: float | None) -> str:
    """A figure in percent with its sign, the minus a real one."""
    if value is None:
        return MISSING
    text = percent(abs(value))
    if value == 0:
        return text
    return ("+" if value > 0 else "−") + text


def number(value: float | None) -> str:
    """A count with thin spaces between thousands, or a figure to four digits."""
    if value is None:
        return MISSING
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}".replace(",", "\u202f")
    return _digits(value)


def moment(value: datetime | str | None) -> str:
    """A point in time in UTC, to the minute."""
    if value is None:
        return MISSING
    when = datetime.fromisoformat(value) if isinstance(value, str) else value
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def plural(count: int, one: str, many: str = "") -> str:
    """A count with its noun: 1 run, 2 runs."""
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def cell(value: object) -> str:
    """A cell of a data table as text."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value)
    if isinstance(value, int):
        return number(value)
    return str(value)


def sort_value(value: object) -> str:
    """What a column is sorted by: the plain number or the text."""
    return "" if value is None else str(value)
