"""The door: what commands print, write and exit with."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from db.store import open_store
from reports.cli import main
from specs.plan_file import plan_to_document
from tests.reports.stores import cluster_of, fill_with_runs, straight_plan


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


@pytest.mark.parametrize("command", ["accuracy", "compare", "profile", "reconfigure", "index"])
def test_every_command_makes_its_page_of_an_empty_store(command: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run(command, "--store", str(tmp_path / "new.db"), "-o", str(out))
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == str(out / f"{command}.html")


def test_index_writes_all_pages_and_those_of_the_chosen_plans(filled: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run("index", "--store", filled, "-o", str(out), "--plans", "2")
    assert done.exit_code == 0, done.output
    names = {path.name for path in out.glob("*.html")}
    assert len(names) == 5 + 2
    assert (out / "accuracy.json").exists()
    assert done.stdout.strip() == str(out / "index.html")


def test_a_plan_is_named_by_id_or_by_file(filled: str, tmp_path: Path) -> None:
    done = run("plan", "1", "--store", filled, "-o", str(tmp_path))
    assert done.exit_code == 0, done.output
    again = run("plan", str(tmp_path / "plan-1.json"), "--store", filled, "-o", str(tmp_path))
    # The file is the plan that the store has under that id: one page, with its runs.
    assert again.stdout == done.stdout == f"{tmp_path / 'plan-1.html'}\n"


def test_a_plan_that_is_not_there_is_one_line(filled: str, tmp_path: Path) -> None:
    for plan, complaint in (("999", "no plan 999"), ("gone.json", "no such file")):
        done = run("plan", plan, "--store", filled, "-o", str(tmp_path))
        assert done.exit_code == 1
        assert complaint in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_plan_without_profiles_says_which_command_brings_them(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    document = plan_to_document(straight_plan(cluster_of(("h100", 4, 1))))
    path.write_text(json.dumps(document))
    done = run("plan", str(path), "--store", str(tmp_path / "s.db"), "-o", str(tmp_path))
    assert done.exit_code == 1
    assert "arachne-prof" in done.stderr


def test_a_port_that_is_taken_is_one_line(filled: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run("serve", "--store", filled, "--port", str(taken.getsockname()[1]))
    assert done.exit_code == 1
    assert "--port" in done.stderr
