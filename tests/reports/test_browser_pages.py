"""Every other page in a real browser, and the pages as they are served."""

from __future__ import annotations

import csv
import functools
import io
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from xml.etree import ElementTree

import pytest

from db.records import (
    ComparisonRow,
    CurvePoint,
    NewComparison,
    NewPolicy,
    NewReconfiguration,
    SearchCurve,
)
from db.store import Store, open_store
from planner.evaluate import evaluate_plan
from reports.page import Provenance, write_page
from reports.page_set import PAGES, one_plan, write_set
from reports.server import PageServer
from specs.model import load_model
from specs.profile import NewRun, RunStatus, Source
from specs.workload import Workload
from tests.reports.conftest import Visit, drawn, redrawn
from tests.reports.stores import (
    NASTY_NAMES,
    cluster_of,
    fill_with_comparisons,
    fill_with_profiles,
    fill_with_reconfigurations,
    iterations,
    named,
    predicted,
    stage_times_of,
    straight_plan,
    trace_of,
)

pytestmark = pytest.mark.browser

MADE = Provenance("store.db", datetime(2026, 11, 30, tzinfo=UTC), "0.1.0", "arachne-report index")
Start = Callable[..., Visit]


def fill(store: Store) -> int:
    """Profiles, comparisons, events, and a plan priced by the real cost model with two runs."""
    fill_with_profiles(store, ["h100", "a6000"])
    fill_with_profiles(store, ["h100"], source=Source.ESTIMATED, factor=1.1)
    fill_with_comparisons(store, 5)
    fill_with_reconfigurations(store, 3)
    plan = straight_plan(cluster_of(("h100", 4, 2), ("a6000", 4, 1)), global_batch=16)
    priced = evaluate_plan(store, plan)
    plan_id = store.add_plan(priced, planning_s=1.5, evaluations=99, rejected={"memory": 3})
    assert priced.prediction is not None
    time = priced.prediction.iteration_ms
    for run in ("first", "second"):
        rows = iterations([time, 1.1 * time, 0.9 * time], run=run, peak=10**9, drift=0.01)
        if run == "second":
            rows = [replace(row, stages=stage_times_of(plan)) for row in rows]
            store.add_trace(plan_id, trace_of(plan, run))
        store.add_measurements(plan_id, rows)
    return plan_id


def draw_all(page: Any) -> list[str]:
    """Bring every figure into view until it is drawn; their names."""
    figures = page.locator("[data-figure]")
    names = [str(n) for n in figures.evaluate_all("all => all.map(f => f.dataset.figure)")]
    for name in names:
        drawn(page, name)
    return names


def sideways(page: Any) -> int:
    """How far the page is wider than its window, in pixels."""
    return int(page.evaluate("document.documentElement.scrollWidth - innerWidth"))


def marks(page: Any, figure: str) -> int:
    """Points, lines, bars and cells that a figure shows."""
    drawn_as = (".scatterlayer .point", ".scatterlayer .js-line", ".barlayer .point")
    selector = ", ".join((*drawn_as, ".boxlayer .point", ".heatmaplayer image"))
    return int(page.locator(f'[data-figure="{figure}"] :is({selector})').count())


@pytest.fixture
def pages(store: Store, tmp_path: Path) -> tuple[Path, int]:
    """The folder with all pages of a filled store, and the id of its priced plan."""
    plan_id = fill(store)
    write_set(store, tmp_path / "out", MADE, [plan_id], lambda _: None)
    return tmp_path / "out", plan_id


def test_all_pages_of_a_set_open_on_a_desk_and_on_a_phone(
    pages: tuple[Path, int], visit: Start
) -> None:
    folder, plan_id = pages
    desk = visit()
    phone = visit(viewport={"width": 360, "height": 700}, is_mobile=True, color_scheme="dark")
    expected = {
        "index": [],
        "accuracy": ["scatter", "histogram", "groups", "terms", "noise", "trend", "memory"],
        "compare": ["throughput", "search", "space", "curves"],
        "profile": ["heat", "rate", "estimates", "linkTime", "linkBus"],
        "reconfigure": ["phases", "repeats"],
        f"plan-{plan_id}": [
            *("pipeline", "cluster", "parts", "timeline", "measured", "stages", "memory", "runs"),
        ],
    }
    assert {path.stem for path in folder.glob("*.html")} == set(expected)
    for name, figures in expected.items():
        page = desk.open(folder / f"{name}.html")
        assert draw_all(page) == figures, name
        assert sideways(page) <= 0, name
        for figure in figures:
            if figure not in ("pipeline", "cluster"):
                assert marks(page, figure) > 0, (name, figure)
        small = phone.open(folder / f"{name}.html")
        assert sideways(small) <= 0, name
        ends = "all => all.map(e => e.getBoundingClientRect().right)"
        assert all(x <= 360 for x in small.locator("select").evaluate_all(ends)), name
        assert small.evaluate("getComputedStyle(document.body).backgroundColor") == (
            "rgb(14, 19, 24)"
        )


HEARD = """() => {
    const found = [];
    const name = (e) => e.getAttribute("aria-label")
        || document.getElementById(e.getAttribute("aria-labelledby"))?.textContent || "";
    const landmarks = [...document.querySelectorAll(
        "section[aria-label], section[aria-labelledby], [role=region], nav, form")].map(name);
    for (const label of landmarks) {
        if (!label) found.push("a landmark without a name");
        if (landmarks.filter((other) => other === label).length > 1) found.push("twice: " + label);
    }
    const focusable = "a[href], button, input, select, summary, [tabindex]";
    for (const picture of document.querySelectorAll("[role=img]")) {
        if (picture.querySelector(focusable)) found.push("focus inside a picture");
        if (!name(picture)) found.push("a picture without a name");
    }
    for (const hidden of document.querySelectorAll("[aria-hidden=true]")) {
        if (hidden.querySelector(focusable)) found.push("focus inside what is hidden");
    }
    for (const e of document.querySelectorAll(focusable)) {
        if (e.matches("main, .scroll, .picture-scroll, summary")) continue;
        const text = name(e) || e.textContent.trim() || e.closest("label")?.textContent.trim();
        const named = text || e.getAttribute("data-title");
        if (!named) found.push("no name: " + e.outerHTML.slice(0, 90));
    }
    let last = 1;
    for (const heading of document.querySelectorAll("h1, h2, h3, h4")) {
        const level = Number(heading.tagName[1]);
        if (level > last + 1) found.push("a level left out before " + heading.textContent);
        last = level;
    }
    for (const box of document.querySelectorAll(".scroll")) {
        if (box.tabIndex !== 0 || !name(box)) found.push("a table that keys cannot scroll");
    }
    if (document.querySelectorAll("th:not([scope])").length) found.push("a heading of nothing");
    return found;
}"""


def test_every_page_makes_sense_to_a_screen_reader_and_to_keys(
    pages: tuple[Path, int], visit: Start
) -> None:
    folder, _ = pages
    started = visit()
    for path in sorted(folder.glob("*.html")):
        page = started.open(path)
        draw_all(page)
        assert page.evaluate(HEARD) == [], path.name
        page.evaluate("scrollTo(0, 0)")
        page.keyboard.press("Tab")
        page.wait_for_selector(".skip:focus", state="attached")
        for _step in range(4):
            page.keyboard.press("Tab")
            page.wait_for_selector(":focus-visible", state="attached")
            seen = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert seen == "solid", "where the focus is must be seen"
        headings = page.locator("table.sortable th button.sort:visible")
        if headings.count():
            headings.first.focus()
            page.wait_for_selector("button.sort:focus", state="attached")
            page.keyboard.press("Enter")
            page.wait_for_selector("table.sortable th[aria-sort=ascending]", state="attached")
            page.wait_for_selector("#said:has-text('Sorted by')", state="attached")


def test_pages_link_one_another_and_plans(pages: tuple[Path, int], visit: Start) -> None:
    folder, plan_id = pages
    page = visit().open(folder / "index.html")
    page.get_by_role("link", name=f"plan {plan_id}").click()
    page.wait_for_selector('html[data-ready="1"]', state="attached")
    assert "3 × " not in page.title()
    assert "tiny-llama-test on 2 × h100 + 1 × a6000" in page.inner_text("h1")
    page.get_by_role("navigation").get_by_role("link", name="Profiles").click()
    page.wait_for_selector('html[data-page="profile"][data-ready="1"]', state="attached")
    current = page.locator("nav [aria-current=page]")
    assert current.inner_text() == "Profiles"


def test_a_plan_page_says_what_the_plan_is(pages: tuple[Path, int], visit: Start) -> None:
    folder, plan_id = pages
    page = visit(accept_downloads=True).open(folder / f"plan-{plan_id}.html")
    text = page.inner_text("main")
    assert f"arachne-run plan-{plan_id}.json" in text
    assert "sets the pace" in text
    assert "fits" in text
    assert "exhaustive priced 99 plans in 1.500 s. Refused: 3 (memory)." in text
    assert (folder / f"plan-{plan_id}.json").exists()
    assert (folder / f"plan-{plan_id}-trace.json").exists()
    # The drawings are saved with their colours in them, not with names of the page's tokens.
    for kind in ("svg", "png", "csv"):
        with page.expect_download() as waiting:
            page.locator(f'[data-figure="pipeline"] [data-save="{kind}"]').click()
        saved = Path(waiting.value.path()).read_bytes()
        if kind == "png":
            assert saved.startswith(b"\x89PNG\r\n")
            assert len(saved) > 5000
        elif kind == "svg":
            ElementTree.fromstring(saved)
            assert b"var(--" not in saved
            assert b"rgb(38, 81, 194)" in saved
        else:
            assert len(list(csv.reader(io.StringIO(saved.decode())))) == 4
    rows = page.locator("section:has(#h-runs) [aria-labelledby=h-runs] tbody tr")
    assert rows.count() == 2
    terms = page.locator("[aria-label='Stages, predicted and measured']")
    assert "Stages of run second" in terms.inner_text()
    assert terms.locator("tbody tr").count() == 3 * 4
    assert "Iteration 3 of run second" in page.inner_text('[data-figure="measured"]')
    scales = [
        page.evaluate(f"Arachne.figures.{name}.spec.layout.xaxis.range")
        for name in ("timeline", "measured")
    ]
    assert scales[0] == scales[1]


def test_layers_and_links_can_be_chosen(pages: tuple[Path, int], visit: Start) -> None:
    folder, _ = pages
    page = visit().open(folder / "profile.html")
    form = page.locator("#choose-layer")
    assert form.locator("[name=layer]").input_value() == "block of tiny-llama-test"
    values = "Arachne.figures.heat.made.rows()"
    times = page.evaluate(values)
    # three GPU types and sources, six keys each
    assert len(times) == 18
    h100 = [row[7] for row in times if row[0] == "h100" and row[1] == "measured" and row[5] == 1]
    assert sorted(h100) == [3, 6, 12]
    redrawn(page, lambda: form.locator("[name=metric]").select_option("forward_ms"))
    h100 = [
        row[7]
        for row in page.evaluate(values)
        if row[0] == "h100" and row[1] == "measured" and row[5] == 1
    ]
    assert sorted(h100) == [1, 2, 4]
    redrawn(page, lambda: page.locator("#choose-link [name=operation]").select_option("p2p"))
    page.locator('[data-figure="linkBus"]').scroll_into_view_if_needed()
    curves = page.evaluate("Arachne.figures.linkBus.made.rows()")
    assert {row[3] for row in curves} == {"p2p"}


def test_one_question_can_be_chosen(pages: tuple[Path, int], visit: Start) -> None:
    folder, _ = pages
    page = visit().open(folder / "compare.html")
    assert page.locator("#answers tbody tr").count() == 15
    redrawn(page, lambda: page.locator("#choose [name=question]").select_option(index=4))
    assert page.locator("#answers tbody tr").count() == 3
    assert "every candidate ran out of memory" in page.inner_text("#answers")
    assert page.evaluate("Arachne.figures.throughput.made.rows().length") == 3


@pytest.mark.parametrize("name", list(PAGES))
def test_pages_of_an_empty_store_say_what_to_do(
    name: str, store: Store, tmp_path: Path, visit: Start
) -> None:
    page = visit().open(write_page(PAGES[name](store, MADE, ()), tmp_path))
    text = page.inner_text("main")
    assert "arachne-" in text
    assert page.locator(".plot").count() == 0


def test_nasty_names_do_nothing_on_any_page(store: Store, tmp_path: Path, visit: Start) -> None:
    cluster = cluster_of(("h100", 4, 2), name=NASTY_NAMES[0])
    model = named(load_model("tiny-llama-test"), NASTY_NAMES[1])
    run = fill_with_profiles(store, ["h100"], origin=NASTY_NAMES[4])
    store.add_model(model)
    for name in NASTY_NAMES:
        options = {"table": name}
        question = NewComparison(name, model, Workload(16, 128), cluster, name, name, options)
        comparison = store.add_comparison(question)
        plan = straight_plan(cluster, model=model, planner=name, global_batch=16)
        plan_id = store.add_plan(predicted(plan, 100.0, runs=[run]), rejected={name: 3})
        store.add_measurements(plan_id, iterations([90.0], run=name, host=name, origin=name))
        row = ComparisonRow(name, plan_id, "ok", name, 100.0, 1.0, 5, {name: 2})
        store.add_comparison_row(comparison, row)
        store.add_comparison_row(comparison, ComparisonRow("other", None, "no plan", name))
        points = (CurvePoint(1, 120.0), CurvePoint(9, 100.0))
        store.add_search_curve(comparison, SearchCurve(name, points))
        event = NewReconfiguration(name, None, plan_id, {name: 5.0}, run=name, host=name)
        store.add_reconfiguration(replace(event, origin=name, reason=name))
        policy = NewPolicy(name, name, [name], {}, name, origin=name, host=name)
        store.add_policy(policy)
    write_set(store, tmp_path / "out", MADE, [plan_id], lambda _: None)
    started = visit()
    for path in sorted((tmp_path / "out").glob("*.html")):
        page = started.open(path)
        draw_all(page)
        assert page.title().endswith("· Arachne"), path.name
        assert page.title() != "owned"
        found = "main :is(img, iframe, object), main td :is(b, script), main a[href^=javascript]"
        assert page.locator(found).count() == 0, path.name
        assert page.locator("svg a").count() == 0, path.name
        assert sideways(page) <= 0, path.name


@pytest.fixture
def served(store: Store, tmp_path: Path) -> Iterator[PageServer]:
    """A server of the store on a free port."""
    opened = functools.partial(open_store, tmp_path / "store.db")
    server = PageServer(0, opened, MADE)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(60)


def get(server: PageServer, path: str, **headers: str) -> tuple[int, str]:
    address = f"http://127.0.0.1:{server.server_address[1]}{path}"
    try:
        with urlopen(Request(address, headers=headers)) as answer:
            return int(answer.status), answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def test_a_served_page_shows_a_new_run_without_being_asked(
    store: Store, served: PageServer, browser: Any
) -> None:
    # Served pages do ask their own server for news: nothing else, which is held here by hand.
    plan = straight_plan(cluster_of(("h100", 4, 1)), global_batch=16)
    plan_id = store.add_plan(predicted(plan, 100.0))
    store.add_measurements(plan_id, iterations([90.0]))
    started = Visit(browser)
    page = started.page
    page.goto(served.address.replace("index", "accuracy"))
    page.wait_for_selector('html[data-ready="1"]', state="attached")
    assert page.inner_text("#count") == "1 run"
    store.add_measurements(plan_id, iterations([91.0], run="second"))
    page.wait_for_selector("#count:text('2 runs')")
    assert started.errors == []
    origin = f"http://127.0.0.1:{served.server_address[1]}/"
    assert [url for url in started.elsewhere() if not url.startswith(origin)] == []
    started.context.close()


def test_pages_and_their_files_are_served_and_nothing_else(
    store: Store, served: PageServer
) -> None:
    plan_id = fill(store)
    for name in PAGES:
        status, text = get(served, f"/{name}.html")
        assert (status, "<!doctype html>" in text) == (200, True), name
        assert "connect-src 'self'" in text.replace("&#39;", "'")
    assert get(served, "/")[0] == 200
    assert get(served, f"/plan-{plan_id}.html")[0] == 200
    for name in (f"plan-{plan_id}.json", f"plan-{plan_id}-trace.json", "accuracy.json"):
        assert get(served, f"/{name}")[0] == 200, name
    assert get(served, "/accuracy-scatter.csv")[1].startswith("plan_id,run,model")
    for name in ("/store.db", "/../store.db", "/plan-9999.html", "/x.csv", "/plan-1e3.html"):
        assert get(served, name)[0] == 404, name


def test_what_a_page_would_show_otherwise_changes_the_state(
    store: Store, served: PageServer
) -> None:
    seen = [get(served, "/state")[1]]

    def changed() -> bool:
        seen.append(get(served, "/state")[1])
        return seen[-1] != seen[-2]

    assert not changed()
    run = store.start_run(NewRun(Source.MEASURED, "arachne-prof run"))
    assert changed()
    store.finish_run(run, RunStatus.COMPLETE)
    assert changed()
    plan = straight_plan(cluster_of(("h100", 4, 1)), global_batch=16)
    plan_id = store.add_plan(predicted(plan, 100.0))
    assert changed()
    store.add_measurements(plan_id, iterations([90.0]))
    assert changed()
    store.add_measurements(plan_id, iterations([80.0]))  # the same iterations, written again
    assert changed()
    store.add_plan(predicted(plan, 101.0))  # the same plan, priced anew
    assert changed()
    assert not changed()


def test_only_this_machine_is_answered(served: PageServer) -> None:
    assert served.server_address[0] == "127.0.0.1"
    assert get(served, "/state", Host="evil.example")[0] == 403
    assert get(served, "/state", Host="localhost:1")[0] == 200


def test_the_page_of_one_plan_can_be_made_alone(store: Store, tmp_path: Path) -> None:
    plan_id = fill(store)
    path = write_page(one_plan(store, plan_id, MADE), tmp_path)
    assert path.name == f"plan-{plan_id}.html"
