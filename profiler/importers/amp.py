"""Profiles in AMP's layout: a vector of forward seconds per sample for each TP degree.

PATH is a folder (or one with `known_cost/`) of `<model>_<type>_<tp>.npy`, or a folder named after
the GPU type with `profile_<tp>.npy`. `--model` says what they are of: a GPT, for that is what AMP
profiles. How the numbers become rows:

- The vector lists embedding, a no-op, the blocks, two no-ops, the head, a no-op; or the same
  without no-ops. No-ops go to the end they are at.
- Seconds are of one sample; a micro-batch takes its number of them (AMP's own assumption, so ask
  for other micro-batches than 1 knowing it). Backward is twice forward, as in AMP. Collectives of
  a TP group are inside. The optimizer was not timed: update_ms is 0.
- AMP has no memory. Activations are those of a GPT block by formula: with e bytes an element,
  s b h (4 e + 2 + 12 e / t) + a s^2 b (2 e + 1) / t; head 2 e s b h + 4 s b v / t; embedding s b h
  (its dropout mask). Source: Korthikanti et al., Reducing Activation Recomputation in Large
  Transformer Models (MLSys '23), equations 1, 2 and 4.1; at e = 2 they are s b h (34 + 5 a s / h).
"""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean

from profiler.importers.imported import ImportedRun, ImportOptions, Refused
from profiler.importers.plausible import complaint, median_deviation
from profiler.importers.workload import ProfiledAt, catalogue_gpu, run_of_files
from specs.errors import SpecError
from specs.layer import LayerKind, LayerType
from specs.profile import LayerProfile
from specs.workload import Recompute

FILE_NAME = re.compile(r"(?P<model>.+)_(?P<gpu>[^_]+)_(?P<tp>[1-9]\d*)\.npy")
BARE_NAME = re.compile(r"profile_(?P<tp>[1-9]\d*)\.npy")
BEFORE, AFTER = 2, 4  # entries of the vector before and after the blocks, with no-ops


def read(path: Path, options: ImportOptions) -> list[ImportedRun]:
    """One run of all vectors of a folder.

    Raises SpecError for a folder without vectors, without exactly one `--model`, or for a model
    whose blocks are not those of a GPT.
    """
    at = ProfiledAt.of(options, "AMP")
    block = at.model.layers[1]
    if block.flag("attention") != "gqa" or block.flag("gated") is not False:
        raise SpecError(
            f"AMP has no memory figures, and the formula for them is that of a GPT block: "
            f"{at.model.name} has another kind"
        )
    if at.recompute is not Recompute.NONE:
        raise SpecError("AMP's times are those of training without recomputation")
    folder = path / "known_cost" if (path / "known_cost").is_dir() else path
    files = sorted(folder.glob("*.npy"))
    if not files:
        raise SpecError(f"{path}: no <model>_<type>_<tp>.npy there")
    rows: list[LayerProfile] = []
    refused: list[Refused] = []
    for file in files:
        vector = _read_file(file, at, options)
        if isinstance(vector, str):
            refused.append(Refused(file.name, vector))
            continue
        gpu, tp, seconds = vector
        for micro_batch in options.micro_batches:
            rows += _rows(file.name, gpu, tp, micro_batch, seconds, at, refused)
    return [
        ImportedRun(
            f"AMP files of {path.name}",
            run_of_files("AMP", path, files, at, options),
            (at.model,),
            layers=tuple(rows),
            refused=tuple(refused),
            notes=(
                "AMP timed forward only: backward is twice forward, update_ms is 0",
                "activation bytes are by formula (Korthikanti et al.), not measured",
                "the layout has no links and no hosts: arachne-prof estimate makes them",
            ),
        )
    ]


def _read_file(
    path: Path, at: ProfiledAt, options: ImportOptions
) -> tuple[str, int, list[float]] | str:
    """GPU type, TP degree and seconds of a vector, or why it is refused."""
    import numpy as np

    named, bare = FILE_NAME.fullmatch(path.name), BARE_NAME.fullmatch(path.name)
    if bare:
        name, tp = path.parent.name, int(bare["tp"])
    elif named:
        name, tp = named["gpu"], int(named["tp"])
    else:
        return "is no <model>_<type>_<tp>.npy and no profile_<tp>.npy"
    gpu = catalogue_gpu(name, options)
    if gpu is None:
        return f"type {name!r} has no catalogue name: add --gpu-name {name}=NAME"
    try:
        vector = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        return f"is no NumPy vector ({error})"
    blocks = at.model.blocks
    if vector.ndim != 1 or vector.dtype.kind not in "fiu":
        return f"holds {vector.dtype} of shape {vector.shape}, expected one vector of numbers"
    if len(vector) not in (blocks + 2, blocks + BEFORE + AFTER):
        return (
            f"has {len(vector)} entries, {at.model.name} has {blocks} blocks: expected "
            f"{blocks + BEFORE + AFTER}, or {blocks + 2} without no-ops"
        )
    return gpu, tp, [float(value) for value in vector]


def _rows(
    where: str,
    gpu: str,
    tp: int,
    micro_batch: int,
    seconds: list[float],
    at: ProfiledAt,
    refused: list[Refused],
) -> list[LayerProfile]:
    first = BEFORE if len(seconds) == at.model.blocks + BEFORE + AFTER else 1
    last = first + at.model.blocks
    rows: list[LayerProfile] = []
    for layer, part in (
        (at.model.layers[0], [sum(seconds[:first])]),
        (at.model.layers[1], seconds[first:last]),
        (at.model.layers[-1], [sum(seconds[last:])]),
    ):
        times = [value * 1e3 * micro_batch for value in part]
        spread = median_deviation(times) if len(times) > 1 else None
        key = at.key(gpu, layer, tp, micro_batch)
        row = LayerProfile(
            key,
            forward_ms=fmean(times),
            backward_ms=2 * fmean(times),
            comm_ms=0.0,
            update_ms=0.0,
            activation_bytes=round(activation_bytes(at, layer, micro_batch, tp)),
            transient_bytes=0,
            parameter_bytes=-(-layer.parameters * at.dtype.bytes // tp),
            samples=len(times),
            forward_mad_ms=spread,
            comm_included=tp > 1,
        )
        reason = complaint(row, layer)
        if reason:
            refused.append(Refused(f"{where} {layer.kind.value} mbs {micro_batch}", reason, key))
        else:
            rows.append(row)
    return rows


def activation_bytes(at: ProfiledAt, layer: LayerType, micro_batch: int, tp: int) -> float:
    """What a GPT layer keeps for backward on one rank, in bytes (formula: top of this file)."""
    e, sb = at.dtype.bytes, at.seq_len * micro_batch
    sbh = sb * layer.shape("hidden")
    if layer.kind is LayerKind.EMBEDDING:
        return sbh
    if layer.kind is LayerKind.HEAD:
        return 2 * e * sbh + 4 * sb * layer.shape("vocab") / tp
    scores = layer.shape("heads") * at.seq_len * sb
    return sbh * (4 * e + 2 + 12 * e / tp) + scores * (2 * e + 1) / tp
