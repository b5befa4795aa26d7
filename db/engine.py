"""Connections: URLs, SQLite settings, read and write transactions, errors in one line."""

from __future__ import annotations

import os
import sqlite3
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc, make_url, text
from sqlalchemy.pool import NullPool

from specs.errors import StoreError

if TYPE_CHECKING:
    import psycopg

DEFAULT_STORE = "sqlite:///arachne.db"
BUSY_S = 60.0  # how long a writer waits for another before it gives up
_LOCK = 0x41726163686E65  # "Arachne": the PostgreSQL advisory lock that migrations hold


def store_url(reference: str | os.PathLike[str] | None) -> URL:
    """The URL of a store: sqlite:///FILE, a bare path, or PostgreSQL; None = the default.

    `postgresql://` and `postgres://` mean psycopg. SQLite paths become absolute, so that a later
    change of folder changes nothing. Raises StoreError for anything else.
    """
    given = os.fspath(reference) if reference is not None else ""
    given = given or os.environ.get("ARACHNE_STORE", "") or DEFAULT_STORE
    if "://" not in given:
        return _sqlite_url(given)
    if given.startswith("postgres://"):
        given = "postgresql" + given.removeprefix("postgres")
    try:
        url = make_url(given)
        backend, driver = url.get_backend_name(), url.drivername.partition("+")[2]
    except (exc.ArgumentError, ValueError) as error:
        raise StoreError(f"store {given!r} is no URL ({error}), expected {_EXPECTED}") from None
    if backend == "sqlite" and driver in ("", "pysqlite"):
        if url.database in (None, "", ":memory:") or url.query or url.host:
            raise StoreError(
                f"store {given!r} names no file, expected {_EXPECTED} (three slashes before a "
                "relative path, four before an absolute one)"
            )
        return _sqlite_url(str(url.database))
    if backend == "postgresql" and driver in ("", "psycopg"):
        return url.set(drivername="postgresql+psycopg")
    raise StoreError(f"store {shown(url)!r} is not of a known kind, expected {_EXPECTED}")


_EXPECTED = "a file, sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE"


def _sqlite_url(path: str) -> URL:
    return URL.create("sqlite", database=str(Path(path).expanduser().absolute()))


def shown(url: URL) -> str:
    """The URL as messages show it: an SQLite file as its path, a password as ***."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    return url.render_as_string(hide_password=True)


def make_engine(url: URL) -> Engine:
    """An engine whose transactions are real ones, on either backend."""
    if url.get_backend_name() == "sqlite":
        # No pool: a connection that lives on would be carried into forked workers, and SQLite
        # loses its locks there.
        engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": BUSY_S})
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    engine = create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": 20})
    event.listen(engine, "connect", _set_up_postgresql)
    _pooled.add(engine)
    return engine


_pooled: weakref.WeakSet[Engine] = weakref.WeakSet()


def _forget_connections() -> None:
    for engine in _pooled:
        engine.dispose(close=False)


# A forked worker and its parent must not talk on one socket.
os.register_at_fork(after_in_child=_forget_connections)


def _set_up_postgresql(connection: psycopg.Connection[Any], record: Any) -> None:
    # As for SQLite: a writer that hangs must not hang all others for ever.
    connection.autocommit = True
    connection.execute(f"SET lock_timeout = {int(BUSY_S * 1000)}")
    connection.autocommit = False


def _set_up_sqlite(connection: sqlite3.Connection, record: Any) -> None:
    # The driver would start transactions on its own, late and never before DDL: we say BEGIN.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")


def _begin_sqlite(connection: Connection) -> None:
    # A writer takes its lock at once: one that read first and then asked could only be refused.
    writes = connection.get_execution_options().get("arachne_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


class Database:
    """The transactions of one store; every method of the Store is one of them."""

    def __init__(self, url: URL) -> None:
        self.url = url
        self._engine = make_engine(url)
        self._writer = self._engine.execution_options(arachne_writes=True)

    @property
    def where(self) -> str:
        """The store as messages name it."""
        return shown(self.url)

    @property
    def is_sqlite(self) -> bool:
        """Whether the store is a file."""
        return self.url.get_backend_name() == "sqlite"

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that reads; all its queries see the store at one moment."""
        with said_in_one_line(self.url), self._engine.connect() as connection:
            if not self.is_sqlite:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that writes: all of it is kept, or after an error or a kill none."""
        with said_in_one_line(self.url), self._writer.begin() as connection:
            yield connection

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()


@contextmanager
def said_in_one_line(url: URL) -> Iterator[None]:
    """Errors of the database become a StoreError that names the store and the next step."""
    try:
        yield
    except exc.IntegrityError as error:
        raise StoreError(
            f"store {shown(url)}: the row breaks a rule of the store: {_first(error)}"
        ) from error
    except (exc.DBAPIError, sqlite3.Error, exc.TimeoutError) as error:
        raise StoreError(f"store {shown(url)}: {_plain(url, error)}") from error
    except exc.StatementError as error:
        raise StoreError(f"store {shown(url)}: a value cannot be stored: {error.orig}") from error
    except OverflowError as error:
        raise StoreError(f"store {shown(url)}: a number is too large to be stored") from error


def _first(error: BaseException) -> str:
    """The first line of what the driver said."""
    said = str(getattr(error, "orig", None) or error).strip()
    return said.splitlines()[0] if said else type(error).__name__


def _plain(url: URL, error: BaseException) -> str:
    said = _first(error)
    if "locked" in said or "busy" in said or "lock timeout" in said:
        return f"others have been writing for {BUSY_S:.0f} s ({said}); try again later"
    if "not a database" in said:
        return "the file is not an Arachne store; choose another path with --store"
    if "malformed" in said:
        return f"the file is damaged ({said}); go back to a backup or an export"
    if "readonly" in said or "read-only" in said:
        return f"cannot be written ({said}); its file and its folder must be writable"
    if "disk is full" in said or "disk I/O" in said:
        return f"{said}; make room on its disk"
    if "unable to open" in said:
        return f"cannot be opened ({said}); its folder must exist and be writable"
    if url.get_backend_name() == "postgresql" and (
        "connection" in said or "resolve" in said or "authentication" in said or "database" in said
    ):
        return f"cannot be reached ({said}); check the URL, and that the server runs"
    return said


@contextmanager
def migration_transaction(url: URL) -> Iterator[Connection]:
    """The one transaction in which revisions run; a second process waits here for the first.

    SQLite: the write lock is taken at once; foreign keys are not enforced on the way (making a
    table anew drops the old one, which would delete what points at it) but checked at the end.
    PostgreSQL: an advisory lock, which ends with the transaction.
    """
    engine = make_engine(url)
    try:
        with said_in_one_line(url):
            if url.get_backend_name() == "sqlite":
                with engine.connect() as bare:
                    bare.connection.execute("PRAGMA foreign_keys = OFF")
                    connection = bare.execution_options(arachne_writes=True)
                    with connection.begin():
                        yield connection
                        _check_foreign_keys(connection, url)
            else:
                with engine.begin() as connection:
                    connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
                    yield connection
    finally:
        engine.dispose()


def _check_foreign_keys(connection: Connection, url: URL) -> None:
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchone()
    if broken is not None:
        raise StoreError(
            f"store {shown(url)}: row {broken[1]} of {broken[0]} points at no row of {broken[2]}; "
            "nothing was changed"
        )


def switch_to_wal(url: URL) -> None:
    """Let readers of an SQLite store go on while one process writes (write-ahead log).

    Two processes that switch at once are refused at once, not queued: hence the attempts. On a
    disk that cannot do it the store stays as it is, which is right, only slower.
    """
    give_up = time.monotonic() + BUSY_S
    with said_in_one_line(url):
        connection = sqlite3.connect(str(url.database), timeout=BUSY_S, isolation_level=None)
        try:
            while True:
                try:
                    if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                        connection.execute("PRAGMA journal_mode = WAL")
                    return
                except sqlite3.OperationalError as error:
                    if "locked" not in str(error) or time.monotonic() > give_up:
                        raise
                    time.sleep(0.02)
        finally:
            connection.close()
