"""Sailor's times and sizes of layers, made into rows (DESIGN section 5).

- Seconds become ms. Micro-batches are those of the file; sequence length and widths are those of
  the catalogue model whose `sailor_name` the file uses; precision fp32, Adam, no recomputation.
- Communication of a TP group is inside forward and backward: comm_ms 0, `comm_included`.
- `update` is one figure, the optimizer step of the small model that was profiled, written on
  every layer: each layer gets it divided by their number, so that the sum is that figure.
- Layer 0 is the embedding, what follows the blocks is the head (LLAMA: two layers, added up).
- Block 1 is measured apart from the others, which are copies of one measurement. A block row is
  the mean over all blocks, so that the model's total is that of the file; its spread is the
  median absolute deviation of the measurements that differ (of two: half their distance).
- Sizes are those of one micro-batch of 1; activations grow in proportion to the micro-batch.
  `act_mem` holds everything the forward pass left allocated: transient_bytes is 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from profiler.importers.imported import Refused
from profiler.importers.plausible import complaint, median_deviation
from specs.gpu import gpu_type
from specs.layer import LayerKind, LayerType
from specs.model import Model
from specs.profile import LayerKey, LayerProfile
from specs.workload import DType, Optimizer, Recompute

SIZES_FILE = "model_memory/llm_info.json"

Times = tuple[float, float, float]  # forward, backward, update in seconds


class LayerTable:
    """Turns the times of one model, GPU type by GPU type, into rows and refusals."""

    def __init__(self, model: Model, sizes: Any) -> None:
        self.model = model
        self.sizes = _Sizes.parse(sizes, model)
        self.rows: list[LayerProfile] = []
        self.refused: list[Refused] = []
        self.notes: list[str] = []

    def add_gpu(self, name: str, gpu: str | None, file: str, times: Any) -> None:
        """Adds the times of one GPU type: `name` in the file, `gpu` in the catalogue."""
        where = f"{file}: {self.model.config['sailor_name']} {name}"
        if gpu is None:
            self.refused.append(Refused(where, f"GPU name {name!r} has no catalogue name"))
            return
        if not isinstance(times, dict):
            self.refused.append(Refused(where, "is no table {micro-batch: {tp: {layer: times}}}"))
            return
        zero_updates = 0
        for micro_batch, by_tp in sorted(times.items(), key=lambda item: _order(item[0])):
            if not isinstance(by_tp, dict):
                self.refused.append(Refused(f"{where} mbs {micro_batch}", "is no table"))
                continue
            for tp, layers in sorted(by_tp.items(), key=lambda item: _order(item[0])):
                here = f"{where} mbs {micro_batch} tp {tp}"
                reason = self._add(gpu, str(micro_batch), str(tp), layers, here)
                if reason:
                    self._refuse(gpu, str(micro_batch), str(tp), here, reason)
                elif all(value[2] == 0 for value in layers.values()):
                    zero_updates += 1
        if zero_updates:
            self.notes.append(
                f"{where}: the optimizer step is 0 in {zero_updates} of its tables, so it was not "
                "timed there: update_ms is 0"
            )

    def _refuse(self, gpu: str, micro_batch: str, tp: str, where: str, reason: str) -> None:
        if not (_whole(micro_batch) and _whole(tp)):
            self.refused.append(Refused(where, reason))
            return
        self.refused.extend(
            Refused(f"{where} {layer.kind.value}", reason, self._key(gpu, layer, tp, micro_batch))
            for layer in self.model.layer_types
        )

    def _key(self, gpu: str, layer: LayerType, tp: str, micro_batch: str) -> LayerKey:
        return LayerKey(
            gpu,
            layer.hash,
            int(tp),
            int(micro_batch),
            int(self.model.config["seq_len"]),
            DType.FP32,
            Recompute.NONE,
            Optimizer.ADAMW,
            gpu_type(gpu).default_topology,
        )

    def _add(self, gpu: str, micro_batch: str, tp: str, layers: Any, where: str) -> str | None:
        """Adds the rows of one table; the reason where the whole table cannot be taken."""
        if not (_whole(micro_batch) and _whole(tp)):
            return "micro-batch and TP degree are whole numbers of at least 1"
        if isinstance(self.sizes, str):
            return self.sizes
        if tp not in self.sizes.by_tp:
            return f"{SIZES_FILE} has no sizes of this model at TP {tp}: memory cannot be checked"
        times = _times(layers)
        if isinstance(times, str):
            return times
        if len(times) != self.sizes.layers:
            return (
                f"has {len(times)} layers, {SIZES_FILE} has {self.sizes.layers}: "
                "these are not times of this model"
            )
        for layer, part in _parts(self.model, times):
            row = self._row(layer, part, self._key(gpu, layer, tp, micro_batch), len(times))
            reason = complaint(row, layer)
            if reason:
                self.refused.append(Refused(f"{where} {layer.kind.value}", reason, row.key))
            else:
                self.rows.append(row)
        return None

    def _row(
        self, layer: LayerType, times: Sequence[Times], key: LayerKey, repeated: int
    ) -> LayerProfile:
        """One layer row; block times are means, those of embedding and head are sums."""
        assert isinstance(self.sizes, _Sizes)
        size = self.sizes.by_tp[str(key.tp)][layer.kind]
        measured = list(dict.fromkeys(times)) if layer.kind.is_block else []
        forward, backward, update = (
            _one_layer(layer, [time[i] * 1e3 for time in times]) for i in range(3)
        )
        spread = len(measured) > 1
        return LayerProfile(
            key,
            forward_ms=forward,
            backward_ms=backward,
            comm_ms=0.0,
            update_ms=update / repeated,
            activation_bytes=round(size.activation_bytes * key.micro_batch),
            transient_bytes=0,
            parameter_bytes=round(size.parameter_bytes),
            samples=max(1, len(measured)),
            forward_mad_ms=median_deviation([t[0] * 1e3 for t in measured]) if spread else None,
            backward_mad_ms=median_deviation([t[1] * 1e3 for t in measured]) if spread else None,
            comm_included=key.tp > 1,
        )


@dataclass(frozen=True, slots=True)
class _Size:
    """Bytes of one layer at one TP degree, activations of a micro-batch of 1."""

    parameter_bytes: float
    activation_bytes: float


@dataclass(frozen=True)
class _Sizes:
    """Sizes of a model: by TP degree and kind of layer, and how many layers its files list."""

    layers: int
    by_tp: Mapping[str, Mapping[LayerKind, _Size]]

    @classmethod
    def parse(cls, content: Any, model: Model) -> _Sizes | str:
        """The sizes of a model, or the reason why its rows cannot be taken."""
        if not isinstance(content, dict) or not content:
            return f"{SIZES_FILE} has no sizes of this model: memory cannot be checked"
        by_tp: dict[str, dict[LayerKind, _Size]] = {}
        counts: set[int] = set()
        for tp, layers in content.items():
            sizes = _layer_sizes(layers)
            if sizes is None or len(sizes) < model.blocks + 2:
                return (
                    f"{SIZES_FILE} at TP {tp}: expected params_floats and act_mem_floats of at "
                    f"least {model.blocks + 2} layers, numbered from 0"
                )
            by_tp[tp] = {
                layer.kind: _Size(
                    _one_layer(layer, [size.parameter_bytes for size in part]),
                    _one_layer(layer, [size.activation_bytes for size in part]),
                )
                for layer, part in _parts(model, sizes)
            }
            counts.add(len(sizes))
        if len(counts) != 1:
            return f"{SIZES_FILE}: the TP degrees differ in their layers: {sorted(counts)}"
        whole = by_tp.get("1", {})
        for layer in model.layer_types if whole else ():
            found = whole[layer.kind].parameter_bytes / DType.FP32.bytes
            if found != layer.parameters:
                return (
                    f"{SIZES_FILE}: {found:.0f} parameters in a {layer.kind.value}, {model.name} "
                    f"of the catalogue has {layer.parameters}: these are sizes of another model"
                )
        return cls(counts.pop(), by_tp)


_Part = TypeVar("_Part")


def _parts(model: Model, layers: Sequence[_Part]) -> Iterator[tuple[LayerType, Sequence[_Part]]]:
    """The layers that make up the embedding, the blocks and the head."""
    end = 1 + model.blocks
    yield model.layers[0], layers[:1]
    yield model.layers[1], layers[1:end]
    yield model.layers[-1], layers[end:]


def _one_layer(layer: LayerType, values: Sequence[float]) -> float:
    """The figure of one layer: the mean over blocks, the sum over the parts of an end."""
    return math.fsum(values) / (len(values) if layer.kind.is_block else 1)


def _layer_sizes(layers: Any) -> list[_Size] | None:
    if not isinstance(layers, dict):
        return None
    sizes: list[_Size] = []
    for i in range(len(layers)):
        entry = layers.get(str(i))
        if not isinstance(entry, dict):
            return None
        weights, kept = entry.get("params_floats"), entry.get("act_mem_floats")
        if not (isinstance(weights, int) and isinstance(kept, int) and min(weights, kept) >= 0):
            return None
        sizes.append(_Size(weights * DType.FP32.bytes, kept * DType.FP32.bytes))
    return sizes


def _times(layers: Any) -> list[Times] | str:
    """Seconds of each layer in order, or the reason why they cannot be read."""
    if not isinstance(layers, dict) or not layers:
        return "is no table {layer: [forward, backward, update]}"
    found: list[Times] = []
    for i in range(len(layers)):
        value = layers.get(str(i))
        if value is None:
            return f"layer {i} is missing, expected layers 0 to {len(layers) - 1}"
        if not isinstance(value, list) or len(value) != 3:
            return f"layer {i} is {value!r}, expected [forward, backward, update] in seconds"
        if not all(isinstance(v, int | float) and math.isfinite(v) and v >= 0 for v in value):
            return f"layer {i} has times {value!r}, expected seconds of at least 0"
        found.append((float(value[0]), float(value[1]), float(value[2])))
    return found


def _whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) >= 1


def _order(text: Any) -> tuple[int, str]:
    return (int(text) if _whole(str(text)) else 0, str(text))
