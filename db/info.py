"""What is in a store, told without changing it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, inspect, select, table, text

from db import tables
from db.engine import make_engine, said_in_one_line, shown, store_url
from db.revisions import State, known_revisions, look_at, program_version
from db.rows import table_of
from db.tables import Base
from specs.errors import StoreError


@dataclass(frozen=True, slots=True)
class Applied:
    """A revision of the schema, when it was applied, and by which Arachne."""

    revision: str
    arachne_version: str
    applied: datetime


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """A store as `arachne-db info` shows it. size_bytes: of the file or database."""

    where: str
    backend: str
    state: State
    revision: str
    program_revision: str
    program_version: str
    size_bytes: int
    rows: dict[str, int]
    history: tuple[Applied, ...]

    def to_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "store": self.where,
            "backend": self.backend,
            "state": self.state.value,
            "revision": self.revision,
            "program_revision": self.program_revision,
            "program_version": self.program_version,
            "size_bytes": self.size_bytes,
            "rows": self.rows,
            "history": [
                {
                    "revision": step.revision,
                    "arachne_version": step.arachne_version,
                    "applied": step.applied.isoformat(),
                }
                for step in self.history
            ],
        }


def describe(reference: str | os.PathLike[str] | None) -> StoreInfo:
    """What stands at a URL or path; an older or newer store is told of as it is.

    Raises StoreError where no store is, or the database is somebody else's.
    """
    url = store_url(reference)
    standing = look_at(url)
    if standing.state is State.ABSENT:
        raise StoreError(f"store {shown(url)}: no store there; arachne-db init makes one")
    if standing.state is State.FOREIGN:
        raise StoreError(f"store {shown(url)}: the database holds tables of another program")
    engine = make_engine(url)
    try:
        with said_in_one_line(url), engine.connect() as connection:
            there = set(inspect(connection).get_table_names())
            return StoreInfo(
                where=shown(url),
                backend=url.get_backend_name(),
                state=standing.state,
                revision=standing.revision,
                program_revision=known_revisions()[-1],
                program_version=program_version(),
                size_bytes=_size(connection, url.database),
                rows={
                    name: connection.execute(
                        select(func.count()).select_from(table(name))
                    ).scalar_one()
                    for name in (found.name for found in Base.metadata.sorted_tables)
                    if name in there and name != tables.StoreRevision.__tablename__
                },
                history=_history(connection),
            )
    finally:
        engine.dispose()


def _size(connection: Connection, database: str | None) -> int:
    if connection.dialect.name == "sqlite":
        files = (Path(f"{database}{suffix}") for suffix in ("", "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())
    return int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())


def _history(connection: Connection) -> tuple[Applied, ...]:
    steps = table_of(tables.StoreRevision)
    query = select(steps.c.revision, steps.c.arachne_version, steps.c.applied).order_by(steps.c.id)
    return tuple(Applied(*row) for row in connection.execute(query))
