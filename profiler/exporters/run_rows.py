"""What an export is made of: all rows of one or several profile runs, read from the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from db.store import Store
from specs.errors import SpecError
from specs.layer import LayerKind, LayerType
from specs.model import Model, catalogue_models, load_model
from specs.profile import (
    HostProfile,
    LayerKey,
    LayerProfile,
    LayerRefusal,
    LinkProfile,
    ProfileRun,
    Source,
)


@dataclass(frozen=True)
class RunRows:
    """Rows of runs; where two have a key the later run's row counts."""

    runs: tuple[ProfileRun, ...]
    layer_types: Mapping[str, LayerType]
    models: tuple[Model, ...]
    layers: tuple[LayerProfile, ...]
    refusals: tuple[LayerRefusal, ...]
    links: tuple[LinkProfile, ...]
    hosts: tuple[HostProfile, ...]

    @property
    def source(self) -> Source:
        """The least trusted source of the runs."""
        return max((run.run.source for run in self.runs), key=list(Source).index)

    def one_model(self, name: str | None) -> Model:
        """The model that the layer rows are of: the named one, or the only one that fits.

        Raises SpecError where none fits, several do, or it has routed experts.
        """
        held = {row.key.layer_type for row in self.layers}
        if name is not None:
            fitting = [load_model(name)]
        else:
            fitting = [m for m in self.models if {layer.hash for layer in m.layer_types} <= held]
        if len(fitting) > 1:
            names = ", ".join(model.name for model in fitting)
            raise SpecError(f"the rows fit several models, add --model with one of: {names}")
        if not fitting or not {layer.hash for layer in fitting[0].layer_types} <= held:
            which = name or "any known model"
            raise SpecError(f"these runs lack a layer type of {which}: nothing to export")
        [model] = fitting
        if any(layer.kind is LayerKind.MOE_BLOCK for layer in model.layer_types):
            raise SpecError(f"{model.name} has routed experts, this layout has no place for them")
        return model


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """model: whose layers to export where the rows fit several. gpus: catalogue name -> name in
    the files."""

    model: str | None = None
    gpus: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exported:
    """Text of every file, by path in the folder, and what could not be expressed."""

    files: Mapping[str, str]
    notes: tuple[str, ...] = ()


Exporter = Callable[[RunRows, ExportOptions], Exported]


def load_rows(store: Store, run_ids: Sequence[int]) -> RunRows:
    """All rows of these runs. Raises StoreError for a run that is not there."""
    layers: dict[LayerKey, LayerProfile] = {}
    refusals: dict[LayerKey, LayerRefusal] = {}
    links: dict[LinkProfile, LinkProfile] = {}
    hosts: dict[str, HostProfile] = {}
    runs = [store.profile_run(run_id) for run_id in run_ids]
    for run in runs:
        for layer in store.layer_profiles(run_id=run.id):
            layers[layer.profile.key] = layer.profile
            refusals.pop(layer.profile.key, None)
        for refusal in store.layer_refusals(run_id=run.id):
            if refusal.refusal.key not in layers:
                refusals[refusal.refusal.key] = refusal.refusal
        for link in store.link_profiles(run_id=run.id):
            row = link.profile
            links[replace(row, time_ms=0.0, samples=1, mad_ms=None)] = row  # without figures: key
        for host in store.host_profiles(run_id=run.id):
            hosts[host.profile.gpu] = host.profile
    held = {key.layer_type for key in (*layers, *refusals)}
    types = {layer.hash: layer for layer in store.layer_types(held)}
    return RunRows(
        tuple(runs),
        types,
        _models(store, set(types)),
        tuple(layers.values()),
        tuple(refusals.values()),
        tuple(links.values()),
        tuple(hosts.values()),
    )


def _models(store: Store, held: set[str]) -> tuple[Model, ...]:
    """Models all of whose layer types are among these: of the store first, then the catalogue."""
    known = [*store.models(), *(load_model(name) for name in catalogue_models())]
    by_hash = {model.config_hash: model for model in reversed(known)}
    return tuple(
        model for model in by_hash.values() if {layer.hash for layer in model.layer_types} <= held
    )


def write_files(exported: Exported, folder: Path, *, force: bool) -> list[Path]:
    """Write the files below a folder; their paths.

    Raises SpecError where the folder holds anything already: figures of two exports must not
    mix. force: replace the files that have the same names and leave the others.
    """
    from specs.files import write_atomically

    if folder.exists() and not folder.is_dir():
        raise SpecError(f"{folder}: is a file, expected a folder to write to")
    if not force and folder.is_dir() and any(folder.iterdir()):
        raise SpecError(f"{folder}: is not empty; choose another folder, or add --force")
    paths = []
    for name, text in exported.files.items():
        write_atomically(folder / name, text)
        paths.append(folder / name)
    return paths
