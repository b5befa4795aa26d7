"""A real browser for the pages: headless Chromium, watched for errors and network requests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from db.store import Store, open_store

# How long anything in the browser may take. Where a machine has more work than cores a page takes
# tens of times as long as on a quiet one, and a wait that ends early says nothing about the page.
# What really hangs is ended by these two.
PATIENCE_MS = 120_000  # one wait
TEST_S = 600  # one test
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-sync",
    "--no-first-run",
]


def _without(reason: str) -> NoReturn:
    """Skip for this reason, or fail where browser tests are required."""
    if os.environ.get("ARACHNE_REQUIRE_BROWSER") == "1":
        pytest.fail(f"ARACHNE_REQUIRE_BROWSER=1, but {reason}", pytrace=False)
    pytest.skip(reason)


def chromium() -> str:
    """The Chromium to drive: $ARACHNE_CHROMIUM, else the first on the PATH."""
    named = os.environ.get("ARACHNE_CHROMIUM")
    if named:
        found = shutil.which(named)
        if found is None:
            _without(f"$ARACHNE_CHROMIUM is {named}, which is no program")
        return found
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    _without("no chromium, chromium-browser or google-chrome on the PATH")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests in the browser get the time that several pages need on a busy machine."""
    for item in items:
        if item.get_closest_marker("browser") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TEST_S))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium, one for all tests of a worker."""
    path = chromium()
    try:
        from playwright.sync_api import Error, expect, sync_playwright
    except ImportError:
        _without("the Python package playwright is not installed")
    with sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(
                executable_path=path, args=ARGUMENTS, timeout=PATIENCE_MS
            )
        except Error as error:
            _without(f"{path} does not start: {str(error).splitlines()[0]}")
        expect.set_options(timeout=PATIENCE_MS)
        yield started
        started.close()


class Visit:
    """A page that is open, and everything that went wrong on it."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 900}, "color_scheme": "light", **options}
        )
        self.context.set_default_timeout(PATIENCE_MS)
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page = self.context.new_page()
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(f"{message.type}: {message.text}")

    def open(self, path: Path, fragment: str = "", *, ready: bool = True) -> Any:
        self.page.goto(path.resolve().as_uri() + fragment)
        if ready:
            # The pages forbid eval, which Playwright's own waiting for a function would need.
            self.page.wait_for_selector('html[data-ready="1"]', state="attached")
        return self.page

    def elsewhere(self) -> list[str]:
        """Requests for anything but a file of this machine or data inside the page."""
        return [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))]


def redrawn(page: Any, act: Callable[[], object]) -> None:
    """Do something and wait until what is in view has been drawn again."""
    before = page.locator("html").get_attribute("data-drawn")
    act()
    page.wait_for_selector(f'html[data-drawn]:not([data-drawn="{before}"])', state="attached")


def drawn(page: Any, figure: str) -> Any:
    """Bring a figure into view and wait until it is complete; the figure."""
    found = page.locator(f'[data-figure="{figure}"]')
    found.scroll_into_view_if_needed()
    page.wait_for_selector(f'[data-figure="{figure}"][data-drawn]', state="attached")
    return found


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Visit]]:
    """Opens pages; at the end none may have logged an error or asked a network for anything."""
    visits: list[Visit] = []

    def start(**options: Any) -> Visit:
        visits.append(Visit(browser, **options))
        return visits[-1]

    yield start
    errors = [error for visit in visits for error in visit.errors]
    elsewhere = [url for visit in visits for url in visit.elsewhere()]
    files = [url for visit in visits for url in visit.requests if url.startswith("file:")]
    for started in visits:
        started.context.close()
    assert errors == []
    assert elsewhere == []
    # One file each: a self-contained page loads nothing from the folder beside it either.
    assert all(url.partition("#")[0].endswith(".html") for url in files), files


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store of this test's own."""
    with open_store(tmp_path / "store.db") as opened:
        yield opened
