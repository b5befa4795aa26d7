"""The paper's published figures, and what stands for each of them here: side by side, no target."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from pydantic import Field, model_validator

from specs.files import Document, validate


class FigureFile(Document):
    """One published figure: values, or a range. here: what of ours stands beside it."""

    name: str
    what: str
    values: list[float] = Field(default_factory=list)
    low: float | None = None
    high: float | None = None
    unit: str
    known: bool = Field(True, description="whether it is known what exactly was compared")
    tables: list[str] | None = Field(None, description="tables of the suite that it belongs to")
    here: str | None = None
    page: str = Field("compare", description="the report page on which it stands")

    @model_validator(mode="after")
    def _values_or_range(self) -> FigureFile:
        if bool(self.values) == (self.low is not None) or (self.low is None) != (self.high is None):
            raise ValueError("either values, or low and high")
        return self


class PublishedFile(Document):
    """All published figures and where they are from."""

    source: str
    note: str
    suite: str = Field(description="the suite whose answers stand beside them")
    figures: list[FigureFile]


@dataclass(frozen=True)
class Said:
    """What one planner said in one cell, as the figures need it.

    planner: the label of its row. iteration_ms: of a plan that fits, else None.
    """

    cell: str
    table: str
    planner: str
    iteration_ms: float | None
    search_s: float
    refused: int


@dataclass(frozen=True)
class Beside:
    """A published figure and ours, in words. here: "" where nothing of ours stands beside it."""

    name: str
    what: str
    paper: str
    here: str
    known: bool


@cache
def published() -> PublishedFile:
    """The figures of examples/paper.json."""
    text = resources.files("planner").joinpath("suites", "paper.json").read_text()
    return validate(PublishedFile, json.loads(text), "paper.json")


def beside(said: Sequence[Said], page: str = "compare") -> list[Beside]:
    """The published figures of a page, with ours from these answers."""
    rows = []
    for figure in published().figures:
        if figure.page != page:
            continue
        mine = [one for one in said if figure.tables is None or one.table in figure.tables]
        here = OURS[figure.here](mine) if figure.here and mine else ""
        rows.append(Beside(figure.name, figure.what, _paper(figure), here, figure.known))
    return rows


def _paper(figure: FigureFile) -> str:
    if figure.values:
        return f"{' / '.join(f'{value:,g}' for value in figure.values)} {figure.unit}"
    return f"{figure.low:,g} to {figure.high:,g} {figure.unit}"


def leads(said: Sequence[Said]) -> dict[str, list[float]]:
    """Per table, the lead of arachne over the best other planner in each cell, in percent.

    throughput of arachne / best throughput of the others - 1; negative where another is faster.
    Variants of arachne, re-tiled plans, `annealing` and `exhaustive` are no other planners.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for (_, table), rows in _by_cell(said).items():
        ours = rows.get("arachne")
        others = [ms for name, ms in rows.items() if _is_other(name)]
        if ours and others:
            found[table].append(100 * (min(others) / ours - 1))
    return dict(found)


def _is_other(label: str) -> bool:
    return " (" not in label and label not in ("arachne", "annealing", "exhaustive")


def _by_cell(said: Sequence[Said]) -> Mapping[tuple[str, str], dict[str, float]]:
    cells: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for one in said:
        if one.iteration_ms:
            cells[one.cell, one.table][one.planner] = one.iteration_ms
    return cells


def _leads_in_words(said: Sequence[Said]) -> str:
    parts = []
    for table, found in leads(said).items():
        spread = f"{min(found):+.1f} to {max(found):+.1f}"
        parts.append(f"{table or 'all'} {statistics.fmean(found):+.1f} % ({spread})")
    return "; ".join(parts)


def _search_in_words(said: Sequence[Said]) -> str:
    times = [one.search_s for one in said if one.planner == "arachne"]
    return f"{min(times):.2f} to {max(times):.2f} s" if times else ""


def _retiling_in_words(said: Sequence[Said]) -> str:
    gains = []
    for rows in _by_cell(said).values():
        for label, ms in rows.items():
            own = rows.get(label.removesuffix(" (retiled)"))
            if label.endswith(" (retiled)") and own:
                gains.append(100 * (own / ms - 1))
    return f"{min(gains):.1f} to {max(gains):.1f} % of {len(gains)} plans" if gains else ""


def _refused_in_words(said: Sequence[Said]) -> str:
    totals: dict[str, int] = defaultdict(int)
    for one in said:
        if " (" not in one.planner:
            totals[one.planner] += one.refused
    return ", ".join(f"{name} {total:,}" for name, total in totals.items())


def _flat_rl_in_words(said: Sequence[Said]) -> str:
    gaps = [
        100 * (1 - rows["arachne"] / rows["flat-rl"])
        for rows in _by_cell(said).values()
        if "arachne" in rows and "flat-rl" in rows
    ]
    return f"{min(gaps):.1f} to {max(gaps):.1f} % of {len(gaps)} cells" if gaps else ""


def _parameters_in_words(said: Sequence[Said]) -> str:
    from specs.model import load_model

    model = load_model("qwen3-64b")
    inner = sum(layer.parameters for layer in model.layers[1:-1])
    return f"{inner / 1e9:.1f} billion ({model.parameters / 1e9:.1f} with them)"


OURS: dict[str, Callable[[Sequence[Said]], str]] = {
    "leads": _leads_in_words,
    "search": _search_in_words,
    "retiling": _retiling_in_words,
    "refused": _refused_in_words,
    "flat-rl-behind": _flat_rl_in_words,
    "parameters": _parameters_in_words,
}


def to_json(rows: Sequence[Beside]) -> list[dict[str, Any]]:
    """The rows as plain values."""
    return [
        {"name": r.name, "what": r.what, "paper": r.paper, "here": r.here, "known": r.known}
        for r in rows
    ]
