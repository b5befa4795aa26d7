"""Column types mean the same on both backends."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import insert, select

from db import tables
from db.columns import plain_text
from db.rows import table_of
from db.store import Store
from specs.errors import StoreError

STEPS = table_of(tables.StoreRevision)


def test_a_moment_keeps_its_microseconds_and_comes_back_in_utc(store: Store) -> None:
    india = timezone(timedelta(hours=5, minutes=30))
    moment = datetime(2026, 11, 30, 4, 59, 59, 123456, india)
    with store.write() as connection:
        row = {"revision": "9999", "arachne_version": "1", "applied": moment}
        connection.execute(insert(STEPS).values(row))
    with store.read() as connection:
        query = select(STEPS.c.applied).where(STEPS.c.revision == "9999")
        found = connection.execute(query).scalar_one()
    assert found == datetime(2026, 11, 29, 23, 29, 59, 123456, UTC)
    assert found.utcoffset() == timedelta(0)


def test_a_moment_without_a_zone_is_refused(store: Store) -> None:
    row = {"revision": "9999", "arachne_version": "1", "applied": datetime(2026, 1, 1)}
    with pytest.raises(StoreError, match="no time zone"), store.write() as connection:
        connection.execute(insert(STEPS).values(row))


def test_text_that_no_backend_holds_is_escaped() -> None:
    assert plain_text("caf\u00e9 \U0001f577") == "caf\u00e9 \U0001f577"
    assert plain_text("bad byte \udcff") == "bad byte \\udcff"
    assert plain_text("nul \x00 inside") == "nul \\x00 inside"
