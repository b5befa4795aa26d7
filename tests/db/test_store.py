"""Opening a store; many processes at once; writers that are killed."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from db.engine import store_url
from db.revisions import known_revisions
from db.store import Store, open_store
from specs.errors import StoreError
from specs.profile import RunStatus
from tests.db.processes import Process
from tests.db.samples import MODEL, RUN, measured_run, plan


def test_a_new_store_is_made_and_found_again(empty_url: str) -> None:
    with open_store(empty_url) as store:
        assert (store.opening.created, store.opening.upgraded) == (True, False)
        run = measured_run(store)
    with open_store(empty_url, create=False) as store:
        assert (store.opening.created, store.opening.upgraded) == (False, False)
        assert [found.id for found in store.profile_runs()] == [run]


def test_no_store_is_made_where_none_is_wanted(empty_url: str) -> None:
    with pytest.raises(StoreError, match="no store there; arachne-db init makes one"):
        open_store(empty_url, create=False)
    if empty_url.startswith("sqlite"):
        assert not Path(str(store_url(empty_url).database)).exists()


def test_the_default_is_a_file_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ARACHNE_STORE", raising=False)
    with open_store(None) as store:
        monkeypatch.chdir("/")
        store.start_run(RUN)  # still the same file
    assert (tmp_path / "arachne.db").is_file()


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "lab.db"
    path.touch()
    with open_store(path) as store:
        assert store.opening.created


def refusal(reference: str | Path) -> str:
    with pytest.raises(StoreError) as raised:
        open_store(reference)
    said = str(raised.value)
    assert said.startswith("store ")
    assert "\n" not in said
    return said


def test_what_is_no_store_is_refused_in_one_line_and_left_alone(tmp_path: Path) -> None:
    noise = random.Random(0).randbytes(10_000)
    for content in (noise, noise[:7], b"hello", b"SQLite format 3\x00" + noise):
        path = tmp_path / "noise.db"
        path.write_bytes(content)
        assert "not an Arachne store" in refusal(path) or "damaged" in refusal(path)
        assert path.read_bytes() == content
    assert "is no file" in refusal(tmp_path)
    missing = tmp_path / "no" / "such" / "lab.db"
    assert f"folder {missing.parent} does not exist; make it first" in refusal(missing)
    below = path / "lab.db"
    assert "does not exist" in refusal(below)
    assert "cannot be opened" in refusal(tmp_path / ("x" * 300))


def test_the_database_of_another_program_is_refused_and_left_alone(empty_url: str) -> None:
    engine = create_engine(store_url(empty_url))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE recipes (name VARCHAR)"))
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR)"))
        connection.execute(text("INSERT INTO alembic_version VALUES ('0001')"))
    assert "holds tables of another program" in refusal(empty_url)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE recipes"))
        connection.execute(text("DROP TABLE alembic_version"))
    engine.dispose()
    open_store(empty_url).close()  # nothing was left behind


def test_a_folder_that_cannot_be_written_is_refused() -> None:
    """In a process that is not root, for whom no folder is closed."""
    folder = Path(tempfile.mkdtemp())
    code = """
        import os, sys
        from db.store import open_store
        from specs.errors import StoreError
        from sqlalchemy.dialects import sqlite
        if os.geteuid() == 0:
            os.setuid(65534)
        for path in sys.argv[1:]:
            try:
                open_store(path)
                print("opened")
            except StoreError as error:
                print(error)
    """
    try:
        for name in ("closed", "hidden", "open"):
            (folder / name).mkdir()
            with open_store(folder / name / "lab.db") as store:
                measured_run(store)
        (folder / "open" / "lab.db").chmod(0o400)
        (folder / "closed" / "lab.db").chmod(0o666)
        folder.chmod(0o755)
        (folder / "closed").chmod(0o555)
        (folder / "hidden").chmod(0o000)
        (folder / "open").chmod(0o777)
        paths = [folder / name for name in ("closed/lab.db", "closed/new.db", "hidden/lab.db")]
        paths.append(folder / "open" / "lab.db")
        lines = Process(code, *map(str, paths)).output().splitlines()
    finally:
        (folder / "hidden").chmod(0o755)
        (folder / "closed").chmod(0o755)
        shutil.rmtree(folder)
    assert f"{folder / 'closed'} is not writable" in lines[0]
    assert f"{folder / 'closed'} is not writable" in lines[1]
    assert "cannot be opened (Permission denied)" in lines[2]
    assert f"{folder / 'open' / 'lab.db'} is not writable" in lines[3]


def test_processes_that_open_a_new_store_at_once_all_succeed(empty_url: str) -> None:
    code = """
        import sys
        from db.store import open_store
        print("ready", flush=True)
        sys.stdin.readline()
        with open_store(sys.argv[1]) as store:
            print(store.opening.created)
    """
    processes = [Process(code, empty_url) for _ in range(3)]
    for process in processes:
        process.wait_for_ready()
    for process in processes:
        process.go()
    assert sorted(process.output().strip() for process in processes) == ["False"] * 2 + ["True"]
    with open_store(empty_url) as store, store.read() as connection:
        query = text("SELECT count(*) FROM store_revisions")
        assert connection.execute(query).scalar_one() == len(known_revisions())


def test_two_writers_at_once_neither_lose_nor_double_a_row(url: str) -> None:
    """Each writes a run of its own, and both write one run's keys and one plan."""
    with open_store(url) as store:
        shared = measured_run(store, rows=0)
    code = """
        import sys
        from db.store import open_store
        from tests.db.samples import RUN, measured_run, measurement, plan, profile
        url, shared, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
        with open_store(url) as store:
            print("ready", flush=True)
            sys.stdin.readline()
            own = store.start_run(RUN)
            for i in range(20):
                store.add_layer_profiles(own, [profile(i + 1)])
                store.add_layer_profiles(shared, [profile(k + 1, forward_ms=i) for k in range(50)])
                plan_id = store.add_plan(plan(shared), options={"i": i % 2})
                store.add_measurements(plan_id, [measurement(i, name), measurement(i, "shared")])
            print(own)
    """
    processes = [Process(code, url, str(shared), name) for name in ("one", "two")]
    for process in processes:
        process.wait_for_ready()
    for process in processes:
        process.go()
    owns = [int(process.output()) for process in processes]
    assert len(set(owns)) == 2
    with open_store(url) as store:
        for own in owns:
            assert store.profile_run(own).layer_rows == 20
        rows = store.layer_profiles(run_id=shared)
        assert sorted(row.profile.key.micro_batch for row in rows) == list(range(1, 51))
        assert {row.profile.forward_ms for row in rows} == {19.0}
        assert len(store.plans()) == 2
        found = store.measurements()
        assert len(found) == 20 * 3
        assert (
            len({(row.plan_id, row.measurement.run, row.measurement.iteration) for row in found})
            == 60
        )


def test_a_writer_killed_inside_a_transaction_leaves_nothing_of_it(url: str) -> None:
    with open_store(url) as store:
        run = measured_run(store, rows=1)
    code = """
        import sys, time
        from db import rows, profiles
        from db.store import open_store
        from tests.db.samples import profile
        whole_put = profiles.put
        def put_then_hang(connection, table, rows, *, replace):
            whole_put(connection, table, rows, replace=replace)
            print("ready", flush=True)
            time.sleep(600)
        profiles.put = put_then_hang
        with open_store(sys.argv[1]) as store:
            store.add_layer_profiles(int(sys.argv[2]), [profile(i + 1, 9.0) for i in range(5000)])
    """
    writer = Process(code, url, str(run))
    writer.wait_for_ready()  # 5000 rows are written, nothing is committed
    with open_store(url) as reader:
        assert [row.profile.forward_ms for row in reader.layer_profiles()] == [0.1]
    writer.kill()
    with open_store(url) as store:
        assert [row.profile.forward_ms for row in store.layer_profiles()] == [0.1]
        store.finish_run(run, RunStatus.COMPLETE)
    check_integrity(url)


def test_a_writer_killed_at_any_moment_leaves_whole_calls_only(url: str) -> None:
    with open_store(url) as store:
        store.add_model(MODEL)
    code = """
        import sys
        from db.store import open_store
        from tests.db.samples import MODEL, RUN, plan, profile
        with open_store(sys.argv[1]) as store:
            print("ready", flush=True)
            for i in range(10_000):
                run = store.start_run(RUN)
                store.add_layer_profiles(run, [profile(k + 1) for k in range(300)])
                store.add_plan(plan(run))
    """
    dice = random.Random(1)
    for _ in range(3):
        writer = Process(code, url)
        writer.wait_for_ready()
        time.sleep(dice.uniform(0.1, 0.6))
        writer.kill()
        with open_store(url) as store:
            runs = store.profile_runs()
            assert {run.layer_rows for run in runs} <= {0, 300}
            assert sum(run.layer_rows == 0 for run in runs) <= 3  # at most one for each kill
            for stored in store.plans():
                assert len(stored.profile_runs) == 1
                assert store.profile_run(stored.profile_runs[0]).layer_rows == 300
    check_integrity(url)
    with open_store(url) as store:
        measured_run(store)  # goes on as if nothing had happened


def check_integrity(url: str) -> None:
    if url.startswith("sqlite"):
        plain = sqlite3.connect(str(store_url(url).database))
        assert plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert plain.execute("PRAGMA foreign_key_check").fetchall() == []
        plain.close()


def test_threads_share_a_store(store: Store) -> None:
    def work(_: int) -> list[int]:
        ids = [store.start_run(RUN) for _ in range(5)]
        assert {run.id for run in store.profile_runs()} >= set(ids)
        return ids

    with ThreadPoolExecutor(4) as pool:
        ids = [key for found in pool.map(work, range(4)) for key in found]
    assert sorted(ids) == [run.id for run in store.profile_runs()]
    assert len(ids) == 20


def test_the_plan_of_one_store_is_found_by_another_process(url: str) -> None:
    with open_store(url) as store:
        run = measured_run(store)
        plan_id = store.add_plan(plan(run))
    code = """
        import sys
        from db.store import open_store
        from tests.db.samples import plan
        with open_store(sys.argv[1]) as store:
            assert store.plan(int(sys.argv[2])).plan == plan(int(sys.argv[3]))
            print(store.add_plan(plan(int(sys.argv[3]))))
    """
    assert int(Process(code, url, str(plan_id), str(run)).output()) == plan_id


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_store_holds_no_file_open_between_calls(tmp_path: Path) -> None:
    """What is open would be inherited by forked workers, and SQLite's locks break by that."""
    with open_store(tmp_path / "lab.db") as store:
        measured_run(store)
        links = (
            os.readlink(f"/proc/self/fd/{fd}")
            for fd in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{fd}")
        )
        assert not any("lab.db" in link for link in links)
