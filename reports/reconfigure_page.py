"""The page of live reconfigurations: how long each phase of each event held training up."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reports.figures import Cell, Figure, Table, plot_text
from reports.page import Page, Provenance
from reports.runs import median_absolute_deviation

if TYPE_CHECKING:
    from db.records import StoredReconfiguration

# The order in which phases follow one another; others come after them by name.
PHASES = ("plan", "release", "rebuild", "transfer", "build")

# What the paper reports for its testbed, in seconds (lowest and highest where it gives a range).
# Source: "Arachne: Learning to Plan Distributed Training on Dynamic Heterogeneous Clusters".
PAPER_S: dict[str, tuple[float, float]] = {
    "plan": (2.16, 2.16),
    "release": (0.4, 0.8),
    "rebuild": (2.6, 3.1),
    "transfer": (4.0, 4.0),
    "build": (2.1, 2.7),
    "whole pause": (19.2, 21.5),
}


@dataclass(frozen=True)
class EventSummary:
    """One kind of event over its repeats that went well: medians in ms, spread of the total.

    host: where it was done; events of different hosts are never averaged.
    """

    event: str
    host: str
    repeats: int
    failed: int
    phases_ms: dict[str, float]
    total_ms: float | None
    total_mad_ms: float | None
    most_bytes: int | None


def phase_order(name: str) -> tuple[int, str]:
    """Sort key of a phase: the known ones in order of time, then others by name."""
    return (PHASES.index(name) if name in PHASES else len(PHASES), name)


def summarise_events(rows: Sequence[StoredReconfiguration]) -> list[EventSummary]:
    """The events of the store by kind and host, in the order they came."""
    groups: dict[tuple[str, str], list[StoredReconfiguration]] = defaultdict(list)
    for stored in rows:
        groups[(stored.reconfiguration.event, stored.reconfiguration.host)].append(stored)
    found = []
    for (event, host), group in groups.items():
        good = [s.reconfiguration for s in group if s.reconfiguration.status == "ok"]
        names = sorted({name for one in good for name in one.phases_ms}, key=phase_order)
        totals = [one.total_ms for one in good]
        received = [max(one.bytes_per_rank) for one in good if one.bytes_per_rank]
        found.append(
            EventSummary(
                event=event,
                host=host,
                repeats=len(good),
                failed=len(group) - len(good),
                phases_ms={
                    name: statistics.median(one.phases_ms.get(name, 0.0) for one in good)
                    for name in names
                },
                total_ms=statistics.median(totals) if totals else None,
                total_mad_ms=median_absolute_deviation(totals) if len(totals) > 1 else None,
                most_bytes=max(received, default=None),
            )
        )
    return found


def reconfigure_page(
    rows: Sequence[StoredReconfiguration],
    provenance: Provenance,
    links: Sequence[dict[str, str]] = (),
) -> Page:
    """The page of these events."""
    summaries = summarise_events(rows)
    figures: tuple[Figure, ...] = ()
    if rows:
        figures = (phases_figure(summaries), repeats_figure(rows))
    return Page(
        name="reconfigure",
        title="Reconfiguration",
        template="reconfigure.html.j2",
        provenance=provenance,
        context={
            "rows": rows,
            "summaries": summaries,
            "phases": sorted({p for s in summaries for p in s.phases_ms}, key=phase_order),
            "paper": PAPER_S,
            "links": links,
        },
        figures=figures,
    )


def _label(event: str, host: str) -> str:
    return plot_text(f"{event} ({host})" if host else event, 40)


def phases_figure(summaries: Sequence[EventSummary]) -> Figure:
    """Median of each phase of each kind of event, one bar an event."""
    names = sorted({name for s in summaries for name in s.phases_ms}, key=phase_order)
    labels = [_label(s.event, s.host) for s in summaries]
    traces: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": plot_text(name),
            "y": labels,
            "x": [s.phases_ms.get(name, 0.0) for s in summaries],
            "marker": {
                "color": f"var(--c{i % 8 + 1})",
                "line": {"color": "var(--panel)", "width": 1},
            },
            "hovertemplate": "%{x:.4~g} ms<extra>%{fullData.name}</extra>",
        }
        for i, name in enumerate(names)
    ]
    rows: list[tuple[Cell, ...]] = [
        (s.event, s.host, name, value) for s in summaries for name, value in s.phases_ms.items()
    ]
    return Figure(
        "phases",
        "What an event is made of",
        "Median of each phase over the repeats that went well.",
        Table(("event", "host", "phase", "median_ms"), tuple(rows)),
        traces=traces,
        layout={
            "barmode": "stack",
            "bargap": 0.35,
            "xaxis": {"title": {"text": "ms"}, "rangemode": "tozero"},
            "yaxis": {"type": "category", "ticks": "", "autorange": "reversed"},
        },
        wide=True,
        height=150 + 48 * max(1, len(summaries)),
    )


def repeats_figure(rows: Sequence[StoredReconfiguration]) -> Figure:
    """The whole pause of every repeat, so that the spread is seen."""
    kinds = list(dict.fromkeys((s.reconfiguration.event, s.reconfiguration.host) for s in rows))
    traces = []
    for i, (event, host) in enumerate(kinds):
        mine = [
            s.reconfiguration
            for s in rows
            if (s.reconfiguration.event, s.reconfiguration.host) == (event, host)
        ]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": _label(event, host),
                "x": [one.repeat for one in mine],
                "y": [one.total_ms for one in mine],
                "marker": {
                    "color": f"var(--c{i % 8 + 1})",
                    "size": 10,
                    "symbol": ["circle" if one.status == "ok" else "x" for one in mine],
                },
                "hovertemplate": "repeat %{x}: %{y:.4~g} ms<extra>%{fullData.name}</extra>",
            }
        )
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
            "xaxis": {"title": {"text": "repeat"}, "dtick": 1},
            "yaxis": {"title": {"text": "ms"}, "rangemode": "tozero"},
        },
        wide=True,
        height=360,
    )
