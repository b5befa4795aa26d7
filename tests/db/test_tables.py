"""The tables say what the revisions make."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, create_engine, inspect

from db.columns import PlainText
from db.engine import store_url
from db.store import open_store
from db.tables import Base
from tests.db.conftest import Server

DESIGN_TABLES = {
    *("gpu_types", "models", "layer_types", "profile_runs", "layer_profiles", "link_profiles"),
    *("host_profiles", "clusters", "workloads", "plans", "measurements", "reconfigurations"),
    *("comparisons", "comparison_rows", "search_curves", "policies", "stage_times", "traces"),
}


def test_all_tables_of_the_design_are_there() -> None:
    assert set(Base.metadata.tables) >= DESIGN_TABLES


def test_text_is_never_null_so_that_an_empty_field_means_one_thing() -> None:
    for table in Base.metadata.sorted_tables:
        for column in table.columns:
            assert not (isinstance(column.type, PlainText) and column.nullable), column


def test_each_foreign_key_is_found_by_an_index() -> None:
    """Deleting a run must not read every table; GPU and layer types are never deleted."""
    for table in Base.metadata.sorted_tables:
        leading = {next(iter(index.columns)).name for index in table.indexes}
        leading |= {
            next(iter(rule.columns)).name
            for rule in table.constraints
            if type(rule).__name__ == "UniqueConstraint"
        }
        for key in table.foreign_keys:
            if key.column.table.name not in ("gpu_types", "layer_types"):
                assert key.parent.name in leading, f"{table.name}.{key.parent.name}"


def described(connection: Connection) -> dict[str, Any]:
    """Everything that a database says of its tables."""
    inspector = inspect(connection)
    found: dict[str, Any] = {}
    for name in inspector.get_table_names():
        if name == "alembic_version":
            continue
        found[name] = {
            "columns": [
                (column["name"], str(column["type"]), column["nullable"])
                for column in inspector.get_columns(name)
            ],
            "primary": inspector.get_pk_constraint(name),
            "unique": inspector.get_unique_constraints(name),
            "checks": sorted(
                (str(rule["name"]), rule["sqltext"])
                for rule in inspector.get_check_constraints(name)
            ),
            "foreign": sorted(inspector.get_foreign_keys(name), key=str),
            "indexes": sorted(inspector.get_indexes(name), key=str),
        }
    return found


def test_the_revisions_make_exactly_the_tables_with_all_their_rules(
    empty_url: str, backend: str, server: Server, tmp_path_factory: Any
) -> None:
    """`alembic check` looks at no check constraint; this does."""
    open_store(empty_url).close()
    if backend == "sqlite":
        other = f"sqlite:///{tmp_path_factory.mktemp('tables') / 'tables.db'}"
    else:
        other = server.url(server.make())
    described_by = []
    for url in (empty_url, other):
        engine = create_engine(store_url(url))
        with engine.begin() as connection:
            if url == other:
                Base.metadata.create_all(connection)
            described_by.append(described(connection))
        engine.dispose()
    assert described_by[0].keys() == described_by[1].keys()
    for name, made in described_by[0].items():
        assert made == described_by[1][name], name
