"""Which revision a store has; making, upgrading and refusing it."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sqlite3
import threading
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from sqlalchemy import URL, Connection, inspect, text

from db.columns import utc_now
from db.engine import make_engine, migration_transaction, said_in_one_line, shown, switch_to_wal
from specs.errors import StoreError

# Found beside this room, not imported: the arrow between the rooms runs the other way.
MIGRATIONS = Path(__file__).resolve().parent.parent / "migrations"

logger = logging.getLogger("arachne.db")
_one_at_a_time = threading.Lock()  # alembic keeps the migration it runs in module globals


class State(StrEnum):
    """What stands at the URL of a store."""

    ABSENT = "absent"  # no file, or a database without a table
    CURRENT = "current"
    OLDER = "older"
    NEWER = "newer"
    FOREIGN = "foreign"  # tables of somebody else


@dataclass(frozen=True, slots=True)
class Standing:
    """What stands at a URL: its state, its revision, the Arachne that brought it there."""

    state: State
    revision: str = ""
    arachne_version: str = ""


@dataclass(frozen=True, slots=True)
class Opening:
    """What opening a store did: revisions before (empty: made new) and after, and the backup."""

    before: str
    after: str
    backup: Path | None = None

    @property
    def created(self) -> bool:
        """Whether there was no store before."""
        return not self.before

    @property
    def upgraded(self) -> bool:
        """Whether an older store was brought to this program's revision."""
        return bool(self.before) and self.before != self.after


def program_version() -> str:
    """The version of this Arachne."""
    try:
        return metadata.version("arachne-planner")
    except metadata.PackageNotFoundError:
        return "0+unknown"


def known_revisions() -> list[str]:
    """The revisions of this program, oldest first.

    Read from the file names (r0001_..., r0002_...): importing alembic would cost every command a
    tenth of a second.
    """
    names = sorted(path.name for path in (MIGRATIONS / "versions").glob("r*.py"))
    found = [match[1] for name in names if (match := re.match(r"r(\d{4})_", name))]
    assert found, f"{MIGRATIONS} has no revision"
    return found


def look_at(url: URL) -> Standing:
    """What stands at the URL. Changes nothing; raises StoreError for what cannot be a store."""
    if url.get_backend_name() == "sqlite":
        path = Path(str(url.database))
        try:
            if not path.exists():
                return Standing(State.ABSENT)
            if not path.is_file():
                raise StoreError(
                    f"store {path}: is no file, expected an SQLite database; choose another path"
                )
            if path.stat().st_size == 0:
                return Standing(State.ABSENT)
            _check_access(path)
        except (OSError, ValueError) as error:  # a folder we may not look into, a name too long
            said = getattr(error, "strerror", None) or error
            raise StoreError(f"store {path}: cannot be opened ({said}); choose another") from None
    engine = make_engine(url)
    try:
        with said_in_one_line(url), engine.connect() as connection:
            return _standing(connection)
    finally:
        engine.dispose()


def _check_access(path: Path) -> None:
    for place, rights in ((path.parent, os.W_OK | os.X_OK), (path, os.R_OK | os.W_OK)):
        if place.exists() and not os.access(place, rights):
            raise StoreError(
                f"store {path}: {place} is not writable; reading needs that too, for locks"
            )


def _standing(connection: Connection) -> Standing:
    tables = set(inspect(connection).get_table_names()) - {"alembic_version"}
    if not tables:
        return Standing(State.ABSENT)
    if "store_revisions" not in tables:
        return Standing(State.FOREIGN)
    revision = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    if revision is None:
        return Standing(State.FOREIGN)
    version = connection.execute(
        text("SELECT arachne_version FROM store_revisions WHERE revision = :revision"),
        {"revision": revision},
    ).scalar()
    known = known_revisions()
    state = State.CURRENT if revision == known[-1] else State.OLDER
    return Standing(state if revision in known else State.NEWER, revision, version or "")


def bring_to_head(url: URL, *, create: bool = True, keep_backup: bool = True) -> Opening:
    """Make the store, upgrade it, or leave it as it is; the same from any number of processes.

    An older SQLite store is copied beside itself before it is changed. Everything happens in one
    transaction: a kill leaves the store as it was. Raises StoreError for a store that is newer than
    this program, for a database of somebody else, for a place that cannot be written, and, without
    `create`, where no store is.
    """
    standing = look_at(url)
    _refuse(standing, url, create)
    if standing.state is State.ABSENT and url.get_backend_name() == "sqlite":
        path = Path(str(url.database))
        if not path.parent.is_dir():
            raise StoreError(f"store {path}: folder {path.parent} does not exist; make it first")
        _check_access(path)
    opening = Opening(standing.revision, standing.revision)
    if standing.state in (State.ABSENT, State.OLDER):
        with migration_transaction(url) as connection:
            opening = _migrate(connection, url, create, keep_backup)
    if url.get_backend_name() == "sqlite":
        switch_to_wal(url)
    if opening.upgraded and keep_backup:
        kept = f"; the old one is kept as {opening.backup}" if opening.backup else ""
        logger.warning(
            "store %s upgraded from revision %s to %s%s",
            shown(url),
            opening.before,
            opening.after,
            kept,
        )
    return opening


def _refuse(standing: Standing, url: URL, create: bool) -> None:
    where = f"store {shown(url)}"
    if standing.state is State.FOREIGN:
        raise StoreError(
            f"{where}: the database holds tables of another program; choose another path or an "
            "empty database with --store"
        )
    if standing.state is State.NEWER:
        needed = standing.arachne_version or "a newer version"
        raise StoreError(
            f"{where}: has revision {standing.revision}, this is Arachne {program_version()} with "
            f"revision {known_revisions()[-1]}; needs arachne-planner {needed} or newer"
        )
    if standing.state is State.ABSENT and not create:
        raise StoreError(f"{where}: no store there; arachne-db init makes one")


def run_revisions(connection: Connection, revision: str) -> None:
    """Upgrade to a revision, inside the transaction that `migration_transaction` began."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    with _one_at_a_time:
        command.upgrade(config, revision)


def _migrate(connection: Connection, url: URL, create: bool, keep_backup: bool) -> Opening:
    # Looked at again under the lock: another process may have done it while we waited.
    standing = _standing(connection)
    _refuse(standing, url, create)
    if standing.state is State.CURRENT:
        return Opening(standing.revision, standing.revision)
    backup = None
    if standing.state is State.OLDER and keep_backup and url.get_backend_name() == "sqlite":
        backup = _back_up(Path(str(url.database)), standing.revision)
    run_revisions(connection, "head")
    return Opening(standing.revision, known_revisions()[-1], backup)


def _back_up(path: Path, revision: str) -> Path:
    """A consistent copy beside the store, named with its revision and the time.

    SQLite's own backup reads through a second connection, while ours holds off all writers.
    """
    stem = f"{path.name}.{revision}-{utc_now():%Y%m%dT%H%M%SZ}"
    copy = path.with_name(f"{stem}.backup")
    number = 2
    while copy.exists():
        copy = path.with_name(f"{stem}-{number}.backup")
        number += 1
    unfinished = copy.with_name(f"{copy.name}.unfinished")
    try:
        with (
            closing(sqlite3.connect(path)) as source,
            closing(sqlite3.connect(unfinished)) as target,
        ):
            source.backup(target)
        shutil.copymode(path, unfinished)
        os.replace(unfinished, copy)
    except (OSError, sqlite3.Error) as error:
        unfinished.unlink(missing_ok=True)
        raise StoreError(f"store {path}: not upgraded, its backup failed ({error})") from None
    return copy
