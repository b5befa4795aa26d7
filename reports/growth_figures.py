"""Figures of clusters that grow: throughput at every join, search time by the number of types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reports.comparisons import AnswerRow, Comparisons, Growth
from reports.figures import Cell, Figure, Table, category_colour, plot_text


def growth_figures(found: Comparisons) -> list[Figure]:
    """One figure for clusters that nodes join, one for clusters of more and more types.

    Of several suites of either kind the newest is drawn, all are in the data.
    """
    joins = [growth for growth in found.growths if growth.types is None]
    types = [growth for growth in found.growths if growth.types is not None]
    figures = []
    if joins:
        figures.append(
            Figure(
                "growth",
                "The cluster that grows",
                "samples/s after each join; every planner plans from scratch, so a fall is a new "
                f"plan slower than the one it replaces ({joins[-1].name}).",
                _table(found, joins),
                traces=_lines(found, joins[-1], joins[-1].gpus, "samples_per_s"),
                layout=_layout("GPUs after the join", "samples/s", "linear"),
                height=420,
            )
        )
    if types:
        figures.append(
            Figure(
                "types",
                "Search time by the number of GPU types",
                f"Wall clock of each search on a logarithmic axis ({types[-1].name}).",
                _table(found, types),
                traces=_lines(found, types[-1], types[-1].types or (), "search_s"),
                layout=_layout("GPU types", "search, s (log)", "log"),
                height=420,
            )
        )
    return figures


def _answers(found: Comparisons, comparison: int) -> dict[str, AnswerRow]:
    return {a.planner: a for a in found.answers if a.comparison_id == comparison}


def _planners(found: Comparisons, growth: Growth) -> list[str]:
    here = {a.planner for a in found.answers if a.comparison_id in growth.comparisons}
    return [name for name in every_planner(found) if name in here]


def every_planner(found: Comparisons) -> list[str]:
    """All planners in the order of the page, by which they have their colours."""
    return list(dict.fromkeys(answer.planner for answer in found.answers))


def _lines(
    found: Comparisons, growth: Growth, x: Sequence[int], figure: str
) -> list[dict[str, Any]]:
    """A line per planner; a gap where it has no plan that fits."""
    steps = [_answers(found, comparison) for comparison in growth.comparisons]
    traces = []
    order = every_planner(found)
    for planner in _planners(found, growth):
        i = order.index(planner)
        y = [
            getattr(step[planner], figure) if planner in step and step[planner].fits else None
            for step in steps
        ]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": plot_text(planner),
                "x": list(x),
                "y": y,
                "line": {"color": category_colour(i), "dash": "solid" if i < 8 else "dot"},
            }
        )
    return traces


def _layout(x: str, y: str, scale: str) -> dict[str, Any]:
    axis: dict[str, Any] = {"title": {"text": y}, "type": scale}
    axis |= {"exponentformat": "none"} if scale == "log" else {"rangemode": "tozero"}
    return {"xaxis": {"title": {"text": x}}, "yaxis": axis}


def _table(found: Comparisons, growths: Sequence[Growth]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for growth in growths:
        types = growth.types or (None,) * len(growth.gpus)
        for comparison, gpus, count in zip(growth.comparisons, growth.gpus, types, strict=True):
            for planner, answer in _answers(found, comparison).items():
                speed = answer.samples_per_s if answer.fits else None
                rows.append((growth.name, gpus, count, planner, speed, answer.search_s))
    return Table(("question", "gpus", "types", "planner", "samples_per_s", "search_s"), tuple(rows))
