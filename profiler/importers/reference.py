"""Profiles of the reference problems: one JSON document a model, with layers, links and hosts.

PATH is such a file, a folder of them, or a folder with `profiles/`. The document says whether its
figures are measured, imported or estimated, and that label is kept. Collectives ran over the
default link of each GPU type. `usable_bytes` is after a head-room of 5 %: divided by 0.95 here
(DESIGN section 13, 15).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import Field, FiniteFloat

from profiler.importers.imported import ImportedRun, ImportOptions, Refused
from profiler.importers.plausible import complaint
from specs.errors import SpecError
from specs.files import Document, read_yaml_or_json, validate
from specs.gpu import gpu_type
from specs.layer import LayerKind, LayerType
from specs.model import load_model
from specs.profile import (
    HostProfile,
    LayerKey,
    LayerProfile,
    LinkProfile,
    NewRun,
    Operation,
    Source,
)
from specs.workload import STATE_BYTES_PER_PARAMETER, DType, Optimizer, Recompute

HEADROOM = 0.05  # that usable_bytes is less of


class LayerFile(Document):
    """One layer at one key; times in ms, sizes in bytes of one rank."""

    gpu: str
    layer: LayerKind
    tp: int = Field(ge=1)
    micro_batch: int = Field(ge=1)
    seq_len: int = Field(ge=1)
    forward_ms: FiniteFloat
    backward_ms: FiniteFloat
    comm_ms: FiniteFloat
    update_ms: FiniteFloat
    activation_bytes: FiniteFloat
    transient_bytes: FiniteFloat
    parameter_bytes: FiniteFloat


class LinkFile(Document):
    """One transfer inside a node."""

    gpu: str
    op: Operation
    ranks: int = Field(ge=2)
    bytes: int = Field(ge=1)
    time_ms: FiniteFloat = Field(gt=0)


class HostFile(Document):
    """What a process costs on one GPU type; usable_bytes after head-room."""

    host_ms: FiniteFloat = Field(ge=0)
    framework_bytes: FiniteFloat = Field(ge=0)
    usable_bytes: FiniteFloat = Field(gt=0)


class ProfilesFile(Document):
    """Profiles of one model at one workload."""

    source: Source
    model: str
    hidden: int
    seq_len: int
    blocks: int
    tied: bool
    dtype_bytes: int
    state_bytes_per_parameter: int
    layers: list[LayerFile] = Field(min_length=1)
    links: list[LinkFile]
    hosts: dict[str, HostFile]


def read(path: Path, options: ImportOptions) -> list[ImportedRun]:
    """One run per document. Raises SpecError for a document that is not of the form."""
    files = _documents(path)
    runs = [_read_document(file, options) for file in files]
    if options.models:
        runs = [run for run in runs if run.models[0].name in options.models]
    if not runs:
        raise SpecError(f"{path}: no profiles of {', '.join(options.models)} there")
    return runs


def _documents(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    folder = path / "profiles" if (path / "profiles").is_dir() else path
    files = sorted(folder.glob("*.json"))
    if not files:
        raise SpecError(
            f"{path}: no profiles/<model>.json, expected a folder of reference problems or one file"
        )
    return files


def _read_document(path: Path, options: ImportOptions) -> ImportedRun:
    file = validate(ProfilesFile, read_yaml_or_json(path), path)
    model = load_model(file.model)
    for name, value, expected in (
        ("hidden", file.hidden, model.hidden),
        ("blocks", file.blocks, model.blocks),
        ("tied", file.tied, model.tied),
    ):
        if value != expected:
            raise SpecError.in_file(path, name, value, f"{expected}, that of {model.name}")
    dtype, optimizer = _workload(path, file)
    kinds = {layer.kind: layer for layer in model.layer_types}
    layers: list[LayerProfile] = []
    refused: list[Refused] = []
    seen: set[LayerKey] = set()
    for i, entry in enumerate(file.layers):
        where = (
            f"{path.name}: layers[{i}] {entry.gpu} {entry.layer.value} tp {entry.tp} "
            f"mbs {entry.micro_batch}"
        )
        reason = _refusal(entry, kinds)
        if reason:
            refused.append(Refused(where, reason))
            continue
        row = _layer(entry, kinds[entry.layer], dtype, optimizer)
        reason = complaint(row, kinds[entry.layer])
        if row.key in seen:
            reason = "stands twice in the document"
        seen.add(row.key)
        if reason:
            refused.append(Refused(where, reason, row.key))
        else:
            layers.append(row)
    links, hosts = _links(file, path, refused), _hosts(file, path, refused)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    origin = f"reference problems, {path.name}: sha256 {digest}"
    if options.origin:
        origin += f"; {options.origin}"
    return ImportedRun(
        f"Reference profiles of {model.name}",
        NewRun(file.source, origin, licence=options.licence),
        (model,),
        layers=tuple(layers),
        links=links,
        hosts=hosts,
        refused=tuple(refused),
        notes=(f"labelled {file.source.value}, as the document says",),
    )


def _workload(path: Path, file: ProfilesFile) -> tuple[DType, Optimizer]:
    dtype = {2: DType.BF16, 4: DType.FP32}.get(file.dtype_bytes)
    if dtype is None:
        raise SpecError.in_file(path, "dtype_bytes", file.dtype_bytes, "2 (bf16) or 4 (fp32)")
    for optimizer in Optimizer:
        if STATE_BYTES_PER_PARAMETER[(dtype, optimizer)] == file.state_bytes_per_parameter:
            return dtype, optimizer
    raise SpecError.in_file(
        path,
        "state_bytes_per_parameter",
        file.state_bytes_per_parameter,
        f"that of an optimizer of specs/workload.py in {dtype.value}",
    )


def _gpu_complaint(name: str) -> str | None:
    try:
        gpu_type(name)
    except SpecError as error:
        return str(error)
    return None


def _refusal(entry: LayerFile, kinds: dict[LayerKind, LayerType]) -> str | None:
    if entry.layer not in kinds:
        return f"the model has no {entry.layer.value}, expected one of: {', '.join(kinds)}"
    return _gpu_complaint(entry.gpu)


def _layer(entry: LayerFile, layer: LayerType, dtype: DType, optimizer: Optimizer) -> LayerProfile:
    key = LayerKey(
        entry.gpu,
        layer.hash,
        entry.tp,
        entry.micro_batch,
        entry.seq_len,
        dtype,
        Recompute.NONE,
        optimizer,
        gpu_type(entry.gpu).default_topology,
    )
    return LayerProfile(
        key,
        entry.forward_ms,
        entry.backward_ms,
        entry.comm_ms,
        entry.update_ms,
        round(entry.activation_bytes),
        round(entry.transient_bytes),
        round(entry.parameter_bytes),
    )


def _links(file: ProfilesFile, path: Path, refused: list[Refused]) -> tuple[LinkProfile, ...]:
    rows = []
    for i, link in enumerate(file.links):
        reason = _gpu_complaint(link.gpu)
        if reason:
            refused.append(Refused(f"{path.name}: links[{i}]", reason))
            continue
        topology = gpu_type(link.gpu).default_topology
        rows.append(LinkProfile(link.gpu, topology, link.op, link.ranks, link.bytes, link.time_ms))
    return tuple(rows)


def _hosts(file: ProfilesFile, path: Path, refused: list[Refused]) -> tuple[HostProfile, ...]:
    rows = []
    for gpu, host in file.hosts.items():
        reason = _gpu_complaint(gpu)
        if reason:
            refused.append(Refused(f"{path.name}: hosts.{gpu}", reason))
            continue
        usable = round(host.usable_bytes / (1 - HEADROOM))
        rows.append(HostProfile(gpu, host.host_ms, round(host.framework_bytes), usable))
    return tuple(rows)
