"""Layer rows of a CSV file: which layer type a row is of, its key, its figures."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from profiler.importers.imported import ImportOptions, Refused
from profiler.importers.plausible import complaint
from specs.errors import SpecError
from specs.gpu import gpu_type
from specs.layer import LayerKind, LayerType
from specs.model import Model, catalogue_models, load_model
from specs.profile import EntryStatus, LayerKey, LayerProfile
from specs.topology import Topology
from specs.workload import DType, Optimizer, Recompute


@cache
def catalogue_layer_types() -> dict[str, LayerType]:
    """Every layer type of the models that ship with Arachne, by hash."""
    models = (load_model(name) for name in catalogue_models())
    return {layer.hash: layer for model in models for layer in model.layer_types}


class LayerReader:
    """Turns parsed cells into rows; what it cannot take is in `refused`, with its line."""

    def __init__(self, options: ImportOptions) -> None:
        self.options = options
        self.rows: list[LayerProfile] = []
        self.refused: list[Refused] = []
        self._types: dict[str, LayerType] = {}
        self._models: dict[str, Model] = {}
        self._used: dict[str, LayerType] = {}
        self._lines: dict[LayerKey, str] = {}

    @property
    def used_models(self) -> tuple[Model, ...]:
        """Models that rows name."""
        return tuple(self._models.values())

    @property
    def used_types(self) -> tuple[LayerType, ...]:
        """Layer types that rows name."""
        return tuple(self._used.values())

    def add_type(self, where: str, cells: dict[str, Any]) -> None:
        """A line of layer_types.csv. Its hash must be that of its kind and shapes."""
        try:
            shapes = dict(json.loads(cells["shapes"]))
            layer = LayerType.of(
                LayerKind(cells["kind"]), shapes, cells["parameters"], cells["expert_parameters"]
            )
        except (TypeError, ValueError) as error:
            self.refused.append(Refused(where, f"is no layer type ({error})"))
            return
        if layer.hash != cells["layer_type"]:
            reason = (
                f"layer_type is {cells['layer_type']}, expected {layer.hash}: that of its shapes"
            )
            self.refused.append(Refused(where, reason))
            return
        self._types[layer.hash] = layer

    def add(self, where: str, cells: dict[str, Any]) -> None:
        """A line of layers.csv."""
        try:
            layer, model = self._layer(cells)
            key = self._key(cells, layer, model)
            status = EntryStatus(cells.get("status", EntryStatus.OK))
        except (SpecError, ValueError) as error:
            self.refused.append(Refused(where, str(error)))
            return
        before = self._lines.setdefault(key, where)
        if before != where:
            self.refused.append(Refused(where, f"has the same key as {before}"))
            return
        if status is not EntryStatus.OK:
            self.refused.append(Refused(where, cells.get("reason", "no reason"), key, status))
        else:
            row = _profile(key, cells)
            reason = complaint(row, layer)
            if reason is None:
                self.rows.append(row)
            else:
                self.refused.append(Refused(where, reason, key))
        self._used[layer.hash] = layer
        if model is not None:
            self._models[model.name] = model

    def _layer(self, cells: dict[str, Any]) -> tuple[LayerType, Model | None]:
        kind = LayerKind(cells["layer"]) if "layer" in cells else None
        name = cells.get("model") or next(iter(self.options.models), None)
        model = load_model(name) if name else None
        wanted = cells.get("layer_type")
        if wanted:
            known = {t.hash: t for t in model.layer_types} if model else {}
            layer = known.get(wanted) or self._types.get(wanted)
            layer = layer or catalogue_layer_types().get(wanted)
            if layer is None:
                raise SpecError(
                    f"layer_type {wanted} is in no catalogue model and no layer_types.csv"
                )
            if kind not in (None, layer.kind):
                raise SpecError(f"layer is {kind}, layer_type {wanted} is a {layer.kind.value}")
            return layer, model if wanted in known else None
        if model is None or kind is None:
            raise SpecError("names no layer: expected layer_type, or layer with model (or --model)")
        fitting = [layer for layer in model.layer_types if layer.kind is kind]
        if len(fitting) > 1:
            hashes = ", ".join(f"{layer.hash} ({layer.label})" for layer in fitting)
            raise SpecError(
                f"layer is {kind.value}, of which {model.name} has several: give layer_type, "
                f"one of {hashes}"
            )
        if fitting:
            return fitting[0], model
        kinds = ", ".join(layer.kind.value for layer in model.layer_types)
        raise SpecError(f"layer is {kind.value}, {model.name} has: {kinds}")

    def _key(self, cells: dict[str, Any], layer: LayerType, model: Model | None) -> LayerKey:
        gpu = gpu_type(cells["gpu"])
        usual = model.default_workload if model else None
        seq_len = cells.get("seq_len") or self.options.seq_len or (usual and usual.seq_len)
        dtype = cells.get("dtype") or self.options.dtype or (usual and usual.dtype)
        if not seq_len or not dtype:
            raise SpecError("seq_len or dtype is empty, and no model says it")
        optimizer = cells.get("optimizer") or self.options.optimizer or Optimizer.ADAMW
        key = LayerKey(
            gpu.name,
            layer.hash,
            cells["tp"],
            cells["micro_batch"],
            seq_len,
            DType(dtype),
            Recompute(cells.get("recompute") or self.options.recompute),
            Optimizer(optimizer),
            Topology(cells.get("topology") or gpu.default_topology),
            cells.get("ep", 1),
            cells.get("etp", 1),
        )
        if min(key.tp, key.micro_batch, key.seq_len, key.ep, key.etp) < 1:
            raise SpecError("tp, micro_batch, seq_len, ep and etp are at least 1")
        return key


def _profile(key: LayerKey, cells: dict[str, Any]) -> LayerProfile:
    return LayerProfile(
        key,
        cells["forward_ms"],
        cells["backward_ms"],
        cells["comm_ms"],
        cells["update_ms"],
        cells["activation_bytes"],
        cells.get("transient_bytes", 0),
        cells["parameter_bytes"],
        cells.get("expert_parameter_bytes", 0),
        cells.get("samples", 1),
        cells.get("forward_mad_ms"),
        cells.get("backward_mad_ms"),
        cells.get("comm_mad_ms"),
        cells.get("update_mad_ms"),
        cells.get("comm_included", False),
    )
