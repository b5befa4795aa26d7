"""URLs, settings of connections, errors in one line."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import text

from db.engine import Database, shown, store_url
from db.store import Store, open_store
from specs.errors import StoreError
from specs.profile import RunStatus
from tests.db.processes import Process
from tests.db.samples import RUN, measured_run

FOREIGN_KEY = r"(?i)breaks a rule of the store.*foreign key"


def test_a_bare_path_is_an_sqlite_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ARACHNE_STORE", raising=False)
    wanted = str(tmp_path / "lab.db")
    assert store_url("lab.db").database == wanted
    assert store_url("sqlite:///lab.db").database == wanted
    assert store_url(f"sqlite:///{wanted}").database == wanted
    assert store_url(Path("lab.db")).database == wanted
    assert store_url(None).database == str(tmp_path / "arachne.db")
    monkeypatch.setenv("ARACHNE_STORE", "lab.db")
    assert store_url(None).database == wanted
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store_url("~/lab.db").database == wanted


def test_postgresql_is_spoken_by_psycopg_whatever_it_is_called() -> None:
    for name in ("postgresql", "postgres", "postgresql+psycopg"):
        url = store_url(f"{name}://ann:secret@db.example/lab")
        assert url.drivername == "postgresql+psycopg"
        assert (url.username, url.host, url.database) == ("ann", "db.example", "lab")
        assert shown(url) == "postgresql+psycopg://ann:***@db.example/lab"


@pytest.mark.parametrize(
    "given",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite://lab.db",
        "sqlite:///lab.db?mode=ro",
        "mysql://lab",
        "postgresql+psycopg2://lab/x",
        "sqlite+aiosqlite:///lab.db",
        "http://example.org/lab.db",
        "://",
        "postgresql://host:port/x",
    ],
)
def test_urls_that_are_no_store_are_refused_with_what_is_expected(given: str) -> None:
    with pytest.raises(StoreError, match="expected a file, sqlite:///FILE or postgresql") as raised:
        store_url(given)
    assert "\n" not in str(raised.value)


def test_a_password_is_never_shown() -> None:
    with pytest.raises(StoreError) as raised:
        open_store("postgresql://ann:secret@127.0.0.1:1/lab")
    assert "cannot be reached" in str(raised.value)
    assert "secret" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_names_with_odd_characters_are_files(tmp_path: Path) -> None:
    for name in ("a b.db", "100%.db", "what?.db", "a#b.db", "\U0001f577.db", "file:x.db"):
        path = tmp_path / name
        with open_store(path) as store:
            store.start_run(RUN)
        assert path.is_file(), name
        with open_store(path, create=False) as store:
            assert len(store.profile_runs()) == 1


def test_foreign_keys_are_enforced(store: Store) -> None:
    orphan = (
        "INSERT INTO plan_profile_runs (plan_id, profile_run_id) VALUES (1, 1)",
        "INSERT INTO link_profiles (run_id, gpu_type_id, peer_gpu_type_id, topology, operation, "
        "ranks, nbytes, time_ms, samples) VALUES (1, 1, 1, 'pcie', 'p2p', 2, 1, 1.0, 1)",
    )
    for statement in orphan:
        with pytest.raises(StoreError, match=FOREIGN_KEY), store.write() as connection:
            connection.execute(text(statement))
    run = measured_run(store)
    with pytest.raises(StoreError, match=FOREIGN_KEY), store.write() as connection:
        connection.execute(text("DELETE FROM gpu_types"))
    assert store.profile_run(run).layer_rows == 3


def test_a_negative_time_is_refused_by_the_database_too(store: Store) -> None:
    measured_run(store)
    for table, column in (
        ("layer_profiles", "forward_ms"),
        ("link_profiles", "time_ms"),
        ("host_profiles", "host_ms"),
    ):
        with pytest.raises(StoreError, match="times_not_negative"), store.write() as connection:
            connection.execute(text(f"UPDATE {table} SET {column} = -1"))


def test_an_error_inside_a_transaction_keeps_nothing_of_it(store: Store) -> None:
    def delete_and_fail() -> None:
        with store.write() as connection:
            connection.execute(text("DELETE FROM store_revisions"))
            raise ZeroDivisionError

    def revisions() -> int:
        with store.read() as connection:
            count = connection.execute(text("SELECT count(*) FROM store_revisions")).scalar_one()
            return int(count)

    before = revisions()
    assert before > 0
    with pytest.raises(ZeroDivisionError):
        delete_and_fail()
    assert revisions() == before


def test_a_reader_sees_one_moment_while_another_writes(url: str) -> None:
    with open_store(url) as reader, open_store(url) as writer:
        run = measured_run(writer)
        with reader.read() as connection:
            count = text("SELECT count(*) FROM profile_runs")
            assert connection.execute(count).scalar_one() == 1
            writer.start_run(RUN)  # not held up by the reader
            assert connection.execute(count).scalar_one() == 1
        assert [found.id for found in reader.profile_runs()] == [run, run + 1]


def test_an_sqlite_store_is_one_file_with_a_write_ahead_log(tmp_path: Path) -> None:
    path = tmp_path / "lab.db"
    with open_store(path) as store:
        measured_run(store)
    assert [entry.name for entry in tmp_path.iterdir()] == ["lab.db"]
    plain = sqlite3.connect(path)
    assert plain.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    plain.close()


def test_a_busy_store_is_said_to_be_busy(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("db.engine.BUSY_S", 0.2)
    with open_store(url) as store, open_store(url) as other:
        run = store.start_run(RUN)
        with other.write() as connection:
            connection.execute(text("UPDATE profile_runs SET seed = 8"))
            with pytest.raises(StoreError, match=r"others have been writing .*; try again later"):
                store.finish_run(run, RunStatus.COMPLETE)
        store.finish_run(run, RunStatus.COMPLETE)
        assert store.profile_run(run).run.seed == 8


def test_a_damaged_file_is_said_to_be_damaged(tmp_path: Path) -> None:
    path = tmp_path / "lab.db"
    with open_store(path) as store:
        measured_run(store, rows=2000)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 4)
        file.write(os.urandom(size // 2))

    def use() -> None:
        with open_store(path) as store:
            store.layer_profiles()
            store.entries(1)
            measured_run(store)

    with pytest.raises(StoreError) as raised:
        use()
    assert "damaged" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_forked_worker_uses_the_store_beside_its_parent(url: str) -> None:
    """Profilers fork: child and parent must not talk on one connection."""
    code = """
        import os, sys
        from db.store import open_store
        from tests.db.samples import RUN
        store = open_store(sys.argv[1])
        store.start_run(RUN)
        children = []
        for _ in range(4):
            child = os.fork()
            if child == 0:
                for _ in range(5):
                    store.start_run(RUN)
                    store.profile_runs()
                os._exit(0)
            children.append(child)
        for _ in range(5):
            store.start_run(RUN)
            store.profile_runs()
        print([os.waitpid(child, 0)[1] for child in children], len(store.profile_runs()))
    """
    assert Process(code, url).output().strip() == "[0, 0, 0, 0] 26"


def test_a_closed_database_lets_go_of_the_server(url: str) -> None:
    database = Database(store_url(url))
    with database.read() as connection:
        connection.execute(text("SELECT 1"))
    database.close()
    with database.read() as connection:  # and can be used again
        assert connection.execute(text("SELECT 1")).scalar_one() == 1
    database.close()
