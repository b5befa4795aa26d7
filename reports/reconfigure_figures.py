"""Figures of live reconfigurations: phases over the paper's, and every repeat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reports import words
from reports.events import (
    PAPER_PAUSE_S,
    PAPER_S,
    EventSummary,
    event_labels,
    phase_order,
)
from reports.figures import Cell, Figure, Table, category_colour, plot_text

if TYPE_CHECKING:
    from db.records import StoredReconfiguration

KINDS_DRAWN = 24  # more bars make a figure that nobody scrolls through; the data have all
PAPER, REST = "the paper", "not named"


def phases_figure(summaries: Sequence[EventSummary]) -> Figure:
    """Median of each phase of each kind of event, one bar an event; the paper's below it.

    The paper's bar has an axis of its own: another model on other hardware, tens of times longer.
    """
    drawn = list(summaries[-KINDS_DRAWN:])
    labels = _labels(drawn)
    names = sorted({*PAPER_S, *(name for s in drawn for name in s.phases)}, key=phase_order)
    longest = max((s.total.median_ms for s in drawn if s.total), default=0.0)
    divisor, unit = words.time_axis(longest)
    traces: list[dict[str, Any]] = []
    for i, name in enumerate(names):
        bar = {
            "type": "bar",
            "orientation": "h",
            "name": plot_text(name),
            "legendgroup": str(i),
            "textposition": "none",
            "marker": {
                "color": category_colour(i),
                "line": {"color": "var(--panel)", "width": 1},
            },
            "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
        }
        traces.append(
            bar
            | {
                "y": labels,
                "x": [s.phases[name].median_ms / divisor if name in s.phases else 0 for s in drawn],
                "text": [_said(s, name) for s in drawn],
            }
        )
        if name in PAPER_S:
            traces.append(bar | _paper_bar(PAPER_S[name]) | {"showlegend": False})
    named = sum(_middle(seconds) for seconds in PAPER_S.values())
    traces.append(
        {
            "type": "bar",
            "orientation": "h",
            "name": f"{REST} ({PAPER})",
            "textposition": "none",
            "marker": {"color": "var(--grid)", "line": {"color": "var(--axis)", "width": 1}},
            "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
            **_paper_bar(PAPER_PAUSE_S),
            "x": [_middle(PAPER_PAUSE_S) - named],
        }
    )
    height = 260 + 44 * max(1, len(drawn))
    below = 130 / height  # the paper's bar with its axis, as a share of the figure
    return Figure(
        "phases",
        "What an event is made of",
        "Median of each phase over the repeats that went well; below, on an axis of its own, what "
        f"the paper reports for its testbed ({words.seconds_range(PAPER_PAUSE_S)} in all, of which "
        "it names these parts; the middle of each range is drawn)."
        + (f" The newest {KINDS_DRAWN} kinds." if len(drawn) < len(summaries) else ""),
        Table(
            *(("event", "host", "phase", "repeats", "median_ms", "lowest_ms", "highest_ms"),),
            (*_rows(summaries), *_paper_rows()),
        ),
        traces=traces,
        layout={
            "barmode": "stack",
            "bargap": 0.35,
            "grid": {"rows": 2, "columns": 1},
            "xaxis": {"title": {"text": unit}, "rangemode": "tozero", "anchor": "y"},
            "yaxis": {
                "type": "category",
                "ticks": "",
                "autorange": "reversed",
                "domain": [below + 90 / height, 1],
                "anchor": "x",
            },
            "xaxis2": {
                "title": {"text": "s, in the paper"},
                "rangemode": "tozero",
                "anchor": "y2",
            },
            "yaxis2": {"type": "category", "ticks": "", "domain": [0, below], "anchor": "x2"},
        },
        wide=True,
        height=height,
    )


def _said(summary: EventSummary, name: str) -> str:
    if name not in summary.phases:
        return ""
    spread = summary.phases[name]
    if spread.mad_ms is None:
        return f"{words.ms(spread.median_ms)}, once"
    return (
        f"{words.ms(spread.median_ms)} ± {words.ms(spread.mad_ms)}, "
        f"{words.ms(spread.lowest_ms)} to {words.ms(spread.highest_ms)} in "
        f"{words.plural(summary.repeats, 'repeat')}"
    )


def _middle(seconds: tuple[float, float]) -> float:
    return sum(seconds) / 2


def _paper_bar(seconds: tuple[float, float]) -> dict[str, Any]:
    return {
        "y": [PAPER],
        "x": [_middle(seconds)],
        "text": [f"{words.seconds_range(seconds)} in the paper"],
        "xaxis": "x2",
        "yaxis": "y2",
    }


def _rows(summaries: Sequence[EventSummary]) -> list[tuple[Cell, ...]]:
    return [
        (s.event, s.host, name, s.repeats, found.median_ms, found.lowest_ms, found.highest_ms)
        for s in summaries
        for name, found in [*s.phases.items(), *([("whole pause", s.total)] if s.total else [])]
    ]


def _paper_rows() -> list[tuple[Cell, ...]]:
    paper = {**PAPER_S, "whole pause": PAPER_PAUSE_S}
    return [
        (PAPER, "its testbed", name, None, None, 1000 * low, 1000 * high)
        for name, (low, high) in paper.items()
    ]


def _labels(summaries: Sequence[EventSummary]) -> list[str]:
    """Of two events with the same first letters the second has a number: they are two bars."""
    found: list[str] = []
    for label in event_labels(summaries):
        short = plot_text(label, 44)
        while short in found:
            short += "'"
        found.append(short)
    return found


def repeats_figure(
    rows: Sequence[StoredReconfiguration], summaries: Sequence[EventSummary]
) -> Figure:
    """The whole pause of every repeat, so that the spread is seen."""
    drawn = list(summaries[-KINDS_DRAWN:])
    longest = max((s.reconfiguration.total_ms for s in rows), default=0.0)
    divisor, unit = words.time_axis(longest)
    traces = []
    for i, (summary, label) in enumerate(zip(drawn, _labels(drawn), strict=True)):
        mine = [
            s.reconfiguration
            for s in rows
            if (s.reconfiguration.event, s.reconfiguration.host) == (summary.event, summary.host)
        ]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": label,
                "x": [one.repeat for one in mine],
                "y": [one.total_ms / divisor for one in mine],
                "text": [words.ms(one.total_ms) for one in mine],
                "marker": {
                    "color": category_colour(i),
                    "size": 10 if len(rows) <= 500 else 5,
                    "symbol": ["circle" if one.status == "ok" else "x" for one in mine],
                },
                "hovertemplate": "repeat %{x}: %{text}<extra>%{fullData.name}</extra>",
            }
        )
    most = max((s.reconfiguration.repeat for s in rows), default=0)
    return Figure(
        "repeats",
        "Every repeat",
        "All phases together; a cross marks an event that did not go well.",
        Table(
            ("event", "host", "repeat", "total_ms", "status"),
            tuple(
                (r.event, r.host, r.repeat, r.total_ms, r.status)
                for r in (s.reconfiguration for s in rows)
            ),
        ),
        traces=traces,
        layout={
            "xaxis": {
                "title": {"text": "repeat"},
                "range": [-0.4, most + 0.4],
                "zeroline": False,
                **({"dtick": 1} if most <= 20 else {}),
            },
            "yaxis": {"title": {"text": f"pause, {unit}"}, "rangemode": "tozero"},
        },
        wide=True,
        height=360,
    )
