"""The accuracy page in a real browser."""

from __future__ import annotations

import csv
import json
import re
import statistics
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from db.store import Store
from reports import words
from reports.accuracy import read_accuracy
from reports.accuracy_page import accuracy_page
from reports.page import Provenance, write_page
from specs.model import load_model
from specs.profile import Source
from tests.reports.conftest import Visit, drawn, redrawn
from tests.reports.stores import (
    NASTY_NAMES,
    cluster_of,
    fill_with_runs,
    iterations,
    named,
    predicted,
    profile_run,
    stage_times_of,
    straight_plan,
)

pytestmark = pytest.mark.browser

MADE = Provenance(
    "store.db", datetime(2026, 11, 30, tzinfo=UTC), "0.1.0", "arachne-report accuracy"
)
Start = Callable[..., Visit]


def make(store: Store, folder: Path) -> Path:
    return write_page(accuracy_page(read_accuracy(store), store.profile_runs(), MADE), folder)


def points(page: Any, figure: str) -> int:
    """Marks that a scatter figure has drawn."""
    drawn(page, figure)
    return int(page.locator(f'[data-figure="{figure}"] .scatterlayer .point').count())


def cells(page: Any, table: str, column: int) -> list[str]:
    return [
        str(t) for t in page.locator(f"#{table} tbody tr > :nth-child({column})").all_inner_texts()
    ]


def choose(page: Any, name: str, value: str) -> None:
    redrawn(page, lambda: page.select_option(f"select[name={name}]", value))


@pytest.mark.parametrize("rows", [0, 1, 10])
def test_figures_draw_with_few_rows(rows: int, store: Store, tmp_path: Path, visit: Start) -> None:
    if rows:
        fill_with_runs(store, rows, per_plan=3)
    page = visit().open(make(store, tmp_path))
    if rows == 0:
        assert "The store is empty" in page.inner_text("main")
        assert page.locator(".plot").count() == 0
        return
    assert page.inner_text("#count").startswith(f"{rows} run")
    assert points(page, "scatter") == rows
    for name in ("noise", "trend", "memory"):
        drawn(page, name)
    assert points(page, "memory") == rows
    assert page.locator("#every-run tbody tr").count() == rows


def test_ten_thousand_rows_stay_below_8_mb_and_all_are_drawn(
    store: Store, tmp_path: Path, visit: Start
) -> None:
    fill_with_runs(store, 10_000, per_plan=100)
    path = make(store, tmp_path)
    assert path.stat().st_size < 8_000_000
    page = visit().open(path)
    assert points(page, "scatter") == 10_000
    assert page.locator("#every-run tbody tr").count() == 100
    assert "of 10\u202f000" in page.inner_text("#every-pager")
    page.get_by_role("button", name="Next rows").click()
    assert page.inner_text("#every-pager .where").startswith("101–200")
    choose(page, "source", "imported")
    shown = int(re.sub(r"\D", "", page.inner_text("#count").split(" of ")[0]))
    assert shown == 3300
    # Out of view, a figure is drawn again when the reader comes back to it.
    drawn(page, "scatter")
    assert points(page, "scatter") == 3300


def test_filters_act_on_summary_figures_and_tables_alike(
    store: Store, tmp_path: Path, visit: Start
) -> None:
    fill_with_runs(store, 60, per_plan=4)
    rows = read_accuracy(store).rows
    page = visit().open(make(store, tmp_path))
    choose(page, "source", "estimated")
    choose(page, "gpu", "h100")
    kept = [row for row in rows if row.source == "estimated" and "h100" in row.hardware]
    errors = [100 * abs(row.error) for row in kept]
    assert 0 < len(kept) < 20
    assert page.inner_text("#count") == f"{len(kept)} of 60 runs"
    assert points(page, "scatter") == len(kept)
    assert page.locator("#every-run tbody tr").count() == len(kept)
    assert {text.strip() for text in cells(page, "every-run", 5)} == {"estimated"}
    card = page.locator('.card[data-source="estimated"]')
    assert card.locator('[data-field="median_percent"]').inner_text() == words.percent(
        statistics.median(errors)
    )
    assert card.locator('[data-field="mean_percent"]').inner_text() == words.percent(
        statistics.mean(errors)
    )
    worst = max((100 * row.error for row in kept), key=abs)
    assert card.locator('[data-field="worst_percent"]').inner_text() == words.signed_percent(worst)
    assert card.locator('[data-field="runs"]').inner_text() == str(len(kept))
    assert "empty" in str(page.locator('.card[data-source="measured"]').get_attribute("class"))
    visible = page.locator("#groups tbody tr:visible")
    assert visible.all_inner_texts() != []
    assert all("h100" in text for text in visible.all_inner_texts())
    histogram = page.evaluate("Arachne.figures.histogram.made.rows().reduce((a, r) => a + r[3], 0)")
    assert histogram == len(kept)
    page.get_by_role("button", name="All runs").click()
    assert page.inner_text("#count") == "60 runs"


def test_a_filter_stands_in_the_address_and_comes_back(
    store: Store, tmp_path: Path, visit: Start
) -> None:
    fill_with_runs(store, 30, per_plan=2)
    path = make(store, tmp_path)
    first = visit()
    choose(first.open(path), "planner", "planner-1")
    fragment = first.page.evaluate("location.hash")
    again = visit().open(path, fragment)
    assert again.locator("select[name=planner]").input_value() == "planner-1"
    assert again.inner_text("#count") == first.page.inner_text("#count")


def test_the_summary_in_the_page_is_the_summary_of_python(
    store: Store, tmp_path: Path, visit: Start
) -> None:
    fill_with_runs(store, 60, per_plan=4)
    path = make(store, tmp_path)
    written = visit(java_script_enabled=False).open(path, ready=False)
    page = visit().open(path)
    for selector in (".card [data-field]", "#groups [data-field]"):
        told = written.locator(selector).all_inner_texts()
        assert len(told) > 10
        assert page.locator(selector).all_inner_texts() == told


def test_numbers_are_said_alike_by_python_and_by_the_page(
    store: Store, tmp_path: Path, visit: Start
) -> None:
    page = visit().open(make(store, tmp_path))
    values = [
        0,
        1,
        -1,
        0.001,
        0.7,
        1.25,
        9.999,
        12.345,
        -0.125,
        6.25,
        1234.5,
        1280,
        99_999,
        2.5e5,
        1e7,
        3e12,
    ]
    said = page.evaluate(
        "values => values.map(v => [Arachne.words.ms(v), Arachne.words.percent(v),"
        " Arachne.words.signed(v), Arachne.words.memory(v), Arachne.words.number(v)])",
        values,
    )
    assert said == [
        [
            words.ms(v),
            words.percent(v),
            words.signed_percent(v),
            words.memory(v),
            words.number(v),
        ]
        for v in values
    ]


def test_tables_are_sorted_by_click_and_by_key(store: Store, tmp_path: Path, visit: Start) -> None:
    from playwright.sync_api import expect

    fill_with_runs(store, 12, per_plan=3)
    page = visit().open(make(store, tmp_path))
    heading = page.locator("#every-run th", has_text="Plan").first
    heading.get_by_role("button").click()
    expect(heading).to_have_attribute("aria-sort", "ascending")
    plans = [int(text.split()[1]) for text in cells(page, "every-run", 1)]
    assert plans == sorted(plans)
    heading.get_by_role("button").focus()
    page.keyboard.press("Enter")
    expect(heading).to_have_attribute("aria-sort", "descending")
    plans = [int(text.split()[1]) for text in cells(page, "every-run", 1)]
    assert plans == sorted(plans, reverse=True)
    expect(page.locator("#said")).to_contain_text("Sorted by Plan, descending")

    runs = page.locator("#groups th", has_text="Median").first
    runs.get_by_role("button").focus()
    page.keyboard.press("Space")
    expect(runs).to_have_attribute("aria-sort", "ascending")
    medians = [float(text.rstrip(" %")) for text in cells(page, "groups", 5)]
    assert medians == sorted(medians)


def test_the_ten_worst_runs_are_listed(store: Store, tmp_path: Path, visit: Start) -> None:
    fill_with_runs(store, 30, per_plan=2)
    rows = sorted(read_accuracy(store).rows, key=lambda row: -abs(row.error))[:10]
    page = visit().open(make(store, tmp_path))
    shown = [text.strip() for text in cells(page, "worst-runs", 2)]
    assert shown == [words.signed_percent(100 * row.error) for row in rows]


HOVER = """() => {
    const plot = document.querySelector('[data-figure="scatter"] .plot');
    const curve = plot.data.findIndex((trace) => trace.text && trace.text.length);
    Plotly.Fx.hover(plot, [{ curveNumber: curve, pointNumber: 0 }]);
    return plot.querySelector(".hoverlayer").textContent;
}"""


def test_nasty_names_are_shown_and_do_nothing(store: Store, tmp_path: Path, visit: Start) -> None:
    for i, name in enumerate(NASTY_NAMES):
        run = profile_run(store, Source.IMPORTED, name, host=name, licence=name, driver=name)
        plan = straight_plan(
            cluster_of(("gh200", 4, 1), name=name[:200]),
            model=named(load_model("tiny-llama-test"), name),
            planner=name,
            global_batch=32 + i,
        )
        plan_id = store.add_plan(predicted(plan, 110.0, runs=[run], sources=["imported"]))
        store.add_measurements(plan_id, iterations([100.0], run=name, host=name, origin=name))
    page = visit().open(make(store, tmp_path))
    assert page.title() == "Accuracy · Arachne"
    assert page.locator("main img, main iframe, main td b, main td a").count() == 0
    assert page.locator("script").count() == page.evaluate("document.scripts.length")
    assert sorted(cells(page, "every-run", 2)) == sorted(
        n.replace("\u202e", "\u202e") for n in NASTY_NAMES
    )
    for name in NASTY_NAMES:
        choose(page, "model", name)
        assert page.inner_text("#count") == f"1 of {len(NASTY_NAMES)} runs"
        # A name as hover text of a figure: shown, not run.
        shown = page.evaluate(HOVER)
        assert "predicted" in shown
    assert page.title() == "Accuracy · Arachne"
    assert page.locator("[data-figure] .hoverlayer a").count() == 0
    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0


def test_dark_mode_follows_the_system_and_the_button(
    store: Store, tmp_path: Path, visit: Start
) -> None:
    fill_with_runs(store, 5)
    path = make(store, tmp_path)
    ground = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('[data-figure=scatter] .xtick text')).fill"
    light, dark = visit().open(path), visit(color_scheme="dark").open(path)
    assert light.evaluate(ground) == "rgb(247, 246, 242)"
    assert dark.evaluate(ground) == "rgb(14, 19, 24)"
    assert light.evaluate(ink) != dark.evaluate(ink)
    redrawn(light, light.get_by_role("button", name="theme, switch").click)
    assert light.evaluate(ground) == dark.evaluate(ground)
    assert light.evaluate(ink) == dark.evaluate(ink)
    assert light.get_by_role("button", name="theme, switch").get_attribute("aria-pressed") == "true"
    light.reload()
    light.wait_for_selector('html[data-ready="1"]', state="attached")
    assert light.evaluate(ground) == dark.evaluate(ground)


@pytest.mark.parametrize("width", [320, 390])
def test_a_phone_does_not_scroll_the_page_sideways(
    width: int, store: Store, tmp_path: Path, visit: Start
) -> None:
    fill_with_runs(store, 30, per_plan=2)
    page = visit(viewport={"width": width, "height": 700}, has_touch=True, is_mobile=True).open(
        make(store, tmp_path)
    )
    for name in page.locator("[data-figure]").evaluate_all("all => all.map(f => f.dataset.figure)"):
        drawn(page, name)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # Wide tables scroll in boxes of their own, which a keyboard reaches.
    box = page.locator(".scroll", has=page.locator("#every-run"))
    assert box.evaluate("box => box.scrollWidth > box.clientWidth")
    assert box.get_attribute("tabindex") == "0"


def test_paper_is_light_has_every_row_and_no_controls(
    store: Store, tmp_path: Path, visit: Start
) -> None:
    fill_with_runs(store, 150, per_plan=10)
    started = visit(color_scheme="dark")
    page = started.open(make(store, tmp_path))
    assert page.locator("#every-run tbody tr").count() == 100
    page.emulate_media(media="print")
    page.wait_for_selector('html[data-print="1"]', state="attached")
    assert page.locator("#every-run tbody tr").count() == 150
    assert not page.locator(".filters").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    # Figures that were never scrolled to are on the paper too, in ink that shows on white.
    ink = "getComputedStyle(document.querySelector('[data-figure=memory] .xtick text')).fill"
    assert page.evaluate(ink) == "rgb(27, 32, 39)"
    page.emulate_media(media="screen")
    page.wait_for_selector("html:not([data-print])", state="attached")
    assert page.locator("#every-run tbody tr").count() == 100
    assert page.pdf().startswith(b"%PDF-")


def test_the_page_can_be_used_without_a_mouse(store: Store, tmp_path: Path, visit: Start) -> None:
    fill_with_runs(store, 6)
    page = visit().open(make(store, tmp_path))
    page.keyboard.press("Tab")
    page.wait_for_selector(".skip:focus", state="attached")
    page.keyboard.press("Enter")
    page.wait_for_url("**#main")
    nameless = page.evaluate(
        """() => [...document.querySelectorAll(
            "button, select, input, a[href], [role=region], figure, table")]
          .filter((e) => {
            if (e.tagName === "TABLE") return !e.closest("[aria-label], [aria-labelledby]");
            const label = e.getAttribute("aria-label") || e.getAttribute("aria-labelledby");
            return !(label || e.innerText?.trim() || e.closest("label")?.innerText.trim());
          }).map((e) => e.outerHTML.slice(0, 120))"""
    )
    assert nameless == []
    levels = page.locator("h1, h2, h3").evaluate_all("all => all.map(h => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert page.locator("th:not([scope])").count() == 0
    broken = page.evaluate(
        """() => [...document.querySelectorAll("[aria-labelledby]")]
          .filter((e) => !document.getElementById(e.getAttribute("aria-labelledby"))).length"""
    )
    assert broken == 0


def test_axes_can_be_chosen(store: Store, tmp_path: Path, visit: Start) -> None:
    fill_with_runs(store, 20, per_plan=2)
    page = visit().open(make(store, tmp_path))
    kind = "document.querySelector('[data-figure=scatter] .plot')._fullLayout.xaxis.type"
    assert page.evaluate(kind) == "log"
    redrawn(page, page.get_by_label("linear", exact=True).check)
    assert page.evaluate(kind) == "linear"
    redrawn(page, page.get_by_label("error", exact=True).check)
    title = "document.querySelector('[data-figure=scatter] .ytitle').textContent"
    assert page.evaluate(title) == "error, % of the measured time"
    assert points(page, "scatter") == 20


def test_data_of_the_page_is_the_data_of_the_store(
    store: Store, tmp_path: Path, visit: Start
) -> None:
    fill_with_runs(store, 9, per_plan=3)
    rows = read_accuracy(store).rows
    page = visit().open(make(store, tmp_path))
    data = json.loads(str(page.locator("#data").text_content()))["rows"]
    assert data["numbers"]["predicted_ms"] == pytest.approx([r.predicted_ms for r in rows])
    assert data["numbers"]["error"] == pytest.approx([100 * r.error for r in rows], rel=1e-6)


def _overlaps(page: Any, figure: str) -> list[bool]:
    """Whether legend and buttons of a figure share any pixel; empty where it has no legend."""
    drawn(page, figure)
    found = page.evaluate(
        """figure => {
            const plot = document.querySelector(`[data-figure="${figure}"] .plot`);
            const a = plot.querySelector(".legend .bg"), b = plot.querySelector(".modebar");
            if (!a || !b) return [];
            const [p, q] = [a.getBoundingClientRect(), b.getBoundingClientRect()];
            return [p.right > q.left && p.left < q.right && p.bottom > q.top && p.top < q.bottom];
        }""",
        figure,
    )
    return [bool(one) for one in found]


@pytest.mark.parametrize("width", [1280, 1000, 700])
def test_legends_stay_clear_of_the_buttons(
    width: int, store: Store, tmp_path: Path, visit: Start
) -> None:
    fill_with_runs(store, 40, per_plan=4)
    page = visit(viewport={"width": width, "height": 900}).open(make(store, tmp_path))
    names = page.locator("[data-figure]").evaluate_all("all => all.map(f => f.dataset.figure)")
    seen = [overlap for name in names for overlap in _overlaps(page, name)]
    assert len(seen) >= 4
    assert not any(seen)
    choose(page, "source", "measured")  # drawn again, with another legend
    assert _overlaps(page, "scatter") in ([], [False])


def test_terms_of_stages_follow_the_filters(store: Store, tmp_path: Path, visit: Start) -> None:
    for source, factor, gpu in ((Source.MEASURED, 1.25, "h100"), (Source.ESTIMATED, 0.5, "a6000")):
        run = profile_run(store, source, source.value)
        plan = predicted(
            straight_plan(cluster_of((gpu, 1, 3)), planner=source.value),
            110.0,
            runs=[run],
            sources=[source.value],
        )
        rows = iterations([100.0, 102.0, 101.0])
        plan_id = store.add_plan(plan)
        store.add_measurements(
            plan_id, [replace(row, stages=stage_times_of(plan, factor)) for row in rows]
        )
    page = visit(accept_downloads=True).open(make(store, tmp_path))
    figure = drawn(page, "terms")
    assert "6 stages of 2 runs" in figure.inner_text()
    assert page.locator("#terms tbody tr").count() == 2 * 4 * 3
    choose(page, "source", "measured")
    assert "3 stages of 1 run" in figure.inner_text()
    assert page.locator("#terms tbody tr").count() == 4 * 3
    errors = {text.strip() for text in cells(page, "terms", 7)}
    assert errors == {words.signed_percent(-20.0)}
    rows_shown = page.evaluate("Arachne.figures.terms.made.rows()")
    assert len(rows_shown) == 3 * 4
    assert [row[7] for row in rows_shown[:4]] == ["compute", "communication", "sync", "update"]
    kept = list(csv.reader((tmp_path / "accuracy-terms.csv").open()))
    assert len(kept) == 1 + 2 * 3 * 4
