"""Sailor's published profiles: layer times of two copies, layer sizes, network fits.

PATH is a folder with `model_memory/llm_info.json` and one or both of
`planner_profiles/<model>/<gpu>/profile.json` and `simulator_profiles/profiles_tmp.json`; with
`network/*.json` the links and hosts come too. How numbers become rows stands in
`sailor_layers.py` and `sailor_network.py`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from profiler.importers import sailor_network
from profiler.importers.imported import ImportedRun, ImportOptions
from profiler.importers.sailor_layers import SIZES_FILE, LayerTable
from specs.errors import SpecError
from specs.files import read_yaml_or_json
from specs.gpu import gpu_type
from specs.model import Model, catalogue_models, load_model
from specs.profile import HostProfile, NewRun, Source
from specs.units import MIB

GPU_NAMES = {
    "A100-40": "a100-40gb",
    "A100-80": "a100-80gb",
    "V100-16": "v100-16gb",
    "GH-96": "gh200",
    "Titan-RTX": "titan-rtx",
    "RTX-3090": "rtx-3090",
    "RTX-2080": "rtx-2080-ti",
}
# Where both copies hold a key the newer run is used: the planner's comes last, because some
# forward times of the simulator's look edited by hand.
COPIES = ("simulator", "planner")
SIMULATOR_FILE = "simulator_profiles/profiles_tmp.json"
PLANNER_FOLDER = "planner_profiles"
NETWORK_FILES = (
    sailor_network.INTRA_FILE,
    sailor_network.ZONES_FILE,
    sailor_network.HOMOGENEOUS_FILE,
    sailor_network.MIXED_FILE,
)
# Sailor's planner adds 2.0e9 bytes at TP 1 and 3.0e9 above it. A host row has one figure: the
# larger, which is right for every TP group and on the safe side at TP 1.
FRAMEWORK_BYTES = 3_000_000_000
RESERVED_BYTES = 600 * MIB  # of NVML's total, no process gets it (DESIGN section 5)


def read(path: Path, options: ImportOptions) -> list[ImportedRun]:
    """Profile runs of a folder with Sailor's data: one per copy and model, one of links and hosts.

    Raises SpecError for a folder without the sizes file, a copy or model that is asked for and
    not there, or a file that is no JSON.
    """
    names = _wanted_models(options.models)
    files = _Files(path)
    if not files.has(SIZES_FILE):
        raise SpecError(
            f"{path}: no {SIZES_FILE}, expected a folder with Sailor's layout; see "
            "examples/sailor/README.md"
        )
    gpus = GPU_NAMES | dict(options.gpus)
    for gpu in options.gpus.values():
        if gpu_type(gpu).is_cpu:
            raise SpecError("a GPU name of the data stands for a GPU of the catalogue, not for cpu")
    copies = {
        "simulator": files.has(SIMULATOR_FILE),
        "planner": bool(files.listed(f"{PLANNER_FOLDER}/*/*/profile.json")),
    }
    for copy in options.copies:
        if copy not in copies:
            raise SpecError(
                f"no copy {copy!r} of Sailor's profiles, expected {' or '.join(COPIES)}"
            )
        if not copies[copy]:
            raise SpecError(f"{path}: no {copy} copy of the profiles there")
    runs: list[ImportedRun] = []
    for copy in COPIES:
        if copies[copy] and (not options.copies or copy in options.copies):
            runs.extend(_copy_runs(files, copy, names, gpus, options))
    if not runs:
        raise SpecError(f"{path}: no profiles of {', '.join(names)} there")
    if any(files.has(name) for name in NETWORK_FILES):
        runs.append(_network_run(files, gpus, options))
    return runs


@cache
def sailor_models() -> dict[str, Model]:
    """Catalogue models of the data set, by the name they have in it."""
    models = (load_model(name) for name in catalogue_models() if name.startswith("sailor-"))
    return {str(model.config["sailor_name"]): model for model in models}


def _wanted_models(asked: tuple[str, ...]) -> list[str]:
    known = sailor_models()
    by_catalogue_name = {model.name: name for name, model in known.items()}
    wanted: list[str] = []
    for name in asked:
        found = by_catalogue_name.get(name, name)
        if found not in known:
            raise SpecError(
                f"no Sailor model {name!r}, expected one of: {', '.join(by_catalogue_name)}"
            )
        wanted.append(found)
    return wanted or list(known)


@dataclass(frozen=True)
class Release:
    """The published state whose bytes are known: where it is from, and what is wrong with it."""

    repository: str
    commit: str
    licence: str
    sha256: Mapping[str, str]
    known_problems: Mapping[str, tuple[str, ...]]


@cache
def release() -> Release:
    """The upstream commit whose files this importer knows byte for byte."""
    text = resources.files("profiler.importers").joinpath("sailor_release.json").read_text()
    document = json.loads(text)
    return Release(
        document["repository"],
        document["commit"],
        document["licence"],
        document["sha256"],
        {key: tuple(lines) for key, lines in document["known_problems"].items()},
    )


class _Files:
    """The files of a folder, each read once, with a digest of those that a run came from."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._content: dict[str, Any] = {}
        self._sha256: dict[str, str] = {}

    def has(self, name: str) -> bool:
        return (self.root / name).is_file()

    def listed(self, pattern: str) -> list[str]:
        return sorted(str(path.relative_to(self.root)) for path in self.root.glob(pattern))

    def read(self, name: str) -> Any:
        if name not in self._content:
            self._content[name] = read_yaml_or_json(self.root / name)
            data = (self.root / name).read_bytes()
            self._sha256[name] = hashlib.sha256(data).hexdigest()
        return self._content[name]

    def known(self, names: list[str]) -> bool:
        """Whether these files are byte for byte those of the known release."""
        return all(release().sha256.get(name) == self._sha256[name] for name in names)

    def digest(self, names: list[str]) -> str:
        lines = "\n".join(f"{name} {self._sha256[name]}" for name in sorted(names))
        return hashlib.sha256(lines.encode()).hexdigest()[:12]


def _new_run(title: str, files: _Files, names: list[str], options: ImportOptions) -> NewRun:
    """The run's origin: which copy, repository, commit where the bytes are known, and a digest."""
    if files.known(names):
        known = release()
        where = f"{known.repository}@{known.commit[:12]}"
        licence = known.licence
    else:
        where, licence = "files of unknown commit", ""
    origin = f"{title}: {where}, sha256 {files.digest(names)}"
    if options.origin:
        origin += f"; {options.origin}"
    return NewRun(Source.IMPORTED, origin, licence=options.licence or licence)


def _copy_runs(
    files: _Files, copy: str, names: list[str], gpus: Mapping[str, str], options: ImportOptions
) -> Iterator[ImportedRun]:
    tables: dict[str, dict[str, tuple[str, Any]]] = {}  # model -> gpu -> (file, times)
    if copy == "simulator":
        content = files.read(SIMULATOR_FILE)
        for name, by_gpu in _mapping(content, SIMULATOR_FILE).items():
            tables[name] = {
                gpu: (SIMULATOR_FILE, times)
                for gpu, times in _mapping(by_gpu, f"{SIMULATOR_FILE}: {name}").items()
            }
    else:
        for file in files.listed(f"{PLANNER_FOLDER}/*/*/profile.json"):
            _, name, gpu, _ = file.split("/")
            tables.setdefault(name, {})[gpu] = (file, None)
    for name in names:
        if name not in tables:
            continue
        read = {
            gpu: (file, files.read(file) if times is None else times)
            for gpu, (file, times) in tables[name].items()
        }
        sizes = _mapping(files.read(SIZES_FILE), SIZES_FILE).get(name, {})
        title = f"Sailor, {copy} copy, {name}"
        used = [SIZES_FILE, *dict.fromkeys(file for file, _ in read.values())]
        table = LayerTable(sailor_models()[name], sizes)
        for gpu, (file, times) in read.items():
            table.add_gpu(gpu, gpus.get(gpu), file, times)
        notes = list(table.notes)
        if files.known(used):
            notes += release().known_problems.get(f"{copy}/{name}", ())
        yield ImportedRun(
            title,
            _new_run(title, files, used, options),
            (table.model,),
            layers=tuple(table.rows),
            refused=tuple(table.refused),
            notes=tuple(notes),
        )


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SpecError.in_file(where, "the document", type(value).__name__, "a JSON object")
    return value


def _network_run(files: _Files, gpus: Mapping[str, str], options: ImportOptions) -> ImportedRun:
    names = [name for name in NETWORK_FILES if files.has(name)]
    network = sailor_network.read_network({name: files.read(name) for name in names}, gpus)
    title = "Sailor, links and hosts"
    notes = [
        f"hosts: framework memory is the constant of Sailor's planner above TP 1, "
        f"{FRAMEWORK_BYTES / 1e9:g}e9 bytes; usable memory is NVML's total less 600 MiB; host time "
        "is 0, for its hooks timed kernels only",
        *network.notes,
    ]
    if files.known(names):
        notes += release().known_problems.get("network", ())
    return ImportedRun(
        title,
        _new_run(title, files, names, options),
        links=network.links,
        hosts=tuple(_host(gpu) for gpu in network.gpus),
        refused=network.refused,
        notes=tuple(notes),
    )


def _host(gpu: str) -> HostProfile:
    memory_mib = gpu_type(gpu).memory_mib
    assert memory_mib is not None  # only `cpu` has none, and no file names it
    return HostProfile(gpu, 0.0, FRAMEWORK_BYTES, memory_mib * MIB - RESERVED_BYTES)
