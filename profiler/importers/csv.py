"""Profiles from plain CSV files; their form is in `csv_form.py`.

PATH is a folder of such files or one of them. A row that cannot be read is refused with its line
number. Figures become `imported`, but for those that `run.json` calls estimated: an estimate
stays one.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from profiler.importers.csv_form import (
    COLUMNS,
    HOSTS_FILE,
    LAYER_TYPES_FILE,
    LAYERS_FILE,
    LINKS_FILE,
    RUN_FILE,
    Column,
)
from profiler.importers.csv_layers import LayerReader
from profiler.importers.imported import ImportedRun, ImportOptions, Refused
from specs.errors import SpecError
from specs.files import read_yaml_or_json
from specs.gpu import gpu_type
from specs.profile import HostProfile, LinkProfile, NewRun, Operation, Source
from specs.topology import Topology

Cells = dict[str, Any]


def read(path: Path, options: ImportOptions) -> list[ImportedRun]:
    """The one run of a folder or file. Raises SpecError for files that are not of the form."""
    files = _files(path)
    layers = LayerReader(options)
    refused: list[Refused] = []
    if LAYER_TYPES_FILE in files:
        for where, cells in _rows(files[LAYER_TYPES_FILE], LAYER_TYPES_FILE, refused):
            layers.add_type(where, cells)
    if LAYERS_FILE in files:
        for where, cells in _rows(files[LAYERS_FILE], LAYERS_FILE, refused):
            layers.add(where, cells)
    links: dict[tuple[Any, ...], LinkProfile] = {}
    if LINKS_FILE in files:
        for where, cells in _rows(files[LINKS_FILE], LINKS_FILE, refused):
            _add_link(where, cells, links, refused)
    hosts: dict[str, HostProfile] = {}
    if HOSTS_FILE in files:
        for where, cells in _rows(files[HOSTS_FILE], HOSTS_FILE, refused):
            _add_host(where, cells, hosts, refused)
    new, notes = _new_run(path, files, options)
    return [
        ImportedRun(
            f"CSV files of {path.name}",
            new,
            layers.used_models,
            layers.used_types,
            layers=tuple(layers.rows),
            links=tuple(links.values()),
            hosts=tuple(hosts.values()),
            refused=(*refused, *layers.refused),
            notes=notes,
        )
    ]


def _files(path: Path) -> dict[str, Path]:
    """The files to read, by what they hold."""
    if path.is_dir():
        found = {name: path / name for name in (*COLUMNS, RUN_FILE) if (path / name).is_file()}
        if not {LAYERS_FILE, LINKS_FILE, HOSTS_FILE} & set(found):
            raise SpecError(
                f"{path}: none of {LAYERS_FILE}, {LINKS_FILE}, {HOSTS_FILE} there; "
                "their columns are in docs/formats.md"
            )
        return found
    names = set(_header(path))
    for kind, mark in (
        (LAYERS_FILE, "forward_ms"),
        (LINKS_FILE, "operation"),
        (HOSTS_FILE, "host_ms"),
    ):
        if mark in names:
            return {kind: path}
    raise SpecError.in_file(
        path, "line 1", ",".join(sorted(names)), "column names of layers, links or hosts"
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise SpecError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read as text ({error})") from None


def _header(path: Path) -> list[str]:
    return next(csv.reader(_text(path).splitlines()[:1]), [])


def _rows(path: Path, kind: str, refused: list[Refused]) -> Iterator[tuple[str, Cells]]:
    """(file and line, parsed cells without the empty ones) of each row that can be read."""
    columns = {column.name: column for column in COLUMNS[kind]}
    lines = csv.reader(_text(path).splitlines(keepends=True), strict=True)
    header: list[str] | None = None
    try:
        for line in lines:
            if header is None:
                header = [name.strip() for name in line]
                _check_header(path, header, columns)
                continue
            if not any(cell.strip() for cell in line):
                continue
            where = f"{path.name} line {lines.line_num}"
            if len(line) != len(header):
                refused.append(
                    Refused(where, f"has {len(line)} cells, expected {len(header)} as in line 1")
                )
                continue
            cells, reason = _parse(dict(zip(header, line, strict=True)), columns)
            if reason:
                refused.append(Refused(where, reason))
            else:
                yield where, cells
    except csv.Error as error:
        raise SpecError(f"{path}: line {lines.line_num} is not CSV ({error})") from None
    if header is None:
        raise SpecError(f"{path}: is empty, expected column names in line 1")


def _check_header(path: Path, header: list[str], columns: Mapping[str, Column]) -> None:
    for name in header:
        if name not in columns:
            raise SpecError.in_file(path, "line 1, column", name, f"one of: {', '.join(columns)}")
        if header.count(name) > 1:
            raise SpecError.in_file(path, "line 1, column", name, "each column once")
    for column in columns.values():
        if column.required and column.name not in header:
            raise SpecError.in_file(
                path, f"line 1, column {column.name}", None, f"it to be there: {column.meaning}"
            )


def _parse(line: Mapping[str, str], columns: Mapping[str, Column]) -> tuple[Cells, str]:
    cells: Cells = {}
    figures = line.get("status", "").strip() in ("", "ok")  # other rows have a key and a reason
    for name, raw in line.items():
        text, column = raw.strip(), columns[name]
        if not text:
            if column.required and (figures or not name.endswith(("_ms", "_bytes"))):
                return {}, f"{name} is empty, expected {column.meaning}"
            continue
        try:
            cells[name] = column.parse(text)
        except ValueError as error:
            return {}, f"{name} is {text!r}: {error}"
    return cells, ""


def _gpu_reason(*names: str) -> str | None:
    for name in names:
        try:
            gpu_type(name)
        except SpecError as error:
            return str(error)
    return None


def _add_link(
    where: str, cells: Cells, links: dict[tuple[Any, ...], LinkProfile], refused: list[Refused]
) -> None:
    try:
        topology, operation = Topology(cells["topology"]), Operation(cells["operation"])
    except ValueError as error:
        refused.append(Refused(where, str(error)))
        return
    gpu = str(cells["gpu"])
    peer = str(cells.get("peer_gpu") or gpu)
    row = LinkProfile(
        gpu,
        topology,
        operation,
        cells["ranks"],
        cells["nbytes"],
        cells["time_ms"],
        "" if peer == gpu else peer,
        cells.get("samples", 1),
        cells.get("mad_ms"),
    )
    reason = _gpu_reason(gpu, peer)
    if row.ranks < 2 or row.nbytes < 1 or row.time_ms <= 0 or row.samples < 1:
        reason = "ranks is at least 2; nbytes, time_ms and samples are above 0"
    if row.mad_ms is not None and row.mad_ms < 0:
        reason = f"mad_ms is {row.mad_ms:g}, expected a number of at least 0"
    key = (gpu, peer, topology, operation, row.ranks, row.nbytes)
    if key in links:
        reason = "the same link, ranks and nbytes stand in an earlier line"
    if reason:
        refused.append(Refused(where, reason))
    else:
        links[key] = row


def _add_host(
    where: str, cells: Cells, hosts: dict[str, HostProfile], refused: list[Refused]
) -> None:
    row = HostProfile(
        cells["gpu"],
        cells["host_ms"],
        cells["framework_bytes"],
        cells["usable_bytes"],
        cells.get("host_mad_ms"),
    )
    reason = _gpu_reason(row.gpu)
    if min(row.host_ms, row.framework_bytes, row.host_mad_ms or 0) < 0 or row.usable_bytes < 1:
        reason = "host_ms, framework_bytes, host_mad_ms are at least 0, usable_bytes above 0"
    if row.gpu in hosts:
        reason = "the same GPU type stands in an earlier line"
    if reason:
        refused.append(Refused(where, reason))
    else:
        hosts[row.gpu] = row


def _new_run(
    path: Path, files: Mapping[str, Path], options: ImportOptions
) -> tuple[NewRun, tuple[str, ...]]:
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(name.encode() + b"\0" + files[name].read_bytes())
    workload = json.dumps(
        [options.models, options.seq_len, options.dtype, options.optimizer, options.recompute]
    )
    digest.update(workload.encode())
    facts = read_yaml_or_json(files[RUN_FILE]) if RUN_FILE in files else {}
    if not isinstance(facts, dict):
        raise SpecError.in_file(files[RUN_FILE], "the document", facts, "a JSON object")
    origin = f"CSV files of {path.name}, sha256 {digest.hexdigest()[:12]}"
    before = str(facts.get("origin", ""))
    for said in (before, options.origin):
        origin += f"; {said}" if said else ""
    estimated = facts.get("source") == Source.ESTIMATED.value
    new = NewRun(
        Source.ESTIMATED if estimated else Source.IMPORTED,
        origin,
        host=str(facts.get("host", "")),  # rows of `cpu` count on that host only
        licence=options.licence or str(facts.get("licence", "")),
        driver=str(facts.get("driver", "")),
        torch_version=str(facts.get("torch_version", "")),
        nccl_version=str(facts.get("nccl_version", "")),
    )
    return new, ("labelled estimated, as run.json says",) if estimated else ()
