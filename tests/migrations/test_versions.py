"""The revisions: in one line, numbered, up and down again."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, text

from db.engine import store_url
from db.revisions import MIGRATIONS, known_revisions
from db.store import open_store
from tests.db.samples import measured_run, plan
from tests.db.test_tables import described

ROOT = MIGRATIONS.parent
FILES = sorted((MIGRATIONS / "versions").glob("r*.py"))


def alembic(*arguments: str, store: str | None = None) -> subprocess.CompletedProcess[str]:
    named = ["-x", f"store={store}"] if store else []
    environment = {name: value for name, value in os.environ.items() if name != "ARACHNE_STORE"}
    return subprocess.run(
        [sys.executable, "-m", "alembic", "-c", "migrations/alembic.ini", *named, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
    )


def test_revisions_stand_in_one_line_numbered_as_their_files() -> None:
    """`db.revisions` reads the newest revision from the file names."""
    scripts = ScriptDirectory(str(MIGRATIONS))
    line = [script.revision for script in scripts.walk_revisions()][::-1]
    assert line == known_revisions() == [f"{i + 1:04}" for i in range(len(line))]
    assert scripts.get_heads() == [line[-1]]


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_a_revision_imports_none_of_our_rooms_and_has_a_title(file: Path) -> None:
    tree = ast.parse(file.read_text())
    title = ast.get_docstring(tree)
    assert title
    assert title.splitlines()[0].endswith(".")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] in {"__future__", "alembic", "sqlalchemy"}


def test_check_is_quiet_without_a_store_of_ones_own() -> None:
    done = alembic("check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No new upgrade operations detected" in done.stdout


def test_check_is_quiet_on_both_backends(url: str) -> None:
    done = alembic("check", store=url)
    assert done.returncode == 0, done.stdout + done.stderr


def test_check_sees_a_table_that_differs(url: str) -> None:
    """So that its silence means something."""
    engine = create_engine(store_url(url))
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE plans ADD COLUMN extra VARCHAR"))
        connection.execute(text("DROP INDEX ix_plans_plan_hash"))
    engine.dispose()
    done = alembic("check", store=url)
    assert done.returncode != 0
    assert "extra" in done.stdout + done.stderr
    assert "ix_plans_plan_hash" in done.stdout + done.stderr


def test_down_to_nothing_and_up_again_gives_the_same_tables(url: str) -> None:
    engine = create_engine(store_url(url))
    with open_store(url) as store:
        run = measured_run(store)
        store.add_plan(plan(run))
    with engine.begin() as connection:
        before = described(connection)
    done = alembic("downgrade", "base", store=url)
    assert done.returncode == 0, done.stderr
    with engine.begin() as connection:
        assert set(inspect(connection).get_table_names()) <= {"alembic_version"}
    for target in [*known_revisions(), "head"]:
        done = alembic("upgrade", target, store=url)
        assert done.returncode == 0, done.stderr
    with engine.begin() as connection:
        assert described(connection) == before
    engine.dispose()
    with open_store(url) as store:
        assert not store.opening.created
        assert not store.opening.upgraded
        measured_run(store)


def test_each_revision_goes_down_and_up_again_by_itself(url: str) -> None:
    engine = create_engine(store_url(url))
    for _ in known_revisions()[1:]:
        with engine.begin() as connection:
            before = described(connection)
        for step in ("-1", "+1"):
            name = "downgrade" if step == "-1" else "upgrade"
            done = alembic(name, step, store=url)
            assert done.returncode == 0, done.stderr
        with engine.begin() as connection:
            assert described(connection) == before
        assert alembic("downgrade", "-1", store=url).returncode == 0
    engine.dispose()


def test_a_store_taken_down_to_nothing_is_a_new_store(url: str) -> None:
    assert alembic("downgrade", "base", store=url).returncode == 0
    with open_store(url) as store:
        assert store.opening.created


def test_revisions_cannot_be_written_out_as_sql_alone() -> None:
    done = alembic("upgrade", "head", "--sql")
    assert done.returncode != 0
    assert "without --sql" in done.stderr


def test_a_new_revision_starts_from_the_template(tmp_path: Path) -> None:
    folder = tmp_path / "migrations"
    shutil.copytree(MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "alembic", "-c", str(folder / "alembic.ini"), "revision"]
    done = subprocess.run(
        [*command, "--rev-id", "9999", "-m", "one thing"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    made = folder / "versions" / "r9999_one_thing.py"
    text = made.read_text()
    assert 'revision: str = "9999"' in text.replace("'", '"')
    assert text.startswith('"""one thing')
    compile(text, str(made), "exec")
