"""The tables of a suite: cells by planners, and published figures beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from specs.door import console

if TYPE_CHECKING:
    from planner.published import Beside
    from planner.suite import SuiteTable


def print_table(table: SuiteTable, documents: Sequence[dict[str, Any]]) -> None:
    """One table: samples/s of every planner (a row) in every cell, then the search times."""
    from rich.table import Table

    out = console()
    planners = list(dict.fromkeys(row["planner"] for d in documents for row in d["rows"]))
    speeds = Table(title=f"{table.title}: samples/s (in brackets % of the best)", pad_edge=False)
    searches = Table(title=f"{table.title}: search, s", pad_edge=False)
    for one in (speeds, searches):
        one.add_column("planner")
        for document in documents:
            one.add_column(f"{document['title']}, {document['gpus']} GPUs", justify="right")
    for planner in planners:
        rows = [_row_of(document, planner) for document in documents]
        speeds.add_row(planner, *map(_speed, rows))
        searches.add_row(planner, *map(_search, rows))
    if table.chosen:
        out.print(f"{table.name}: {table.chosen}", soft_wrap=True, highlight=False, markup=False)
    out.print(speeds)
    out.print(searches)
    if table.grows:
        for line in drops(documents):
            out.print(line, highlight=False, markup=False)
    for document in documents:
        line = beaten(document)
        if line:
            out.print(line, soft_wrap=True, highlight=False, markup=False)


def _row_of(document: dict[str, Any], planner: str) -> dict[str, Any] | None:
    return next((row for row in document["rows"] if row["planner"] == planner), None)


def _speed(row: dict[str, Any] | None) -> str:
    if row is None or row["samples_per_s"] is None:
        return "-" if row is None else row["status"]
    if not row["fits"]:
        return "does not fit"
    return f"{row['samples_per_s']:.4g} ({100 * row['relative_to_best']:.1f})"


def _search(row: dict[str, Any] | None) -> str:
    return "-" if row is None else f"{row['search_s']:.2f}"


def drops(documents: Sequence[dict[str, Any]]) -> list[str]:
    """For a growing cluster: at how many joins each planner's new plan is slower than its last."""
    by_planner: dict[str, list[float]] = {}
    for document in documents:
        for row in document["rows"]:
            speed = row["samples_per_s"] if row["fits"] else 0.0
            by_planner.setdefault(row["planner"], []).append(speed)
    joins = len(documents) - 1
    return [
        f"{planner}: throughput fell at {sum(b < a for a, b in pairwise(found))} of {joins} joins"
        for planner, found in by_planner.items()
    ]


def beaten(document: dict[str, Any]) -> str:
    """Where arachne is not first: by whom, by how much, and with which plan; else empty."""
    ranked = sorted(
        (row for row in document["rows"] if row["fits"]), key=lambda row: row["iteration_s"]
    )
    mine = next((row for row in document["rows"] if row["planner"] == "arachne"), None)
    if not ranked or mine is None:
        return ""
    best = ranked[0]
    if mine["fits"] and mine["iteration_s"] <= best["iteration_s"]:
        return ""
    gap = f"{100 * (mine['iteration_s'] / best['iteration_s'] - 1):.2f} % faster"
    gap = gap if mine["fits"] else "the only plan that fits"
    return f"{document['title']}: {best['planner']} is first ({gap}): {best['stages']}"


def print_published(figures: Sequence[Beside]) -> None:
    """The paper's figures and ours, side by side."""
    from planner.cli.tables import plain_table

    rows = [
        {
            "figure": one.what,
            "paper": one.paper,
            "here": one.here or "-",
            "same thing": "as far as known" if one.known else "not known",
        }
        for one in figures
    ]
    console().print(plain_table(["figure", "paper", "here", "same thing"], rows))
