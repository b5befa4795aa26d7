from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from db.store import Store
from reports.accuracy import Accuracy, read_accuracy
from reports.accuracy_page import accuracy_page, pack
from reports.page import Page, Provenance, plotly_js, render, script_json, write_page
from specs.errors import SpecError
from tests.reports.stores import NASTY, fill_with_runs

MADE = Provenance(NASTY, datetime(2026, 11, 30, tzinfo=UTC), "0.1.0", "arachne-report accuracy")


def page_of(store: Store) -> Page:
    return accuracy_page(read_accuracy(store), store.profile_runs(), MADE)


def test_every_script_of_a_page_is_allowed_by_its_hash_and_no_other(store: Store) -> None:
    fill_with_runs(store, 3)
    text = render(page_of(store))
    policy = html.unescape(re.search(r'Policy" content="([^"]*)"', text).group(1))  # type: ignore[union-attr]
    allowed = set(re.findall(r"'sha256-([^']*)'", policy))
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    found = {base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts}
    assert found == allowed
    assert len(scripts) >= 7
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert "unsafe-eval" not in policy


def test_a_page_names_no_address_to_load_from(store: Store) -> None:
    fill_with_runs(store, 3)
    text = render(page_of(store)).replace(plotly_js(), "")
    assert re.findall(r"""(?:src|href|action|url)\s*[=(]\s*["']?(?:https?:)?//""", text) == []


def test_the_bundle_is_inlined_once(store: Store) -> None:
    fill_with_runs(store, 3)
    assert render(page_of(store)).count("plotly.js v") == plotly_js().count("plotly.js v")


def test_a_page_without_figures_goes_without_the_bundle() -> None:
    text = render(accuracy_page(Accuracy((), {}, 0), [], MADE))
    assert len(text) < 100_000
    assert "The store is empty" in text


def test_no_text_can_close_the_element_that_holds_the_data() -> None:
    text = script_json({"name": NASTY, "line": "\u2028", "amp": "&lt;"})
    assert "<" not in text
    assert "\u2028" not in text
    assert json.loads(text) == {"name": NASTY, "line": "\u2028", "amp": "&lt;"}


def test_names_are_escaped_where_the_page_is_text(store: Store) -> None:
    text = render(page_of(store))
    assert NASTY not in text
    assert html.escape(NASTY, quote=False)[:20] in text


def test_a_page_is_written_whole_or_not_at_all(store: Store, tmp_path: Path) -> None:
    fill_with_runs(store, 3)
    out = tmp_path / "out"
    path = write_page(page_of(store), out)
    first = path.read_text()
    assert path == out / "accuracy.html"
    assert {p.name for p in out.iterdir()} >= {"accuracy-scatter.csv", "accuracy-runs.csv"}
    assert not [p for p in out.iterdir() if p.name.startswith(".")]
    broken = Page("accuracy", "x", "no-such-template.j2", MADE)
    with pytest.raises(Exception, match="no-such-template"):
        write_page(broken, out)
    assert path.read_text() == first


def test_a_folder_that_cannot_be_made_is_one_line(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(SpecError, match="cannot be written"):
        write_page(page_of(store), tmp_path / "file" / "sub")


def test_packed_rows_repeat_no_text(store: Store) -> None:
    fill_with_runs(store, 40, per_plan=20)
    rows = read_accuracy(store).rows
    packed = pack(rows)
    values, index = packed["text"]["source"]
    assert sorted(values) == ["imported", "measured"]
    assert [values[i] for i in index] == [row.source for row in rows]
    assert packed["numbers"]["plan_id"] == [row.plan_id for row in rows]
    assert packed["count"] == 40
