"""The model and workload that files without them were profiled at, from the import's options."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from profiler.importers.imported import ImportOptions
from specs.errors import SpecError
from specs.gpu import GPU_TYPES, gpu_type
from specs.layer import LayerKind, LayerType
from specs.model import Model, load_model
from specs.profile import LayerKey, NewRun, Source
from specs.workload import STATE_BYTES_PER_PARAMETER, DType, Optimizer, Recompute


@dataclass(frozen=True)
class ProfiledAt:
    """A dense model and the workload its layers were timed at."""

    model: Model
    seq_len: int
    dtype: DType
    optimizer: Optimizer
    recompute: Recompute

    @classmethod
    def of(cls, options: ImportOptions, form: str) -> ProfiledAt:
        """What the options say, the rest from the model's default workload.

        form: name of the layout, for messages. Raises SpecError without exactly one model, and
        for a model with routed experts, which no such layout has a place for.
        """
        if len(options.models) != 1:
            raise SpecError(f"{form} files do not name their model: add --model, one model a call")
        model = load_model(options.models[0])
        if any(layer.kind is LayerKind.MOE_BLOCK for layer in model.layer_types):
            raise SpecError(f"{form} files have no routed experts, {model.name} has")
        usual = model.default_workload
        return cls(
            model,
            options.seq_len or usual.seq_len,
            options.dtype or usual.dtype,
            options.optimizer or usual.optimizer,
            options.recompute,
        )

    @property
    def state_bytes_per_weight_byte(self) -> float:
        """Training state over weights, in bytes per byte."""
        return STATE_BYTES_PER_PARAMETER[(self.dtype, self.optimizer)] / self.dtype.bytes

    def key(self, gpu: str, layer: LayerType, tp: int, micro_batch: int) -> LayerKey:
        """The key of a row of this workload, over the default link of the GPU type."""
        return LayerKey(
            gpu,
            layer.hash,
            tp,
            micro_batch,
            self.seq_len,
            self.dtype,
            self.recompute,
            self.optimizer,
            gpu_type(gpu).default_topology,
        )

    def __str__(self) -> str:
        return (
            f"{self.model.name}, length {self.seq_len}, {self.dtype}, {self.optimizer}, "
            f"recompute {self.recompute}"
        )


def catalogue_gpu(name: str, options: ImportOptions) -> str | None:
    """The GPU type a name in a file stands for: as the options say, or a name of the catalogue."""
    found = options.gpus.get(name, name.lower())
    return found if found in GPU_TYPES else None


def run_of_files(
    form: str, root: Path, files: Iterable[Path], at: ProfiledAt, options: ImportOptions
) -> NewRun:
    """The run of these files: its origin names the folder, what was said of them, and a digest."""
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    digest.update(repr(sorted(options.gpus.items())).encode())
    origin = f"{form} files of {root.name} ({at}), sha256 {digest.hexdigest()[:12]}"
    if options.origin:
        origin += f"; {options.origin}"
    return NewRun(Source.IMPORTED, origin, licence=options.licence)
