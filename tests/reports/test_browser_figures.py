"""Figures of a page in a real browser: drawn as they come into view, saved as files."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from db.store import Store
from reports.accuracy import read_accuracy
from tests.reports.stores import fill_with_runs
from tests.reports.test_browser_accuracy import Start, choose, make

pytestmark = pytest.mark.browser


def test_every_figure_is_saved_as_png_svg_and_csv(
    store: Store, tmp_path: Path, visit: Start
) -> None:
    from playwright.sync_api import TimeoutError, expect

    fill_with_runs(store, 40, per_plan=4)
    page = visit(accept_downloads=True).open(make(store, tmp_path))
    choose(page, "source", "measured")
    kept = [row for row in read_accuracy(store).rows if row.source == "measured"]

    def save(figure: str, kind: str, *, again: bool = True) -> bytes:
        name = f"accuracy-{figure}.{kind}"
        try:
            # A picture takes its time where other programs have the cores: seconds of drawing.
            with page.expect_download() as waiting:
                page.locator(f'[data-figure="{figure}"] [data-save="{kind}"]').click()
                # The click has come through: from here on only the drawing is waited for.
                expect(page.locator("#said")).to_have_text(re.compile(f"Sav(ing|ed) {name}"))
        except TimeoutError:
            # Once in thousands of files Chromium does not begin a download that the page has
            # started and said so; a reader clicks again. A page that never saves fails here.
            expect(page.locator("#said")).to_have_text(f"Saved {name}")
            assert again, f"{name} was not downloaded, twice"
            return save(figure, kind, again=False)
        assert waiting.value.suggested_filename == name
        return bytes(Path(waiting.value.path()).read_bytes())

    figures = page.locator("[data-figure]").evaluate_all("all => all.map(f => f.dataset.figure)")
    assert len(figures) == 6
    for figure in figures:
        assert save(figure, "png").startswith(b"\x89PNG\r\n")
        assert ElementTree.fromstring(save(figure, "svg")).tag.endswith("svg")
        lines = list(csv.reader(io.StringIO(save(figure, "csv").decode())))
        beside = list(csv.reader((tmp_path / f"accuracy-{figure}.csv").open()))
        assert len(lines) > 1, figure
        if figure != "histogram":  # the page saves its bars, the file beside it the errors
            assert lines[0] == beside[0], figure
            assert len(lines) == len(kept) + 1, figure
        assert len(beside) == 41, figure


def test_a_picture_that_cannot_be_made_is_said(store: Store, tmp_path: Path, visit: Start) -> None:
    from playwright.sync_api import expect

    fill_with_runs(store, 5)
    started = visit()
    page = started.open(make(store, tmp_path))
    page.evaluate("void (Plotly.toImage = () => Promise.reject(new Error('no room')))")
    page.locator('[data-figure="scatter"] [data-save="png"]').click()
    expect(page.locator("#said")).to_have_text("Could not save accuracy-scatter.png")
    if not started.errors:
        page.wait_for_event("pageerror")
    assert started.errors == ["no room"]  # and it stands in the console
    started.errors.clear()


def test_figures_that_come_into_view_leave_room_for_clicks(
    store: Store, tmp_path: Path, visit: Start
) -> None:
    """Two drawings never overlap: between them the page answers."""
    fill_with_runs(store, 40, per_plan=4)
    page = visit().open(make(store, tmp_path))
    page.evaluate(
        """() => {
            window.most = 0; let now = 0;
            const draw = Arachne.Figure.prototype.draw;
            Arachne.Figure.prototype.draw = async function () {
                window.most = Math.max(window.most, ++now);
                try { return await draw.call(this); } finally { now -= 1; }
            };
        }"""
    )
    page.evaluate("scrollTo(0, document.querySelector('[data-figure=trend]').offsetTop)")
    for name in ("noise", "trend", "memory"):
        page.wait_for_selector(f'[data-figure="{name}"][data-drawn]', state="attached")
    assert page.evaluate("window.most") == 1
