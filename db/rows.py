"""Writing rows: one statement for many, replacing or keeping what is there; checked numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from numbers import Integral, Real
from typing import Any

from sqlalchemy import Connection, Insert, Table, UniqueConstraint, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import DeclarativeBase

from db import tables
from specs.errors import StoreError
from specs.gpu import gpu_type

Row = dict[str, Any]

LARGEST, LARGEST_BIG = 2**31 - 1, 2**63 - 1  # what Integer and BigInteger columns hold


def table_of(entity: type[DeclarativeBase]) -> Table:
    """The table of a mapped class."""
    table = entity.__table__
    assert isinstance(table, Table)
    return table


@cache
def natural_key(table: Table) -> tuple[str, ...]:
    """The columns that make a row the same row in every store: its one unique constraint."""
    (unique,) = [rule for rule in table.constraints if isinstance(rule, UniqueConstraint)]
    return tuple(column.name for column in unique.columns)


def put(
    connection: Connection, table: Table, rows: Sequence[Row], *, replace: Iterable[str] | bool
) -> None:
    """Insert rows in one statement; where a natural key is there already, replace or keep.

    replace: False keeps the row that is there, True replaces all of it but its key, names replace
    those columns. All rows have the same fields.
    """
    if not rows:
        return
    if replace is True:
        key = natural_key(table)
        replace = [name for name in rows[0] if name not in key]
    connection.execute(_upsert(connection.dialect.name, table, tuple(replace or ())), rows)


@cache  # a store has few such statements, and building one costs more than running it
def _upsert(backend: str, table: Table, replaced: tuple[str, ...]) -> Insert:
    insert: sqlite.Insert | postgresql.Insert
    insert = sqlite.insert(table) if backend == "sqlite" else postgresql.insert(table)
    key = natural_key(table)
    if not replaced:
        return insert.on_conflict_do_nothing(index_elements=key)
    return insert.on_conflict_do_update(
        index_elements=key, set_={name: insert.excluded[name] for name in replaced}
    )


def id_of(connection: Connection, table: Table, row: Mapping[str, Any]) -> int:
    """The id of the row with this row's natural key."""
    rules = [table.c[name] == row[name] for name in natural_key(table)]
    return int(connection.execute(select(table.c.id).where(*rules)).scalar_one())


def put_one(
    connection: Connection, table: Table, row: Row, *, replace: Iterable[str] | bool = False
) -> int:
    """Insert one row, or replace or keep the one that is there; its id."""
    put(connection, table, [row], replace=replace)
    return id_of(connection, table, row)


def gpu_type_ids(connection: Connection, names: Iterable[str]) -> dict[str, int]:
    """Ids of GPU types by name; those not in the store yet are written from the catalogue.

    Raises SpecError for a name that the catalogue lacks.
    """
    wanted = sorted(set(names))  # in one order everywhere: two writers cannot lock each other out
    if not wanted:
        return {}
    table = table_of(tables.GpuType)
    query = select(table.c.name, table.c.id).where(table.c.name.in_(wanted))
    found = dict(connection.execute(query).all())
    missing = [name for name in wanted if name not in found]
    if missing:
        put(connection, table, [_gpu_row(name) for name in missing], replace=False)
        found = dict(connection.execute(query).all())
    return found


def _gpu_row(name: str) -> Row:
    gpu = gpu_type(name)
    sheet = gpu.datasheet
    return {
        "name": gpu.name,
        "memory_mib": gpu.memory_mib,
        "tflops": sheet.tflops if sheet else None,
        "memory_gb_per_s": sheet.memory_gb_per_s if sheet else None,
        "nvlink_gb_per_s": sheet.nvlink_gb_per_s if sheet else None,
        "pcie_gb_per_s": sheet.pcie_gb_per_s if sheet else None,
        "sms": sheet.sms if sheet else None,
        "default_topology": gpu.default_topology.value,
        "price_per_hour": gpu.price_per_hour,
    }


def number(what: str, name: str, value: Any, *, least: float = 0.0) -> float:
    """The value as a float. Raises StoreError where it is no finite number or below `least`.

    Said before the database is asked: NaN is larger than all numbers in PostgreSQL and NULL in
    SQLite, so neither would refuse it.
    """
    plain = type(value) is float or isinstance(value, Real)  # the first is much the faster
    if not plain or not math.isfinite(value) or value < least:
        raise StoreError(f"{what}: {name} is {value!r}, expected a number of at least {least:g}")
    return float(value)


def maybe(what: str, name: str, value: Any) -> float | None:
    """The value as `number` has it, None as None."""
    return None if value is None else number(what, name, value)


def whole(what: str, name: str, value: Any, *, least: int = 0, most: int = LARGEST) -> int:
    """The value as an int. Raises StoreError where it is no whole number from `least` to `most`.

    An integer of numpy would be stored as bytes by SQLite, hence the conversion.
    """
    plain = type(value) is int or isinstance(value, Integral)
    if not plain or not least <= int(value) <= most:
        raise StoreError(
            f"{what}: {name} is {value!r}, expected a whole number from {least} to {most}"
        )
    return int(value)


def big(what: str, name: str, value: Any, *, least: int = 0) -> int:
    """The value as `whole` has it, for columns of eight bytes: memory, messages, evaluations."""
    return whole(what, name, value, least=least, most=LARGEST_BIG)


def seed(what: str, value: Any) -> int:
    """A seed: any whole number of eight bytes."""
    return big(what, "seed", value, least=-LARGEST_BIG)


def json_ready(what: str, value: Any) -> Any:
    """The value as JSON gives it back (tuples become lists, enums text).

    Raises StoreError for what has no JSON form, NaN and infinity among them.
    """
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise StoreError(f"{what} has no JSON form: {error}") from None


def canonical(value: Any) -> str:
    """JSON text that is the same for equal values, for hashing."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
