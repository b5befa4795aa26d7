"""Serves the pages of a store on loopback, made anew whenever the store has changed."""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from reports.page import Page, Provenance, render
from reports.page_set import PAGES, one_plan
from specs.errors import ArachneError, StoreError

if TYPE_CHECKING:
    from db.store import Store

log = logging.getLogger(__name__)

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
KEPT_PAGES = 12


def store_state(store: Store) -> str:
    """A text that changes whenever a page would: a row is added, replaced or deleted, a run ends.

    Made of the number of rows of each table and the newest moment of those that are written again,
    so that asking every few seconds costs nothing that counts.
    """
    from sqlalchemy import func, select

    from db.info import describe
    from db.tables import Measurement, Plan, ProfileRun

    rows = describe(store.url.render_as_string(hide_password=False)).rows
    with store.read() as connection:
        moments = [
            connection.execute(query).all()
            for query in (
                select(func.max(Measurement.created)),
                select(func.max(Plan.updated)),
                select(ProfileRun.status, func.max(ProfileRun.ended), func.count())
                .group_by(ProfileRun.status)
                .order_by(ProfileRun.status),
            )
        ]
    said = repr((sorted(rows.items()), moments))
    return hashlib.sha256(said.encode()).hexdigest()[:16]


class PageServer(ThreadingHTTPServer):
    """An HTTP server for the pages of one store; reads only, loopback only.

    opened: gives the store, once per request. provenance: of the pages, but for the time.
    """

    daemon_threads = True

    def __init__(self, port: int, opened: Callable[[], Store], provenance: Provenance) -> None:
        self.opened = opened
        self.provenance = provenance
        self._made: dict[str, tuple[str, str, Page]] = {}
        self._lock = threading.Lock()
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise StoreError(
                f"port {port} of 127.0.0.1 cannot be used ({error.strerror}): choose another with "
                "--port, or --port 0 for any free one"
            ) from None

    @property
    def address(self) -> str:
        """Where the first page is."""
        return f"http://127.0.0.1:{self.server_address[1]}/index.html"

    def state(self) -> str:
        """The state of the store now."""
        with self.opened() as store:
            return store_state(store)

    def page(self, name: str) -> tuple[str, Page] | None:
        """A page and its HTML, from the store as it is now; None where there is no such page."""
        with self.opened() as store:
            state = store_state(store)
            with self._lock:
                made = self._made.get(name)
            if made is not None and made[0] == state:
                return made[1], made[2]
            page = self._make(store, name)
            if page is None:
                return None
            page = replace(page, context={**page.context, "live_state": state})
            text = render(page, live=True)
        with self._lock:
            if len(self._made) >= KEPT_PAGES:
                self._made.clear()
            self._made[name] = (state, text, page)
        return text, page

    def _make(self, store: Store, name: str) -> Page | None:
        provenance = replace(self.provenance, made=datetime.now(UTC))
        if name in PAGES:
            return PAGES[name](store, provenance, {plan.id for plan in store.plans()})
        numbered = re.fullmatch(r"plan-(\d{1,18})", name)
        return one_plan(store, int(numbered.group(1)), provenance) if numbered else None

    def beside(self, name: str) -> str | None:
        """A file beside a page: the CSV of a figure, or a document of the page."""
        stem = name.rsplit(".", 1)[0]
        owners = [*PAGES] + ([m.group()] if (m := re.match(r"plan-\d{1,18}", stem)) else [])
        for owner in sorted(owners, key=len, reverse=True):
            if stem != owner and not stem.startswith(owner + "-"):
                continue
            found = self.page(owner)
            if found is None:
                continue
            page = found[1]
            if name in page.files:
                return page.files[name]
            for figure in page.figures:
                if page.csv_name(figure) == name:
                    return figure.table.to_csv()
        return None


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version = "arachne-report"
    sys_version = ""

    def do_GET(self) -> None:
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        if host not in LOOPBACK:
            # A name of someone else's that was made to point here: not one of our readers.
            self._send(HTTPStatus.FORBIDDEN, "only for this machine\n", "text/plain")
            return
        path = self.path.split("?", 1)[0].split("#", 1)[0].lstrip("/") or "index.html"
        try:
            self._answer(path)
        except StoreError as error:
            missing = str(error).startswith("no plan")
            status = HTTPStatus.NOT_FOUND if missing else HTTPStatus.SERVICE_UNAVAILABLE
            self._send(status, f"{error}\n", "text/plain")
        except ArachneError as error:
            self._send(HTTPStatus.CONFLICT, f"{error}\n", "text/plain")
        except (BrokenPipeError, ConnectionResetError):
            pass  # the reader left

    do_HEAD = do_GET

    def _answer(self, path: str) -> None:
        if path == "state":
            self._send(HTTPStatus.OK, self.server.state(), "text/plain")
            return
        if path.endswith(".html"):
            found = self.server.page(path.removesuffix(".html"))
            if found is not None:
                self._send(HTTPStatus.OK, found[0], "text/html")
                return
        elif path.endswith((".csv", ".json")):
            text = self.server.beside(path)
            if text is not None:
                kind = "text/csv" if path.endswith(".csv") else "application/json"
                self._send(HTTPStatus.OK, text, kind)
                return
        self._send(HTTPStatus.NOT_FOUND, "no such page\n", "text/plain")

    def _send(self, status: HTTPStatus, text: str, kind: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        log.debug(format, *args)
