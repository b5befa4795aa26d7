"""The store: one face for all that Arachne keeps, on SQLite or PostgreSQL."""

from __future__ import annotations

import os
from types import TracebackType

from sqlalchemy import URL

from db.comparisons import ComparisonQueries
from db.engine import store_url
from db.measurements import MeasurementQueries
from db.models import ModelQueries
from db.plans import PlanQueries
from db.profiles import ProfileQueries
from db.revisions import Opening, bring_to_head
from db.runs import RunQueries


class Store(
    ModelQueries, RunQueries, ProfileQueries, PlanQueries, MeasurementQueries, ComparisonQueries
):
    """All queries, each one transaction; dataclasses in and out, never a session.

    Made by `open_store`. Every method that writes keeps all of what it was given or, after an error
    or a kill, none of it. Raises StoreError where the database cannot do what is asked.
    """

    def __init__(self, url: URL, opening: Opening) -> None:
        super().__init__(url)
        self.opening = opening

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_store(url: str | os.PathLike[str] | None = None, *, create: bool = True) -> Store:
    """The store at a URL or path, made new or upgraded if need be.

    None: $ARACHNE_STORE, or arachne.db in the current folder. An older SQLite store is copied
    beside itself before it is upgraded. Raises StoreError for a store newer than this program, for
    what is no store of Arachne, for a place that cannot be written, and, without `create`, where
    there is none.
    """
    where = store_url(url)
    return Store(where, bring_to_head(where, create=create))
