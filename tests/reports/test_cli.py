"""The door: what commands print, write and exit with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from db.store import open_store
from reports.cli import main
from tests.reports.stores import fill_with_runs


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture
def filled(tmp_path: Path) -> str:
    path = tmp_path / "store.db"
    with open_store(path) as store:
        fill_with_runs(store, 12, per_plan=3)
    return str(path)


def test_an_empty_store_gives_a_page_that_says_how_to_fill_it(tmp_path: Path) -> None:
    done = run("accuracy", "--store", str(tmp_path / "new.db"), "-o", str(tmp_path / "out"))
    assert done.exit_code == 0
    path = Path(done.stdout.strip())
    assert path == tmp_path / "out" / "accuracy.html"
    assert "arachne-prof run" in path.read_text()


def test_accuracy_prints_the_summary_and_the_path_of_the_page(filled: str, tmp_path: Path) -> None:
    done = run("accuracy", "--store", filled, "-o", str(tmp_path / "out"))
    assert done.exit_code == 0
    assert "measured" in done.stdout
    assert done.stdout.splitlines()[-1] == str(tmp_path / "out" / "accuracy.html")


def test_accuracy_prints_one_json_document(filled: str, tmp_path: Path) -> None:
    done = run("accuracy", "--store", filled, "-o", str(tmp_path / "out"), "--json")
    document = json.loads(done.stdout)
    beside = json.loads((tmp_path / "out" / "accuracy.json").read_text())
    assert document.pop("page") == str(tmp_path / "out" / "accuracy.html")
    assert document == beside
    assert len(document["rows"]) == 12
    assert {"predicted_ms", "measured_ms", "mad_ms", "profile_runs"} <= set(document["rows"][0])


def test_a_password_of_the_store_is_not_in_the_page(tmp_path: Path) -> None:
    done = run("accuracy", "--store", "postgresql://me:secret@127.0.0.1:1/x", "-o", str(tmp_path))
    assert done.exit_code == 1
    assert "secret" not in done.output


def test_an_earlier_report_that_is_not_there_is_one_line(filled: str, tmp_path: Path) -> None:
    gone = str(tmp_path / "gone.json")
    done = run("accuracy", "--store", filled, "-o", str(tmp_path), "--against", gone)
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1


def test_a_wrong_option_is_exit_2() -> None:
    assert run("accuracy", "--no-such-option").exit_code == 2
