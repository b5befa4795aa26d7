from __future__ import annotations

import csv
import io
import math

from reports.figures import Figure, Table, category_colour, csv_cell, finite, plot_text, significant


def test_a_table_comes_back_from_its_csv() -> None:
    table = Table(("name", "ms"), (('a "quoted", name\nin two lines', 1.5), ("🕷️", None)))
    rows = list(csv.reader(io.StringIO(table.to_csv())))
    assert rows == [["name", "ms"], ['a "quoted", name\nin two lines', "1.5"], ["🕷️", ""]]


def test_text_that_a_spreadsheet_would_run_is_kept_from_it() -> None:
    assert csv_cell('=HYPERLINK("x")') == '\'=HYPERLINK("x")'
    assert csv_cell(-5.0) == -5.0
    assert csv_cell("plain") == "plain"


def test_plotly_gets_names_without_markup() -> None:
    assert plot_text("<b>&</b>") == "&lt;b&gt;&amp;&lt;/b&gt;"
    assert len(plot_text("x" * 300)) == 60


def test_json_has_no_nan() -> None:
    assert finite({"a": [math.nan, (math.inf, 1.0)], "b": "x"}) == {
        "a": [None, [None, 1.0]],
        "b": "x",
    }


def test_a_column_is_of_numbers_only_if_every_cell_is_one() -> None:
    table = Table(("a", "b", "c", "d"), ((1, "x", None, True), (2.5, 3, None, False)))
    assert [table.kind(i) for i in range(4)] == ["number", "text", "text", "text"]


def test_a_page_shows_the_first_rows_and_the_csv_has_all() -> None:
    table = Table(("i",), tuple((i,) for i in range(1000)))
    assert len(table.shown) == 200
    assert len(table.to_csv().splitlines()) == 1001


def test_a_figure_that_the_page_draws_carries_no_rows_of_its_own() -> None:
    table = Table(("i",), ((1,), (2,)))
    assert Figure("f", "F", "c", table).spec()["rows"] == [[1], [2]]
    assert Figure("f", "F", "c", table, drawn_by="x").spec()["rows"] == []


def test_colours_come_again_after_eight() -> None:
    assert category_colour(0) == category_colour(8) == "var(--c1)"


def test_seven_digits_are_kept() -> None:
    assert significant(1234.56789012) == 1234.568
    assert significant(0.0) == 0.0
