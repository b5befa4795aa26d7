"""Bringing the rows of one store into another, where every id is a different one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Table, func, select, update

from db import tables
from db.rows import Row, natural_key, put, table_of
from db.tables import Base
from specs.profile import RunStatus

_RUNS = table_of(tables.ProfileRun)
_PLANS = table_of(tables.Plan)

Ids = dict[str, dict[int, int]]  # by table: id in the source -> id in the target


@dataclass(frozen=True, slots=True)
class TableCount:
    """Rows of one table that a merge added, and that were there already."""

    added: int
    present: int


def merge(source: Connection, target: Connection) -> dict[str, TableCount]:
    """Add the rows that the target lacks, by natural key; what it has stays as it is.

    Both stores have this program's revision. A run that was running there and has ended in the
    source takes that end; the rows of a run that the target deleted do not come back.
    """
    ids: Ids = {}
    counts: dict[str, TableCount] = {}
    deleted: set[int] = set()  # ids in the target
    for table in Base.metadata.sorted_tables:
        if table.name == tables.StoreRevision.__tablename__:
            continue
        rows = [dict(row) for row in source.execute(select(table).order_by(table.c.id)).mappings()]
        olds = [row.pop("id") for row in rows]
        for row in rows:
            _translate(table, row, ids)
        wanted = [row for row in rows if row.get("run_id") not in deleted or "run_id" not in row]
        before = _count(target, table)
        put(target, table, wanted, replace=False)
        added = _count(target, table) - before
        counts[table.name] = TableCount(added, len(rows) - added)
        if any(
            key.column.table is table
            for other in Base.metadata.sorted_tables
            for key in other.foreign_keys
        ):
            ids[table.name] = _new_ids(target, table, olds, rows)
        if table is _RUNS:
            _end_runs(target, rows)
            deleted = set(target.scalars(select(_RUNS.c.id).where(_RUNS.c.deleted.is_not(None))))
    return counts


def _count(connection: Connection, table: Table) -> int:
    return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


def _translate(table: Table, row: Row, ids: Ids) -> None:
    """Turn the source's ids inside a row into the target's."""
    for key in table.foreign_keys:
        name = key.parent.name
        if row[name] is not None:
            row[name] = ids[key.column.table.name][row[name]]
    if table is _PLANS and row["prediction"]:
        runs = ids[_RUNS.name]
        row["prediction"] = row["prediction"] | {
            "profile_runs": [runs[run] for run in row["prediction"]["profile_runs"]]
        }


def _new_ids(target: Connection, table: Table, olds: list[int], rows: list[Row]) -> dict[int, int]:
    key = natural_key(table)
    found: dict[tuple[Any, ...], int] = {
        tuple(row[1:]): row[0]
        for row in target.execute(select(table.c.id, *(table.c[name] for name in key)))
    }
    return {old: found[tuple(row[name] for name in key)] for old, row in zip(olds, rows)}


def _end_runs(target: Connection, rows: list[Row]) -> None:
    for row in rows:
        if row["status"] != RunStatus.RUNNING.value:
            target.execute(
                update(_RUNS)
                .where(_RUNS.c.uid == row["uid"], _RUNS.c.status == RunStatus.RUNNING.value)
                .values(status=row["status"], ended=row["ended"])
            )
