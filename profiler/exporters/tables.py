"""Layer rows as tables of whole models, for layouts that list the layers of a model one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from profiler.exporters.run_rows import RunRows
from specs.errors import SpecError
from specs.layer import LayerType
from specs.model import Model
from specs.profile import LayerKey, LayerProfile
from specs.topology import Topology


@dataclass(frozen=True)
class ModelTable:
    """One (GPU type, TP degree, micro-batch): a row for every layer type of the model."""

    gpu: str
    tp: int
    micro_batch: int
    rows: dict[str, LayerProfile]  # by layer type hash

    def row(self, layer: LayerType) -> LayerProfile:
        """The row of a layer."""
        return self.rows[layer.hash]


def model_tables(rows: RunRows, model: Model) -> tuple[list[ModelTable], list[str]]:
    """Complete tables in rising order, and one line for each key that lacks a layer.

    Raises SpecError where the rows are of several lengths, precisions, optimizers, recomputations
    or, on one GPU type, topologies: such a layout cannot tell them apart.
    """
    hashes = {layer.hash for layer in model.layer_types}
    found: dict[tuple[str, int, int], dict[str, LayerProfile]] = {}
    workloads: dict[str, None] = {}
    topologies: dict[str, set[Topology]] = {}
    for row in rows.layers:
        key = row.key
        if key.layer_type in hashes and key.ep == key.etp == 1:
            workloads[_workload(key)] = None
            topologies.setdefault(key.gpu, set()).add(key.topology)
            found.setdefault((key.gpu, key.tp, key.micro_batch), {})[key.layer_type] = row
    if len(workloads) > 1:
        raise SpecError(
            f"the rows are of {len(workloads)} workloads ({'; '.join(workloads)}), which this "
            "layout cannot tell apart: export csv keeps them"
        )
    for gpu, links in topologies.items():
        if len(links) > 1:
            raise SpecError(
                f"the rows of {gpu} are over {' and '.join(sorted(links))}, which this layout "
                "cannot tell apart: export csv keeps them"
            )
    whole = [
        ModelTable(gpu, tp, micro_batch, by_type)
        for (gpu, tp, micro_batch), by_type in sorted(found.items())
        if set(by_type) == hashes
    ]
    return whole, list(_lacking(found, model))


def _workload(key: LayerKey) -> str:
    return f"length {key.seq_len}, {key.dtype}, {key.optimizer}, recompute {key.recompute}"


def _lacking(
    found: dict[tuple[str, int, int], dict[str, LayerProfile]], model: Model
) -> Iterator[str]:
    for (gpu, tp, micro_batch), by_type in sorted(found.items()):
        for layer in model.layer_types:
            if layer.hash not in by_type:
                yield (
                    f"{gpu} tp {tp} micro-batch {micro_batch} is left out: "
                    f"no row of the {layer.kind.value}"
                )
