"""The comparison page of a suite in a real browser: growth, random plans, the paper's figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from db.store import Store
from reports.compare_page import compare_page
from reports.comparisons import read_comparisons, with_backdrop
from reports.page import write_page
from tests.reports.conftest import Visit, drawn, redrawn
from tests.reports.stores import fill_with_profiles, fill_with_suite
from tests.reports.test_browser_pages import MADE, draw_all, marks

pytestmark = pytest.mark.browser


def test_a_suite_shows_growth_random_plans_and_published_figures(
    store: Store, tmp_path: Path, visit: Callable[..., Visit]
) -> None:
    fill_with_suite(store)
    fill_with_profiles(store, ["h100", "a6000"])
    found = with_backdrop(store, read_comparisons(store), 30)
    page = visit().open(write_page(compare_page(found, MADE), tmp_path))
    assert draw_all(page) == ["throughput", "search", "space", "growth", "types"]
    assert marks(page, "growth") > 0
    assert marks(page, "types") > 0
    text = page.inner_text("main")
    assert "The paper's figures beside ours" in text
    assert "6.1 / 5.2 / 8.8 % (paper)" in text
    assert "1.00 to 3.00 s" in text
    question = page.locator("#choose [name=question]")
    redrawn(page, lambda: question.select_option("table paper: growing"))
    assert page.locator("#answers tbody tr").count() == 6
    drawn(page, "space")
    placed = page.evaluate("Arachne.figures.space.made.rows()")
    assert {row[1] for row in placed} == {"arachne", "metis", "random plan"}
    redrawn(page, lambda: question.select_option("3"))
    drawn(page, "space")
    placed = page.evaluate("Arachne.figures.space.made.rows()")
    random = [row for row in placed if row[1] == "random plan"]
    assert len(random) == len(found.backdrop[3]) > 5
    assert all(row[5] <= 100 for row in random)
