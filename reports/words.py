"""Numbers as a page says them. static/words.js says them alike; a browser test holds that."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal

MISSING = "–"


def _fixed(value: float, decimals: int) -> str:
    """A number with so many decimals; ties away from zero, as JavaScript's toFixed has them."""
    return str(Decimal(value).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP))


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
    return _fixed(value, min(decimals, 8))


def memory(value: float | None) -> str:
    """Bytes in binary units: 1536 -> `1.5 KiB`."""
    if value is None:
        return MISSING
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{_fixed(size, 0 if unit == 'B' else 1)} {unit}"
        size /= 1024
    return f"{_fixed(size, 2)} TiB"


def percent(value: float | None) -> str:
    """A figure in percent: one decimal, two below 1."""
    if value is None:
        return MISSING
    return f"{_fixed(value, 2 if abs(value) < 1 else 1)} %"


def signed_percent(value: float | None) -> str:
    """A figure in percent with its sign, the minus a real one."""
    if value is None:
        return MISSING
    text = percent(abs(value))
    if text == "0.00 %":
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


def seconds_range(seconds: tuple[float, float]) -> str:
    """A figure in seconds, or a range of them: `2.16 s`, `0.4 to 0.8 s`."""
    low, high = seconds
    return f"{low:g} s" if low == high else f"{low:g} to {high:g} s"


def time_axis(longest_ms: float) -> tuple[float, str]:
    """What the times in ms of an axis are divided by, and the unit that they then have."""
    return (1000.0, "s") if longest_ms >= 2000 else (1.0, "ms")


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
