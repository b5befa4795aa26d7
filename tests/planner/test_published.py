"""Published figures: all that the project knows of, and ours worked out by hand beside them."""

from __future__ import annotations

import pytest

from planner.curves import whole_curve
from planner.published import Said, beside, leads, published
from planner.result import PlanResult, Status


def said(cell: str, planner: str, ms: float | None, **more: object) -> Said:
    known = {"table": "experts", "search_s": 1.0, "refused": 0, **more}
    return Said(cell=cell, planner=planner, iteration_ms=ms, **known)  # type: ignore[arg-type]


SAID = [
    said("a", "arachne", 100.0, search_s=0.5, refused=7),
    said("a", "metis", 110.0, search_s=9.0, refused=3),
    said("a", "metis (retiled)", 88.0),
    said("a", "annealing", 50.0),
    said("b", "arachne", 100.0, search_s=2.0, refused=1),
    said("b", "metis", 95.0),
    said("b", "sailor", None),
    said("b", "flat-rl", 125.0),
]


def test_every_published_figure_is_there() -> None:
    figures = {figure.name: figure for figure in published().figures}
    numbers = {
        number
        for figure in figures.values()
        for number in (*figure.values, figure.low, figure.high)
        if number is not None
    }
    assert {6.1, 5.2, 8.8, 2.5, 33, 49, 10_494, 3_159, 62.3, 1.6, 8.4, 5, 29} <= numbers
    assert {2.16, 19.2, 21.5, 32_000, 256_000} <= numbers


def test_leads_are_over_the_best_other_planner_of_the_cell() -> None:
    assert leads(SAID) == {"experts": [pytest.approx(10.0), pytest.approx(-5.0)]}


def test_ours_stand_beside_the_papers() -> None:
    rows = {row.name: row for row in beside(SAID)}
    assert (rows["leads"].paper, rows["leads"].here) == (
        "6.1 / 5.2 / 8.8 %",
        "experts +2.5 % (-5.0 to +10.0)",
    )
    assert not rows["leads"].known
    assert rows["search"].here == "0.50 to 2.00 s"
    assert rows["retiling"].here == "25.0 to 25.0 % of 1 plans"
    assert rows["refused"].here == "arachne 8, metis 3, annealing 0, sailor 0, flat-rl 0"
    assert rows["flat-rl-behind"].here == "20.0 to 20.0 % of 1 cells"
    assert rows["small-lead"].here == ""


def test_a_figure_of_some_tables_counts_only_those() -> None:
    others = [said("a", "metis", 110.0, table="x"), said("a", "metis (retiled)", 88.0, table="x")]
    assert {row.name: row.here for row in beside(others)}["retiling"] == ""


def test_a_curve_ends_where_the_search_ended() -> None:
    result = PlanResult(None, 1.0, 50, {}, Status.OK, curve=((3, 9.0), (20, 7.0)))
    assert whole_curve(result) == ((3, 9.0), (20, 7.0), (50, 7.0))
    assert whole_curve(PlanResult(None, 1.0, 50, {}, Status.OK)) == ()
