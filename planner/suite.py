"""Suites: many questions in one file, asked of the same planners and printed as tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from specs.cluster import Cluster, InterNodeFile, NodeFile, cluster_from_document
from specs.errors import PlanError, SpecError
from specs.files import Document, read_yaml_or_json, validate
from specs.model import Model, load_model
from specs.workload import DType, Optimizer, Recompute, Workload


class WorkloadFile(Document):
    """What differs from the model's default workload."""

    global_batch: int | None = Field(None, ge=1)
    seq_len: int | None = Field(None, ge=1)
    dtype: DType | None = None
    optimizer: Optimizer | None = None
    recompute: Recompute | None = None


class GrowthFile(Document):
    """A cluster that nodes join one after the other; each join is a question of its own."""

    name: str = Field(min_length=1, max_length=200)
    joins: list[NodeFile] = Field(min_length=1)


class TableFile(Document):
    """One table: every model on every cluster."""

    table: str = Field(pattern=r"^[a-z0-9-]+$", description="its name, for --tables")
    title: str = Field(min_length=1, max_length=200)
    chosen: str = Field("", description="what was open, and what was taken")
    models: list[str] = Field(min_length=1)
    workload: WorkloadFile | None = None
    clusters: list[dict[str, Any] | str] | None = Field(
        None, description="clusters as in their own files, shipped names, or paths from here"
    )
    grows: GrowthFile | None = None
    planners: list[str] | None = Field(None, min_length=1)
    untiled: list[str] = Field(
        default_factory=list, description="planners that also plan without expert tiling"
    )
    retile: bool = Field(False, description="tile the experts of other planners' plans as well")
    inter_node: InterNodeFile | None = None

    @model_validator(mode="after")
    def _clusters_or_growth(self) -> TableFile:
        if bool(self.clusters) == (self.grows is not None):
            raise ValueError("either clusters, at least one, or grows")
        return self


class SuiteFile(Document):
    """A suite as people write it."""

    name: str = Field(min_length=1, max_length=100)
    about: str = ""
    planners: list[str] | None = Field(None, min_length=1, description="default: all")
    budget_s: float | None = Field(None, gt=0)
    inter_node: InterNodeFile | None = Field(None, description="of clusters that say nothing else")
    tables: list[TableFile] = Field(min_length=1)


@dataclass(frozen=True)
class Cell:
    """One question of a suite. table: the name of the table it stands in."""

    table: str
    model: Model
    workload: Workload
    cluster: Cluster
    planners: tuple[str, ...]
    untiled: tuple[str, ...]
    retile: bool

    @property
    def title(self) -> str:
        """Model and cluster, with what is not the model's default workload."""
        more = ", recomputed" if self.workload.recompute is Recompute.FULL else ""
        return f"{self.model.name} on {self.cluster.name}{more}"


@dataclass(frozen=True)
class SuiteTable:
    """A table of a suite. grows: whether its cells are one cluster after each join."""

    name: str
    title: str
    chosen: str
    grows: bool
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Suite:
    """Tables in file order. budget_s: of each planner, None where the file says nothing."""

    name: str
    about: str
    budget_s: float | None
    tables: tuple[SuiteTable, ...]

    @property
    def cells(self) -> list[Cell]:
        """All questions."""
        return [cell for table in self.tables for cell in table.cells]

    def only(self, names: list[str]) -> Suite:
        """The suite with these tables alone. Raises SpecError for one that it lacks."""
        known = [table.name for table in self.tables]
        for name in names:
            if name not in known:
                raise SpecError(
                    f"suite {self.name} has no table {name!r}, expected some of: {', '.join(known)}"
                )
        return replace(self, tables=tuple(t for t in self.tables if t.name in names))


def shipped_suites() -> list[str]:
    """Names of the suites that need no file."""
    files = resources.files("planner").joinpath("suites").iterdir()
    return sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml"))


def load_suite(reference: str) -> Suite:
    """The suite of a file, or of the name of a shipped one.

    Raises SpecError with file, field, value and expectation.
    """
    import yaml

    if reference in shipped_suites():
        file = resources.files("planner").joinpath("suites", f"{reference}.yaml")
        return suite_of(yaml.safe_load(file.read_text()), f"{reference}.yaml")
    if not Path(reference).exists():
        raise SpecError(
            f"no suite {reference!r}: expected a YAML file, or one of: "
            f"{', '.join(shipped_suites())}"
        )
    return suite_of(read_yaml_or_json(reference), reference, Path(reference).parent)


def suite_of(content: Any, where: str, folder: Path | None = None) -> Suite:
    """The suite of a parsed file; folder: what its paths are relative to, None = no paths."""
    document = validate(SuiteFile, content, where)
    names = [entry.table for entry in document.tables]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise SpecError.in_file(where, f"tables[{i}].table", name, "a name of its own")
    default = _planners(document.planners, where, "planners")
    tables = []
    for i, entry in enumerate(document.tables):
        field = f"tables[{i}]"
        planners = _planners(entry.planners, where, f"{field}.planners") or default
        untiled = _planners(entry.untiled, where, f"{field}.untiled")
        clusters = _clusters(document, entry, where, field, folder)
        cells = [
            Cell(entry.table, model, workload, cluster, planners, untiled, entry.retile)
            for model, workload in _models(entry, where, field, folder)
            for cluster in clusters
        ]
        tables.append(
            SuiteTable(
                entry.table, entry.title, entry.chosen, entry.grows is not None, tuple(cells)
            )
        )
    return Suite(document.name, document.about, document.budget_s, tuple(tables))


def _planners(names: list[str] | None, where: str, field: str) -> tuple[str, ...]:
    """Planner names, each once; () for None. Raises SpecError for one that is not there."""
    from planner.baselines import planner_named

    for j, name in enumerate(names or ()):
        try:
            planner_named(name)
        except PlanError as error:
            expected = str(error).partition("expected ")[2]
            raise SpecError.in_file(where, f"{field}[{j}]", name, expected) from None
    return tuple(dict.fromkeys(names or ()))


def _models(
    entry: TableFile, where: str, field: str, folder: Path | None
) -> list[tuple[Model, Workload]]:
    said = entry.workload.model_dump(exclude_none=True) if entry.workload else {}
    found = []
    for j, name in enumerate(entry.models):
        try:
            model = load_model(_local(name, folder))
            found.append((model, replace(model.default_workload, **said)))
        except SpecError as error:
            raise SpecError(f"{where}: {field}.models[{j}]: {error}") from None
    return found


def _clusters(
    document: SuiteFile, entry: TableFile, where: str, field: str, folder: Path | None
) -> list[Cluster]:
    link = entry.inter_node or document.inter_node
    common = {"inter_node": link.model_dump(exclude_none=True)} if link else {}
    if entry.grows is not None:
        joins = [join.model_dump(exclude_none=True) for join in entry.grows.joins]
        found = []
        for count in range(1, len(joins) + 1):
            content = {**common, "name": entry.grows.name, "nodes": joins[:count]}
            cluster = cluster_from_document(content, f"{where}: {field}.grows")
            found.append(replace(cluster, name=f"{entry.grows.name}-{cluster.gpus}"))
        return found
    return [
        _cluster(given, common, f"{where}: {field}.clusters[{j}]", folder)
        for j, given in enumerate(entry.clusters or ())
    ]


def _cluster(
    given: dict[str, Any] | str, common: dict[str, Any], at: str, folder: Path | None
) -> Cluster:
    from planner.shipped import cluster_of

    if isinstance(given, dict):
        return cluster_from_document({**common, **given}, at)
    try:
        return cluster_of(_local(given, folder))
    except SpecError as error:
        raise SpecError(f"{at}: {error}") from None


def _local(reference: str, folder: Path | None) -> str:
    """A path beside the suite's file where there is one, else the reference as it is."""
    path = folder / reference if folder is not None else None
    return str(path) if path is not None and path.exists() else reference
