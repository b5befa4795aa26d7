"""Runs revisions: on a connection that `open_store` hands over, or on the store that -x names."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from alembic import context
from alembic.runtime.migration import MigrationContext, MigrationInfo
from sqlalchemy import Connection, column, delete, insert, inspect, table

from db.columns import UtcDateTime, utc_now
from db.engine import migration_transaction, store_url
from db.revisions import program_version
from db.tables import Base

# Not db.tables.StoreRevision: an old revision must find the columns it made.
revisions = table(
    "store_revisions",
    column("revision"),
    column("arachne_version"),
    column("applied", UtcDateTime()),
)


def record(
    ctx: MigrationContext, step: MigrationInfo, heads: Collection[Any], run_args: Mapping[str, Any]
) -> None:
    """Keep in the store which Arachne brought it to a revision; forget it on the way back."""
    connection = ctx.connection
    if connection is None or not inspect(connection).has_table("store_revisions"):
        return
    if step.is_upgrade:
        connection.execute(
            insert(revisions).values(
                revision=step.up_revision_id, arachne_version=program_version(), applied=utc_now()
            )
        )
    else:
        connection.execute(delete(revisions).where(revisions.c.revision == step.up_revision_id))


def run(connection: Connection) -> None:
    """Run what alembic was asked for, inside the transaction that the connection is in."""
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=True,  # SQLite alters a table by making it anew
        transactional_ddl=True,  # alembic believes that SQLite cannot; our connections can
        compare_type=True,
        on_version_apply=record,
    )
    with context.begin_transaction():
        context.run_migrations()


given: Connection | None = context.config.attributes.get("connection")
if given is not None:
    run(given)
elif context.is_offline_mode():
    raise SystemExit("revisions read the store they change: give -x store=URL, without --sql")
else:
    url = context.get_x_argument(as_dictionary=True).get("store") or os.environ.get("ARACHNE_STORE")
    with TemporaryDirectory() as folder:
        if url:
            where = store_url(url)
        else:  # enough for `check`: does the newest revision make what the tables say?
            where = store_url(Path(folder) / "store.db")
            # In a process of its own: alembic cannot run revisions while it runs this file.
            make = "import sys; from db.store import open_store; open_store(sys.argv[1])"
            root = Path(__file__).parent.parent
            subprocess.run([sys.executable, "-c", make, str(where.database)], cwd=root, check=True)
        with migration_transaction(where) as connection:
            run(connection)
