"""A whole store as CSV files with a manifest, and back into this or another store."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Connection,
    DateTime,
    Float,
    Integer,
    MetaData,
    Table,
    insert,
    select,
)

from db.columns import utc_now
from db.engine import migration_transaction, store_url
from db.merge import TableCount, merge
from db.revisions import bring_to_head, known_revisions, program_version, run_revisions
from db.store import Store
from db.tables import Base
from specs.errors import StoreError
from specs.files import read_yaml_or_json

FORMAT = 1  # of the folder; the columns follow the revision of the store
MANIFEST = "manifest.json"
_NOT_EXPORTED = (
    "store_revisions",
    "alembic_version",
)  # they speak of one store, not of its content


@dataclass(frozen=True, slots=True)
class Export:
    """A folder written by `export_store`: rows by table."""

    folder: Path
    rows: dict[str, int]


def export_store(store: Store, folder: str | os.PathLike[str]) -> Export:
    """Write all tables, as they are at one moment, to a new folder: a CSV file each, a manifest.

    Moments are ISO 8601 in UTC, JSON columns JSON text, no value an empty field. The folder appears
    when it is complete. Raises StoreError where it exists with something in it, or cannot be made.
    """
    target = Path(folder).absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StoreError(f"{target}: exists and is not an empty folder; choose another")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise StoreError(f"{target}: cannot be made ({error.strerror})") from None
    try:
        unfinished.chmod(0o755)
        with store.read() as connection:
            rows = {
                table.name: _write_table(connection, table, unfinished)
                for table in Base.metadata.sorted_tables
                if table.name not in _NOT_EXPORTED
            }
        manifest = {
            "format": FORMAT,
            "revision": known_revisions()[-1],
            "arachne_version": program_version(),
            "exported": utc_now().isoformat(),
            "tables": {
                name: {"rows": count, "sha256": _sha256(unfinished / f"{name}.csv")}
                for name, count in rows.items()
            },
        }
        (unfinished / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
        os.rename(unfinished, target)  # also over an empty folder, never over a full one
    except OSError as error:
        raise StoreError(f"{target}: cannot be written ({error.strerror})") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return Export(target, rows)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write_table(connection: Connection, table: Table, folder: Path) -> int:
    import pandas as pd

    rows = connection.execute(select(table).order_by(table.c.id)).all()
    frame = pd.DataFrame(
        # dtype object: a whole number beside an empty field must not become 5.0
        {
            column.name: pd.Series([_to_field(row[i]) for row in rows], dtype=object)
            for i, column in enumerate(table.columns)
        }
    )
    # Every text is quoted: a bare carriage return inside one would end the row for readers.
    frame.to_csv(
        folder / f"{table.name}.csv", index=False, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n"
    )
    return len(rows)


def _to_field(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    return value


def import_store(store: Store, folder: str | os.PathLike[str]) -> dict[str, TableCount]:
    """Bring an exported folder into the store in one transaction; rows by table.

    What is there already stays as it is and is not doubled: a run is the same run by its uid, a
    plan by its identity, and so on, whatever their ids. An export of an older Arachne is upgraded
    on the way. Raises StoreError for a folder that is not whole, was changed, or is newer than this
    program; then the store is as it was.
    """
    source = Path(folder).absolute()
    manifest = _read_manifest(source)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "import.db"
        try:
            staged = Store(*_stage(source, manifest, path))
        except StoreError as error:  # the reader knows the folder, not our scratch file
            raise StoreError(str(error).replace(f"store {path}", str(source))) from None
        # What the schema forbids was refused above, before the store is touched.
        with staged, staged.read() as origin, store.write() as connection:
            return merge(origin, connection)


def _read_manifest(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise StoreError(f"{folder}: no such folder, expected one that arachne-db export wrote")
    path = folder / MANIFEST
    if not path.is_file():
        raise StoreError(f"{folder}: has no {MANIFEST}, expected what arachne-db export wrote")
    manifest = read_yaml_or_json(path)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("tables"), dict):
        raise StoreError(f"{path}: is not a manifest, expected what arachne-db export wrote")
    revision, version = manifest.get("revision"), manifest.get("arachne_version")
    if manifest.get("format") != FORMAT or revision not in known_revisions():
        raise StoreError(
            f"{path}: format {manifest.get('format')} revision {revision} was written by Arachne "
            f"{version}, this is {program_version()}; import it with that version or a newer one"
        )
    for name, facts in manifest["tables"].items():
        if not isinstance(facts, dict) or not str(name).isidentifier():
            raise StoreError(f"{path}: tables.{name} is {facts!r}, expected rows and sha256")
        file = folder / f"{name}.csv"
        if not file.is_file():
            raise StoreError(f"{file}: is missing, expected {facts.get('rows')} rows")
        if _sha256(file) != facts.get("sha256"):
            raise StoreError(f"{file}: was changed after the export (its sha256 differs)")
    return manifest


def _stage(folder: Path, manifest: dict[str, Any], path: Path) -> tuple[Any, Any]:
    """A store of its own with the folder's content, brought to this program's revision."""
    url = store_url(path)
    with migration_transaction(url) as connection:
        run_revisions(connection, manifest["revision"])
        metadata = MetaData()
        metadata.reflect(connection)  # the tables as they were then, not as they are now
        expected = [t for t in metadata.sorted_tables if t.name not in _NOT_EXPORTED]
        names = {table.name for table in expected}
        if names != set(manifest["tables"]):
            odd = sorted(names ^ set(manifest["tables"]))[0]
            raise StoreError(f"{folder / MANIFEST}: table {odd} is missing or unknown")
        for table in expected:
            rows = _read_table(folder / f"{table.name}.csv", table)
            if len(rows) != manifest["tables"][table.name].get("rows"):
                raise StoreError(f"{folder / table.name}.csv: has {len(rows)} rows, not as listed")
            if rows:
                connection.execute(insert(table), rows)
    return url, bring_to_head(url, keep_backup=False)


def _read_table(path: Path, table: Table) -> list[dict[str, Any]]:
    import pandas as pd

    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, na_filter=False)
    except (ValueError, OSError) as error:
        raise StoreError(f"{path}: is not a CSV file ({error})") from None
    columns = {column.name: column for column in table.columns}
    if set(frame.columns) != set(columns):
        odd = sorted(set(frame.columns) ^ set(columns))[0]
        raise StoreError(f"{path}: column {odd} is missing or unknown")
    values = {
        name: [_from_field(path, column, line, field) for line, field in enumerate(frame[name], 2)]
        for name, column in columns.items()
    }
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def _from_field(path: Path, column: Column[Any], line: int, field: str) -> Any:
    kind = column.type
    if field == "" and (column.nullable or isinstance(kind, (JSON, DateTime, Boolean))):
        return None
    try:
        if isinstance(kind, JSON):
            return json.loads(field)
        if isinstance(kind, DateTime):
            return datetime.fromisoformat(field).astimezone(UTC).replace(tzinfo=None)
        if isinstance(kind, Boolean):
            return {"true": True, "false": False}[field]
        if isinstance(kind, Integer):
            return int(field)
        if isinstance(kind, Float):
            return float(field)
    except (ValueError, KeyError):
        raise StoreError(
            f"{path}: {column.name} of row {line - 1} is {field!r}, expected {kind}"
        ) from None
    return field
