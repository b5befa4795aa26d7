"""Stores older and newer than this program; upgrades that are interrupted."""

from __future__ import annotations

import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import inspect, text

from db import revisions
from db.engine import migration_transaction, store_url
from db.revisions import MIGRATIONS, State, bring_to_head, known_revisions, look_at, run_revisions
from db.store import open_store
from specs.errors import StoreError
from specs.measurement import Measurement, StageTimes
from tests.db.processes import Process
from tests.db.samples import measured_run, plan, profile

NEXT = f"{int(known_revisions()[-1]) + 1:04}"

# A revision as the next one might be: it makes a table anew that others point at (batch mode on
# SQLite), fills a new column, and adds a table. HALFWAY is put where the test wants it to stop.
REVISION = f'''
import sqlalchemy as sa
from alembic import op

revision = "{NEXT}"
down_revision = "{known_revisions()[-1]}"
branch_labels = None
depends_on = None


def upgrade():
    how = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    with op.batch_alter_table("profile_runs", recreate=how) as batch:
        batch.add_column(sa.Column("room", sa.String, nullable=False, server_default="lab"))
    op.execute("UPDATE profile_runs SET room = 'attic'")
    HALFWAY
    op.create_table("rooms", sa.Column("id", sa.Integer, primary_key=True))


def downgrade():
    op.drop_table("rooms")
    with op.batch_alter_table("profile_runs") as batch:
        batch.drop_column("room")
'''
HANG = 'print("ready", flush=True); import time; time.sleep(600)'


@pytest.fixture
def next_migrations(tmp_path: Path) -> Path:
    """The revisions of a program that is one revision ahead of this one."""
    return migrations_with(tmp_path / "next" / "migrations", "pass")


def migrations_with(folder: Path, halfway: str) -> Path:
    shutil.copytree(MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    text = REVISION.replace("HALFWAY", halfway)
    (folder / "versions" / f"r{NEXT}_rooms.py").write_text(text)
    return folder


def backups(url: str) -> list[Path]:
    path = Path(str(store_url(url).database))
    return sorted(path.parent.glob(f"{path.name}.*"))


def fill(url: str) -> tuple[int, int]:
    with open_store(url) as store:
        run = measured_run(store)
        return run, store.add_plan(plan(run))


def check_content(url: str, run: int, plan_id: int) -> None:
    with open_store(url) as store:
        assert [row.profile for row in store.layer_profiles()] == [profile(i) for i in (1, 2, 3)]
        assert store.plan(plan_id).plan == plan(run)
        assert store.plan(plan_id).profile_runs == (run,)


def test_an_older_store_is_upgraded_and_keeps_all_its_rows(
    url: str,
    next_migrations: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run, plan_id = fill(url)
    monkeypatch.setattr(revisions, "MIGRATIONS", next_migrations)
    assert look_at(store_url(url)).state is State.OLDER
    with open_store(url) as store:
        assert store.opening.upgraded
        assert (store.opening.before, store.opening.after) == (known_revisions()[-2], NEXT)
        with store.read() as connection:
            query = text("SELECT room FROM profile_runs")
            assert connection.execute(query).scalars().all() == ["attic"]
            steps = connection.execute(text("SELECT revision FROM store_revisions ORDER BY id"))
            assert steps.scalars().all() == known_revisions()
    assert "upgraded from revision" in caplog.text
    check_content(url, run, plan_id)
    assert look_at(store_url(url)).state is State.CURRENT


def test_an_sqlite_store_is_copied_whole_before_its_upgrade(
    tmp_path: Path, next_migrations: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'lab 100%.db'}"
    run, plan_id = fill(url)
    old = known_revisions()[-1]
    with open_store(url) as reader, reader.read() as connection:
        # rows that stand in the write-ahead log only, as another program is reading
        connection.execute(text("SELECT * FROM plans")).all()
        with open_store(url) as writer:
            writer.add_plan(plan(run, split=3))
        with monkeypatch.context() as patched:
            patched.setattr(revisions, "MIGRATIONS", next_migrations)
            with open_store(url) as store:
                backup = store.opening.backup
    assert backup is not None
    assert backups(url) == [backup]
    assert backup.name.startswith(f"lab 100%.db.{old}-2")
    assert backup.name.endswith("Z.backup")
    with open_store(backup) as store:  # this program's revision: opens as it is
        assert store.opening.before == old
        assert len(store.plans()) == 2
    check_content(f"sqlite:///{backup}", run, plan_id)


def test_a_second_upgrade_in_the_same_second_keeps_both_backups(
    tmp_path: Path, next_migrations: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lab.db"
    open_store(path).close()
    original = path.read_bytes()
    monkeypatch.setattr(revisions, "MIGRATIONS", next_migrations)
    for _ in range(3):
        path.write_bytes(original)
        open_store(path).close()
    assert len(backups(f"sqlite:///{path}")) == 3


def test_without_room_for_a_backup_nothing_is_upgraded(
    tmp_path: Path, next_migrations: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'lab.db'}"
    run, plan_id = fill(url)

    def full(*paths: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(revisions, "MIGRATIONS", next_migrations)
        patched.setattr(shutil, "copymode", full)
        with pytest.raises(StoreError, match=r"not upgraded, its backup failed .*No space left"):
            open_store(url)
    assert backups(url) == []
    check_unchanged(url, run, plan_id)


def test_a_newer_store_is_refused_with_the_version_it_needs(
    url: str, next_migrations: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(url)
    with monkeypatch.context() as patched:
        patched.setattr(revisions, "MIGRATIONS", next_migrations)
        patched.setattr(revisions, "program_version", lambda: "7.8.9")
        open_store(url).close()
    with pytest.raises(StoreError) as raised:
        open_store(url)
    said = str(raised.value)
    assert f"has revision {NEXT}" in said
    assert "needs arachne-planner 7.8.9 or newer" in said
    assert "\n" not in said
    assert look_at(store_url(url)).arachne_version == "7.8.9"


def test_a_revision_that_fails_changes_nothing(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, plan_id = fill(url)
    broken = migrations_with(tmp_path / "broken", "op.execute('SELECT * FROM nowhere')")
    with monkeypatch.context() as patched:
        patched.setattr(revisions, "MIGRATIONS", broken)
        with pytest.raises(StoreError, match="nowhere"):
            open_store(url)
    check_unchanged(url, run, plan_id)


def check_unchanged(url: str, run: int, plan_id: int) -> None:
    assert look_at(store_url(url)).state is State.CURRENT
    check_content(url, run, plan_id)
    with open_store(url) as store, store.read() as connection:
        columns = {column["name"] for column in inspect(connection).get_columns("profile_runs")}
        assert "room" not in columns
        assert not [
            name for name in inspect(connection).get_table_names() if "_alembic_tmp" in name
        ]


def test_a_revision_that_breaks_a_foreign_key_is_rolled_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite foreign keys sleep while revisions run, so they are checked at the end."""
    url = f"sqlite:///{tmp_path / 'lab.db'}"
    run, plan_id = fill(url)
    broken = migrations_with(tmp_path / "broken", "op.execute('DELETE FROM gpu_types')")
    with monkeypatch.context() as patched:
        patched.setattr(revisions, "MIGRATIONS", broken)
        with pytest.raises(StoreError, match="points at no row of gpu_types"):
            open_store(url)
    check_unchanged(url, run, plan_id)


UPGRADE = """
    import sys
    from pathlib import Path
    from db import revisions
    from db.store import open_store
    revisions.MIGRATIONS = Path(sys.argv[2])
    if len(sys.argv) > 3:
        print("ready", flush=True)
        sys.stdin.readline()
    with open_store(sys.argv[1]) as store:
        print(store.opening.upgraded)
"""


def test_an_upgrade_killed_halfway_leaves_the_old_store(
    url: str, tmp_path: Path, next_migrations: Path
) -> None:
    run, plan_id = fill(url)
    upgrader = Process(UPGRADE, url, str(migrations_with(tmp_path / "hanging", HANG)))
    upgrader.wait_for_ready()  # profile_runs is made anew, the new table is not
    upgrader.kill()
    check_unchanged(url, run, plan_id)
    assert Process(UPGRADE, url, str(next_migrations)).output().strip() == "True"
    with pytest.raises(StoreError, match=f"has revision {NEXT}"):
        open_store(url)


def test_the_making_of_a_store_killed_halfway_can_be_done_again(
    empty_url: str, tmp_path: Path
) -> None:
    maker = Process(UPGRADE, empty_url, str(migrations_with(tmp_path / "hanging", HANG)))
    maker.wait_for_ready()
    maker.kill()
    assert look_at(store_url(empty_url)).state is State.ABSENT
    with open_store(empty_url) as store:
        assert store.opening.created


def test_processes_that_upgrade_at_once_make_one_upgrade_and_one_backup(
    url: str, next_migrations: Path
) -> None:
    fill(url)
    processes = [Process(UPGRADE, url, str(next_migrations), "wait") for _ in range(3)]
    for process in processes:
        process.wait_for_ready()
    for process in processes:
        process.go()
    assert sorted(process.output().strip() for process in processes) == ["False"] * 2 + ["True"]
    if url.startswith("sqlite"):
        assert len(backups(url)) == 1


def test_every_known_revision_upgrades_to_the_newest(empty_url: str) -> None:
    """From each revision that was ever released; with one revision, from nothing."""
    url = store_url(empty_url)
    for revision in known_revisions():
        with migration_transaction(url) as connection:
            run_revisions(connection, revision)
        assert look_at(url).revision == revision
    assert bring_to_head(url).after == known_revisions()[-1]


def test_a_store_that_was_never_switched_to_wal_is_switched_when_opened(tmp_path: Path) -> None:
    path = tmp_path / "lab.db"
    open_store(path).close()
    plain = sqlite3.connect(path)
    plain.execute("PRAGMA journal_mode = DELETE")
    plain.close()
    open_store(path).close()
    plain = sqlite3.connect(path)
    assert plain.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    plain.close()


def test_stages_of_an_older_store_have_no_collectives_and_new_ones_do(empty_url: str) -> None:
    """Revision 0002 had them inside forward and backward alone."""
    url = store_url(empty_url)
    open_store(empty_url).close()
    with open_store(empty_url) as store:
        plan_id = store.add_plan(plan())
        old = StageTimes(0, 0, 1.0, 2.0, 0.0, 0.0, 0.5, 0.25)
        store.add_measurements(plan_id, [Measurement("old", "h", "o", 0, 12.5, stages=(old,))])
    with migration_transaction(url) as connection:
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.attributes["connection"] = connection
        command.downgrade(config, "0002")
        columns = {column["name"] for column in inspect(connection).get_columns("stage_times")}
        assert "comm_ms" not in columns
    new = replace(old, comm_ms=0.75)
    with open_store(empty_url) as store:
        assert store.opening.before == "0002"
        store.add_measurements(plan_id, [Measurement("new", "h", "o", 0, 11.0, stages=(new,))])
        found = {s.measurement.run: s.measurement.stages for s in store.measurements(plan_id)}
    assert found == {"old": (old,), "new": (new,)}


def test_a_store_of_the_first_release_keeps_its_measurements_and_takes_stages(
    empty_url: str,
) -> None:
    """Revision 0001 knew no stages: its rows have none, new ones do. SQLite keeps the old file."""
    url = store_url(empty_url)
    with migration_transaction(url) as connection:
        run_revisions(connection, "0001")
        moment = "2026-11-30 12:00:00+00:00"
        for statement in (
            "INSERT INTO models (id, name, config_hash, config, parameters, blocks, created) "
            f"VALUES (1, 'm', 'h', '{{}}', 1, 1, '{moment}')",
            "INSERT INTO workloads (id, model_id, global_batch, seq_len, dtype, optimizer, "
            "recompute) VALUES (1, 1, 32, 128, 'fp32', 'adamw', 'none')",
            "INSERT INTO clusters (id, hash, name, gpus, document, created) "
            f"VALUES (1, 'c', 'c', 1, '{{}}', '{moment}')",
            "INSERT INTO plans (id, identity, plan_hash, planner, workload_id, cluster_id, "
            "document, status, planning_s, evaluations, rejected, options, created, updated) "
            "VALUES (1, 'i', 'p', 'x', 1, 1, '{}', 'unpriced', 0, 0, '{}', '{}', "
            f"'{moment}', '{moment}')",
            "INSERT INTO measurements (id, plan_id, run, iteration, host, origin, iteration_ms, "
            "samples, warm_up, peak_bytes, created) "
            f"VALUES (900, 1, 'old', 0, 'h', 'o', 12.5, 1, false, '[7]', '{moment}')",
        ):
            connection.execute(text(statement.replace(":", r"\:")))
    with open_store(empty_url) as store:
        assert (store.opening.before, store.opening.after) == ("0001", known_revisions()[-1])
        times = StageTimes(0, 0, 1.0, 2.0, 0.0, 0.0, 0.5, 0.25)
        store.add_measurements(1, [Measurement("new", "h", "o", 0, 11.0, stages=(times,))])
        found = {s.measurement.run: s.measurement for s in store.measurements(1)}
    assert {run: (row.iteration_ms, row.peak_bytes) for run, row in found.items()} == {
        "old": (12.5, (7,)),
        "new": (11.0, ()),
    }
    assert {run: row.stages for run, row in found.items()} == {"old": (), "new": (times,)}
    if empty_url.startswith("sqlite"):
        (backup,) = backups(empty_url)
        assert ".0001-" in backup.name
