"""The 1F1B timeline of a plan, from the planner's simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.simulate import Action, Event
from reports import words
from reports.figures import Figure, Table, plot_text

if TYPE_CHECKING:
    from planner.trace import Track

PASSES_DRAWN = 6000  # more bars than that only slow the page down: the middle is left out
COLOURS = {
    Action.FORWARD.value: "var(--c1)",
    Action.BACKWARD.value: "var(--c2)",
    "gradient sync": "var(--c4)",
    "update": "var(--c5)",
    "left out": "var(--grid)",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A piece of a row of the timeline, in ms from the start of the iteration."""

    row: str
    kind: str
    label: str
    start_ms: float
    end_ms: float


def bars_of(track: Track, prefix: str, room: int) -> tuple[list[Bar], int]:
    """The bars of one track, and how many passes of the middle were left out for want of room.

    Each stage keeps its first and its last passes; a bar `left out` stands for those between.
    """
    rows = [f"{prefix}stage {s}" for s in range(len(track.stages))]
    passes: list[list[Event]] = [[] for _ in rows]
    for event in track.timeline.events:
        passes[event.stage].append(event)
    half = max(4, room // (2 * len(rows)))
    bars: list[Bar] = []
    skipped = 0
    for s, events in enumerate(passes):
        middle = len(events) - 2 * half
        head, tail = (events, []) if middle <= 0 else (events[:half], events[-half:])
        bars += [_bar(rows[s], event) for event in head]
        if tail:
            skipped += middle
            bars.append(
                Bar(
                    rows[s],
                    "left out",
                    f"{middle} passes",
                    head[-1].end_ms,
                    tail[0].start_ms,
                )
            )
            bars += [_bar(rows[s], event) for event in tail]
        if s < len(track.once):
            bars += [
                Bar(rows[s], once.name, once.name, once.start_ms, once.start_ms + once.duration_ms)
                for once in track.once[s]
                if once.duration_ms > 0
            ]
    return bars, skipped


def _bar(row: str, event: Event) -> Bar:
    letter = "F" if event.action is Action.FORWARD else "B"
    label = f"{letter}{event.micro_batch}"
    return Bar(row, event.action.value, label, event.start_ms, event.end_ms)


def timeline_figure(tracks: Sequence[Track]) -> Figure:
    """One replica of every template over one iteration, stage by stage."""
    bars: list[Bar] = []
    skipped = 0
    for k, track in enumerate(tracks):
        prefix = f"template {k}, " if len(tracks) > 1 else ""
        found, left = bars_of(track, prefix, PASSES_DRAWN // len(tracks))
        bars += found
        skipped += left
    divisor, unit = (
        (1000.0, "s") if max((b.end_ms for b in bars), default=0) >= 2000 else (1.0, "ms")
    )
    caption = (
        "Each bar is one micro-batch on one stage, forward or backward with what it sends; gaps "
        "are bubbles. Gradient synchronisation and the update follow the pipeline."
    )
    if skipped:
        caption += f" {words.plural(skipped, 'pass', 'passes')} of the steady middle are left out."
    return Figure(
        "timeline",
        "One iteration, simulated",
        caption,
        Table(
            ("row", "kind", "label", "start_ms", "end_ms"),
            tuple((b.row, b.kind, b.label, b.start_ms, b.end_ms) for b in bars),
        ),
        traces=[_trace(kind, bars, divisor, unit) for kind in _kinds(bars)],
        layout={
            "barmode": "overlay",
            "bargap": 0.28,
            "uniformtext": {"mode": "hide", "minsize": 9},
            "xaxis": {"title": {"text": f"time, {unit}"}, "rangemode": "tozero"},
            "yaxis": {
                "type": "category",
                "categoryorder": "array",
                "categoryarray": list(dict.fromkeys(b.row for b in bars))[::-1],
                "ticks": "",
                "showgrid": False,
            },
        },
        wide=True,
        height=120 + 44 * len({b.row for b in bars}),
    )


def _kinds(bars: Sequence[Bar]) -> list[str]:
    present = {bar.kind for bar in bars}
    return [kind for kind in COLOURS if kind in present]


def _trace(kind: str, bars: Sequence[Bar], divisor: float, unit: str) -> dict[str, Any]:
    mine = [bar for bar in bars if bar.kind == kind]
    return {
        "type": "bar",
        "orientation": "h",
        "name": kind,
        "y": [bar.row for bar in mine],
        "base": [bar.start_ms / divisor for bar in mine],
        "x": [(bar.end_ms - bar.start_ms) / divisor for bar in mine],
        "text": [plot_text(bar.label) for bar in mine],
        "textposition": "inside" if len(bars) <= 1500 else "none",
        "insidetextanchor": "middle",
        "textangle": 0,
        "insidetextfont": {"color": "var(--panel)", "size": 11},
        "constraintext": "inside",
        "marker": {"color": COLOURS[kind], "line": {"color": "var(--panel)", "width": 0.6}},
        "hovertemplate": f"%{{text}}, %{{y}}: %{{base:.4~g}} {unit}, takes %{{x:.4~g}} {unit}"
        f"<extra>{kind}</extra>",
    }
