"""arachne-db."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from db import revisions
from db.cli import main
from db.store import open_store
from tests.db.samples import measured_run
from tests.db.test_revisions import NEXT, migrations_with


def call(*arguments: object, code: int = 0) -> Result:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    return done


def document(*arguments: object) -> Any:
    return json.loads(call(*arguments, "--json").stdout)


def test_init_makes_a_store_once(empty_url: str) -> None:
    made = document("init", "--store", empty_url)
    assert (made["created"], made["revision"]) == (True, revisions.known_revisions()[-1])
    assert document("init", "--store", empty_url)["created"] is False
    assert "there already" in call("init", "--store", empty_url).stdout


def test_upgrade_says_what_it_did_and_where_the_old_store_is(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = revisions.known_revisions()[-1]
    assert f"is at revision {old} already" in call("upgrade", "--store", url).stdout
    monkeypatch.setattr(revisions, "MIGRATIONS", migrations_with(tmp_path / "next", "pass"))
    done = document("upgrade", "--store", url)
    assert (done["from"], done["to"]) == (old, NEXT)
    if url.startswith("sqlite"):
        assert Path(done["backup"]).is_file()
    else:
        assert done["backup"] is None


def test_info_shows_tables_and_revision(url: str) -> None:
    with open_store(url) as store:
        measured_run(store)
    told = document("info", "--store", url)
    assert told["rows"]["layer_profiles"] == 4
    assert told["state"] == "current"
    shown = call("info", "--store", url).stdout
    assert "layer_profiles" in shown
    assert f"{told['revision']} (current" in shown


def test_export_and_import_carry_a_store(url: str, tmp_path: Path) -> None:
    with open_store(url) as store:
        measured_run(store)
    out, other = tmp_path / "out", tmp_path / "other.db"
    assert document("export", out, "--store", url)["rows"]["layer_profiles"] == 4
    assert document("import", out, "--store", other)["tables"]["layer_profiles"] == {
        "added": 4,
        "present": 0,
    }
    assert "there already" in call("import", out, "--store", other).stdout
    assert "16 rows" in call("export", tmp_path / "again", "--store", other).stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("info", "--store", "nowhere.db"), "no store there; arachne-db init makes one"),
        (("upgrade", "--store", "nowhere.db"), "no store there; arachne-db init makes one"),
        (("export", "out", "--store", "nowhere.db"), "no store there; arachne-db init makes one"),
        (("import", "nowhere"), "no such folder"),
        (("init", "--store", "mysql://x/y"), "expected a file, sqlite:///FILE or postgresql"),
        (("init", "--store", "no/such/folder/x.db"), "does not exist; make it first"),
    ],
)
def test_mistakes_are_one_line_on_stderr_and_exit_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ARACHNE_STORE", str(tmp_path / "lab.db"))
    done = call(*arguments, code=1)
    assert done.stdout == ""
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_wrong_options_exit_2() -> None:
    call("info", "--jsn", code=2)
    call("export", code=2)
    call("nothing", code=2)


def test_names_with_markup_are_shown_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "[bold]lab[red].db"
    call("init", "--store", path)
    assert "[bold]lab[red].db" in "".join(call("info", "--store", path).stdout.split())
