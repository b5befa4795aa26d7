"""Profiles in Metis's layout: a JSON file per GPU type, TP degree and micro-batch.

PATH is a folder of `DeviceType.<type>_tp<t>_bs<b>.json`. The files do not say which model they
are of, nor at which length and precision: `--model` and its default workload, or the options, do.
How the numbers become rows:

- A layer's time is forward and backward together. A third goes to forward and two to backward,
  which has twice the matrix work; only the sum was measured. Collectives of a TP group are inside
  (`comm_included`): Metis adds none.
- The first layer is the embedding, the last the head; a block row is the mean over the blocks with
  their median absolute deviation.
- The optimizer step of the file is shared out in proportion to `parameters_per_layer_bytes`,
  which are those at TP 1; a rank's share is their part 1/tp.
- `layer_memory_total_mb` (of 2^20 bytes) holds training state and activations. Where a type and
  TP degree have several micro-batches, activations are what grows with them: the line through the
  smallest and the largest. With one micro-batch the state of the workload's precision and
  optimizer is subtracted.
- `batch_generator_time_ms`, median over the files of a type, is its host time per micro-batch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from profiler.importers.imported import ImportedRun, ImportOptions, Refused
from profiler.importers.plausible import complaint, median_deviation
from profiler.importers.workload import ProfiledAt, catalogue_gpu, run_of_files
from specs.errors import SpecError
from specs.gpu import gpu_type
from specs.profile import HostProfile, LayerProfile
from specs.units import MIB

FILE_NAME = re.compile(r"DeviceType\.(?P<gpu>.+)_tp(?P<tp>[1-9]\d*)_bs(?P<bs>[1-9]\d*)\.json")
FRAMEWORK_BYTES = 1_500_000_000  # as of an estimate (DESIGN section 5): the layout has none
RESERVED_BYTES = 600 * MIB
FORWARD_SHARE = 1 / 3
SIZE_TOLERANCE = 0.1  # Metis users count parameters by rule of thumb


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")  # files carry more than any planner reads


class _Parameters(_Part):
    parameters_per_layer_bytes: list[FiniteFloat]


class _Model(_Part):
    parameters: _Parameters


class _Times(_Part):
    optimizer_time_ms: FiniteFloat = Field(ge=0)
    batch_generator_time_ms: FiniteFloat = Field(ge=0)
    layer_compute_total_ms: list[FiniteFloat]


class _Memory(_Part):
    layer_memory_total_mb: list[FiniteFloat]


class _Profile(_Part):
    model: _Model
    execution_time: _Times
    execution_memory: _Memory


@dataclass(frozen=True)
class _File:
    """One profile file, read: what it is of, and its figures per layer."""

    where: str
    gpu: str
    tp: int
    micro_batch: int
    layer_ms: Sequence[float]
    memory_bytes: Sequence[float]
    weight_bytes: Sequence[float]  # of one rank
    optimizer_ms: float
    host_ms: float


def read(path: Path, options: ImportOptions) -> list[ImportedRun]:
    """One run of all files of a folder.

    Raises SpecError for a folder without such files, or without exactly one `--model`.
    """
    at = ProfiledAt.of(options, "Metis")
    found = {
        file: FILE_NAME.fullmatch(file.name) for file in sorted(path.glob("DeviceType.*.json"))
    }
    if not any(found.values()):
        raise SpecError(f"{path}: no DeviceType.<type>_tp<t>_bs<b>.json there")
    refused: list[Refused] = []
    files: list[_File] = []
    for file, match in found.items():
        read_file = _read_file(file, match, at, options) if match else "is no <type>_tp<t>_bs<b>"
        if isinstance(read_file, str):
            refused.append(Refused(file.name, read_file))
        else:
            files.append(read_file)
    rows: list[LayerProfile] = []
    for entry in files:
        peers = [f for f in files if (f.gpu, f.tp) == (entry.gpu, entry.tp)]
        rows += _rows(entry, peers, at, refused)
    host_ms: dict[str, list[float]] = {}
    for entry in files:
        host_ms.setdefault(entry.gpu, []).append(entry.host_ms)
    return [
        ImportedRun(
            f"Metis files of {path.name}",
            run_of_files("Metis", path, found, at, options),
            (at.model,),
            layers=tuple(rows),
            hosts=tuple(_hosts(host_ms)),
            refused=tuple(refused),
            notes=(
                "a third of each layer's time is called forward, two thirds backward: only "
                "their sum was measured",
                "hosts: usable memory is NVML's total less 600 MiB, framework memory 1.5e9 bytes, "
                "neither is in the files",
                "the layout has no links: arachne-prof links measures them, estimate makes them",
            ),
        )
    ]


def _read_file(
    path: Path, match: re.Match[str], at: ProfiledAt, options: ImportOptions
) -> _File | str:
    """The file, or why it is refused."""
    gpu = catalogue_gpu(match["gpu"], options)
    if gpu is None:
        return f"type {match['gpu']!r} has no catalogue name: add --gpu-name {match['gpu']}=NAME"
    try:
        profile = _Profile.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'the document'}: {first['msg']}"
    tp, layers = int(match["tp"]), at.model.layers
    times, weights = profile.execution_time, profile.model.parameters.parameters_per_layer_bytes
    lists = {
        "layer_compute_total_ms": times.layer_compute_total_ms,
        "layer_memory_total_mb": profile.execution_memory.layer_memory_total_mb,
        "parameters_per_layer_bytes": weights,
    }
    for name, values in lists.items():
        if len(values) != len(layers):
            return f"{name} has {len(values)} layers, {at.model.name} has {len(layers)}"
        if min(values) < 0:
            return f"{name} holds {min(values):g}, expected numbers of at least 0"
    expected = layers[1].parameters * at.dtype.bytes
    if abs(weights[1] - expected) > SIZE_TOLERANCE * expected:
        return (
            f"a block has {weights[1]:.0f} bytes of parameters, one of {at.model.name} in "
            f"{at.dtype} has {expected}: these are files of another model or precision"
        )
    return _File(
        path.name,
        gpu,
        tp,
        int(match["bs"]),
        times.layer_compute_total_ms,
        [mb * MIB for mb in lists["layer_memory_total_mb"]],
        [weight / tp for weight in weights],
        times.optimizer_time_ms,
        times.batch_generator_time_ms,
    )


def _rows(
    file: _File, peers: Sequence[_File], at: ProfiledAt, refused: list[Refused]
) -> list[LayerProfile]:
    rows: list[LayerProfile] = []
    state = [_state_bytes(i, peers, at) for i in range(len(file.layer_ms))]
    total_weights = math.fsum(file.weight_bytes)
    blocks = range(1, len(file.layer_ms) - 1)
    for layer, members in (
        (at.model.layers[0], range(1)),
        (at.model.layers[1], blocks),
        (at.model.layers[-1], range(blocks.stop, blocks.stop + 1)),
    ):
        key = at.key(file.gpu, layer, file.tp, file.micro_batch)
        times = [file.layer_ms[i] for i in members]
        activations = fmean(file.memory_bytes[i] - state[i] for i in members)
        weights = fmean(file.weight_bytes[i] for i in members)
        spread = median_deviation(times) if len(times) > 1 else None
        row = LayerProfile(
            key,
            forward_ms=fmean(times) * FORWARD_SHARE,
            backward_ms=fmean(times) * (1 - FORWARD_SHARE),
            comm_ms=0.0,
            update_ms=file.optimizer_ms * weights / total_weights if total_weights else 0.0,
            activation_bytes=round(activations),
            transient_bytes=0,
            parameter_bytes=round(weights),
            samples=len(times),
            forward_mad_ms=None if spread is None else spread * FORWARD_SHARE,
            backward_mad_ms=None if spread is None else spread * (1 - FORWARD_SHARE),
            comm_included=file.tp > 1,
        )
        reason = complaint(row, layer)
        if reason:
            refused.append(Refused(f"{file.where} {layer.kind.value}", reason, key))
        else:
            rows.append(row)
    return rows


def _state_bytes(i: int, peers: Sequence[_File], at: ProfiledAt) -> float:
    """What layer i of a rank keeps whatever the micro-batch is."""
    small = min(peers, key=lambda file: file.micro_batch)
    large = max(peers, key=lambda file: file.micro_batch)
    if small.micro_batch == large.micro_batch:
        return at.state_bytes_per_weight_byte * small.weight_bytes[i]
    step = (large.memory_bytes[i] - small.memory_bytes[i]) / (large.micro_batch - small.micro_batch)
    return small.memory_bytes[i] - step * small.micro_batch


def _hosts(host_ms: Mapping[str, Sequence[float]]) -> Iterator[HostProfile]:
    """A host row for every GPU type that has a memory of its own (`cpu` has not)."""
    for gpu, values in host_ms.items():
        memory_mib = gpu_type(gpu).memory_mib
        if memory_mib is not None:
            spread = median_deviation(list(values)) if len(values) > 1 else None
            usable = memory_mib * MIB - RESERVED_BYTES
            yield HostProfile(gpu, median(values), FRAMEWORK_BYTES, usable, spread)
