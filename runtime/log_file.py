"""Iteration times that another launcher measured: CSV or JSON into measurements."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specs.errors import SpecError
from specs.measurement import Measurement

COLUMNS = (
    "iteration",
    "iteration_ms",
    "peak_bytes",
    "loss",
    "warm_up",
    "samples",
    "drift",
    "host",
    "origin",
    "run",
)
_YES, _NO = {"1", "true", "yes"}, {"", "0", "false", "no"}


def read_times(
    text: str, where: str, *, host: str | None, origin: str | None, run: str | None
) -> list[Measurement]:
    """Measurements of a CSV with a header, a JSON list of objects, or {"iterations": [...]}.

    iteration and iteration_ms are needed; peak_bytes may be several, by rank, with ; between
    them. host and origin come from the columns, else from the arguments; without a run one is named
    by a hash of host, origin and figures, so that the same file again is the same run.
    Raises SpecError with file, row, field, value and what was expected.
    """
    rows = _json_rows(text, where) if text.lstrip()[:1] in ("[", "{") else _csv_rows(text, where)
    if not rows:
        raise SpecError(f"{where}: has no iterations, expected a row for each")
    found = [
        _measurement(row, f"{where}: row {i + 1}", where, host, origin)
        for i, row in enumerate(rows)
    ]
    if run is not None:
        found = [replace(row, run=run) for row in found]
    elif any(not row.run for row in found):
        named = _hash_of(found)
        found = [row if row.run else replace(row, run=named) for row in found]
    seen: set[tuple[str, int]] = set()
    for row in found:
        if (row.run, row.iteration) in seen:
            raise SpecError.in_file(
                where, "iteration", row.iteration, f"each iteration of run {row.run} once"
            )
        seen.add((row.run, row.iteration))
    return found


def _csv_rows(text: str, where: str) -> list[Mapping[str, Any]]:
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    names = [name.strip() for name in reader.fieldnames or []]
    reader.fieldnames = names
    _check_names(names, where)
    rows: list[Mapping[str, Any]] = []
    for row in reader:
        if None in row:
            raise SpecError.in_file(
                f"{where}: row {len(rows) + 1}", "columns", row[None], f"{len(names)} values"
            )
        rows.append({name: value for name, value in row.items() if value not in (None, "")})
    return rows


def _json_rows(text: str, where: str) -> list[Mapping[str, Any]]:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise SpecError(f"{where}: line {error.lineno} is not JSON ({error.msg})") from None
    rows = document.get("iterations") if isinstance(document, dict) else document
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise SpecError.in_file(
            where, "the document", type(rows).__name__, "a list of objects, one an iteration"
        )
    for row in rows:
        _check_names(list(row), where)
    return rows


def _check_names(names: list[str], where: str) -> None:
    for name in names:
        if name not in COLUMNS:
            raise SpecError.in_file(where, "a column", name, f"one of: {', '.join(COLUMNS)}")
    for name in ("iteration", "iteration_ms"):
        if name not in names:
            raise SpecError.in_file(where, name, None, "a column of that name")


def _measurement(
    row: Mapping[str, Any], here: str, where: str, host: str | None, origin: str | None
) -> Measurement:
    said: dict[str, str] = {}
    for name, given in (("host", host), ("origin", origin)):
        value = row.get(name, given)
        if not isinstance(value, str) or not value:
            raise SpecError.in_file(
                where, name, value, "text, in a column or by option", f"add --{name} TEXT"
            )
        said[name] = value
    iteration_ms = _number(row, "iteration_ms", here)
    if iteration_ms is None or iteration_ms <= 0:
        raise SpecError.in_file(here, "iteration_ms", row.get("iteration_ms"), "more than 0 ms")
    return Measurement(
        run=str(row.get("run", "")),
        host=said["host"],
        origin=said["origin"],
        iteration=_whole(row, "iteration", here, 0, None),
        iteration_ms=iteration_ms,
        samples=_whole(row, "samples", here, 1, 1),
        warm_up=_flag(row, here),
        loss=_number(row, "loss", here),
        peak_bytes=_peaks(row, here),
        drift=_number(row, "drift", here),
    )


def _number(row: Mapping[str, Any], name: str, here: str) -> float | None:
    value = row.get(name)
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise SpecError.in_file(here, name, value, "a number")
    return number


def _whole(row: Mapping[str, Any], name: str, here: str, least: int, default: int | None) -> int:
    value = row.get(name, default)
    try:
        number = int(str(value))
    except ValueError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise SpecError.in_file(here, name, value, f"a whole number of at least {least}")
    return number


def _flag(row: Mapping[str, Any], here: str) -> bool:
    value = row.get("warm_up", "")
    text = str(value).strip().lower()
    if text not in _YES | _NO:
        raise SpecError.in_file(here, "warm_up", value, "true or false")
    return text in _YES


def _peaks(row: Mapping[str, Any], here: str) -> tuple[int, ...]:
    value = row.get("peak_bytes", [])
    parts = value if isinstance(value, list) else str(value).replace(";", " ").split()
    return tuple(_whole({"peak_bytes": part}, "peak_bytes", here, 0, None) for part in parts)


def _hash_of(rows: list[Measurement]) -> str:
    text = json.dumps(
        [
            (row.host, row.origin, row.iteration, row.iteration_ms, row.samples, row.warm_up)
            for row in rows
        ]
    )
    return "log-" + hashlib.sha256(text.encode()).hexdigest()[:16]
