"""Profile runs in the store: started, finished, found, deleted."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, case, delete, func, insert, select, update

from db import tables
from db.columns import utc_now
from db.engine import Database
from db.rows import maybe, seed, table_of
from specs.errors import StoreError
from specs.profile import EntryStatus, NewRun, ProfileRun, RunStatus, Source

_RUNS = table_of(tables.ProfileRun)
_LAYERS = table_of(tables.LayerProfile)
_LINKS = table_of(tables.LinkProfile)
_HOSTS = table_of(tables.HostProfile)
_PLAN_RUNS = table_of(tables.PlanProfileRun)

_FACTS = ("origin", "host", "licence", "driver", "torch_version", "nccl_version", "seed")


def read_runs(connection: Connection, *rules: ColumnElement[bool]) -> dict[int, ProfileRun]:
    """Profile runs with their numbers of rows, by id in rising order, without deleted ones."""
    rows = connection.execute(
        select(_RUNS).where(_RUNS.c.deleted.is_(None), *rules).order_by(_RUNS.c.id)
    ).all()
    if not rows:
        return {}
    ids = [row.id for row in rows] if rules else None
    layers = _counts(connection, _LAYERS, ids)
    links = _counts(connection, _LINKS, ids)
    hosts = _counts(connection, _HOSTS, ids)
    return {
        row.id: ProfileRun(
            row.id,
            NewRun(
                Source(row.source),
                **{name: getattr(row, name) for name in _FACTS},
                reference_ms=row.reference_ms,
            ),
            RunStatus(row.status),
            row.started,
            row.ended,
            layer_rows=layers.get(row.id, (0, 0))[0],
            refused_rows=layers.get(row.id, (0, 0))[1],
            link_rows=links.get(row.id, (0, 0))[0],
            host_rows=hosts.get(row.id, (0, 0))[0],
        )
        for row in rows
    }


def _counts(
    connection: Connection, table: Any, ids: Sequence[int] | None
) -> dict[int, tuple[int, int]]:
    """Rows of each run: with figures, and refused."""
    refused: ColumnElement[int] = func.count()
    if table is _LAYERS:
        refused = func.sum(case((table.c.status == EntryStatus.OK.value, 0), else_=1))
    query = select(table.c.run_id, func.count(), refused).group_by(table.c.run_id)
    if ids is not None:
        query = query.where(table.c.run_id.in_(ids))
    if table is _LAYERS:
        return {run: (total - bad, bad) for run, total, bad in connection.execute(query)}
    return {run: (total, 0) for run, total, _ in connection.execute(query)}


def require_run(connection: Connection, run_id: int) -> None:
    """Raises StoreError where no such run is, or it was deleted."""
    query = select(_RUNS.c.id, _RUNS.c.deleted).where(_RUNS.c.id == run_id)
    row = connection.execute(query).first()
    if row is None:
        raise StoreError(f"no profile run {run_id} in the store; arachne-prof list shows them")
    if row.deleted is not None:
        raise StoreError(f"profile run {run_id} was deleted on {row.deleted:%Y-%m-%d %H:%M} UTC")


class RunQueries(Database):
    """Profile runs: start, finish, find, delete."""

    def start_run(self, new: NewRun) -> int:
        """Write a profile run with status `running`; its id, which never comes back."""
        row = {name: getattr(new, name) for name in _FACTS} | {
            "uid": uuid.uuid4().hex,
            "source": Source(new.source).value,
            "seed": seed("profile run", new.seed),
            "reference_ms": maybe("profile run", "reference_ms", new.reference_ms),
            "status": RunStatus.RUNNING.value,
            "started": utc_now(),
        }
        with self.write() as connection:
            result = connection.execute(insert(_RUNS).values(row))
            key = result.inserted_primary_key
            assert key is not None
            return int(key[0])

    def finish_run(self, run_id: int, status: RunStatus) -> None:
        """Set how a run ended. Raises StoreError where there is no such run."""
        self._set_status(run_id, status)

    def resume_run(self, run_id: int) -> None:
        """Set a run back to `running`. Raises StoreError where there is no such run."""
        self._set_status(run_id, RunStatus.RUNNING)

    def _set_status(self, run_id: int, status: RunStatus) -> None:
        ended = None if status is RunStatus.RUNNING else utc_now()
        with self.write() as connection:
            require_run(connection, run_id)
            connection.execute(
                update(_RUNS).where(_RUNS.c.id == run_id).values(status=status.value, ended=ended)
            )

    def profile_runs(self) -> list[ProfileRun]:
        """All runs, oldest first."""
        with self.read() as connection:
            return list(read_runs(connection).values())

    def profile_run(self, run_id: int) -> ProfileRun:
        """The run of that id. Raises StoreError where there is none."""
        with self.read() as connection:
            require_run(connection, run_id)
            return read_runs(connection, _RUNS.c.id == run_id)[run_id]

    def find_run(self, source: Source, origin: str, host: str = "") -> ProfileRun | None:
        """The newest run of this source and exactly this origin, or None.

        host: of that host only; empty = of any.
        """
        rules = [_RUNS.c.source == Source(source).value, _RUNS.c.origin == origin]
        if host:
            rules.append(_RUNS.c.host == host)
        newest = (
            select(func.max(_RUNS.c.id)).where(_RUNS.c.deleted.is_(None), *rules).scalar_subquery()
        )
        with self.read() as connection:
            found = read_runs(connection, _RUNS.c.id == newest)
        return next(iter(found.values()), None)

    def delete_run(self, run_id: int, *, force: bool = False) -> None:
        """Delete a run with its rows.

        Raises StoreError that names the plans whose predictions used it, unless `force`: then the
        rows go, and the run stays as a mark that those plans can still name.
        """
        with self.write() as connection:
            require_run(connection, run_id)
            plans = connection.scalars(
                select(_PLAN_RUNS.c.plan_id)
                .where(_PLAN_RUNS.c.profile_run_id == run_id)
                .order_by(_PLAN_RUNS.c.plan_id)
            ).all()
            if not plans:
                connection.execute(delete(_RUNS).where(_RUNS.c.id == run_id))
                return
            if not force:
                named = ", ".join(str(plan) for plan in plans[:10])
                more = f" and {len(plans) - 10} more" if len(plans) > 10 else ""
                raise StoreError(
                    f"profile run {run_id} is what plan(s) {named}{more} were predicted from; "
                    "--force deletes it all the same"
                )
            for table in (_LAYERS, _LINKS, _HOSTS):
                connection.execute(delete(table).where(table.c.run_id == run_id))
            connection.execute(update(_RUNS).where(_RUNS.c.id == run_id).values(deleted=utc_now()))
