"""The 1F1B timeline of a plan: from the planner's simulator, and as a run recorded it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.simulate import Action, Event
from reports import words
from reports.figures import Figure, Table, plot_text

if TYPE_CHECKING:
    from planner.trace import Track
    from specs.measurement import RunTrace, StageTrack

PASSES_DRAWN = 6000  # more bars than that only slow the page down: the middle is left out
COLOURS = {
    Action.FORWARD.value: "var(--c1)",
    Action.BACKWARD.value: "var(--c2)",
    "send": "var(--c3)",
    "gradient sync": "var(--c4)",
    "update": "var(--c5)",
    "receive or wait": "var(--band)",
    "left out": "var(--grid)",
}
_PALE = ("receive or wait", "left out")
_MEASURED = {"receive": "receive or wait", "sync": "gradient sync"}  # where the words differ


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


def measured_bars(track: StageTrack, row: str, room: int) -> tuple[list[Bar], int]:
    """The bars of one stage as measured, and how many actions of the middle were left out."""
    bars = [
        Bar(
            row,
            _MEASURED.get(kind, kind),
            f"{kind[0].upper()}{micro_batch}" if micro_batch >= 0 else _MEASURED.get(kind, kind),
            start_ms,
            end_ms,
        )
        for kind, micro_batch, start_ms, end_ms in track.actions
        if end_ms > start_ms
    ]
    half = max(8, room // 2)
    middle = len(bars) - 2 * half
    if middle <= 0:
        return bars, 0
    head, tail = bars[:half], bars[-half:]
    gap = Bar(row, "left out", f"{middle} actions", head[-1].end_ms, tail[0].start_ms)
    return [*head, gap, *tail], middle


def end_of(tracks: Sequence[Track], trace: RunTrace | None) -> float:
    """When the later of both timelines ends, in ms: they are drawn to one scale."""
    ends = [event.end_ms for track in tracks for event in track.timeline.events]
    ends += [
        once.start_ms + once.duration_ms
        for track in tracks
        for stage in track.once
        for once in stage
    ]
    if trace is not None:
        ends += [end for track in trace.tracks for *_, end in track.actions]
    return max(ends, default=0.0)


def measured_figure(trace: RunTrace, until_ms: float) -> Figure:
    """One iteration as a run recorded it: the first replica of every template, stage by stage."""
    several = len({track.template for track in trace.tracks}) > 1
    bars: list[Bar] = []
    skipped = 0
    for track in trace.tracks:
        prefix = f"template {track.template}, " if several else ""
        found, left = measured_bars(
            track, f"{prefix}stage {track.stage}", PASSES_DRAWN // len(trace.tracks)
        )
        bars += found
        skipped += left
    caption = (
        f"Iteration {trace.iteration} of run {trace.run}, the one nearest its median: "
        f"{words.ms(trace.iteration_ms)}, one rank of each stage. Waiting for a neighbour counts "
        "as receiving, waiting for another replica as synchronisation."
    )
    if skipped:
        caption += f" {words.plural(skipped, 'action')} of the steady middle are left out."
    return _figure("measured", "One iteration, measured", caption, bars, until_ms)


def timeline_figure(tracks: Sequence[Track], until_ms: float | None = None) -> Figure:
    """One replica of every template over one iteration, stage by stage, to `until_ms`."""
    bars: list[Bar] = []
    skipped = 0
    for k, track in enumerate(tracks):
        prefix = f"template {k}, " if len(tracks) > 1 else ""
        found, left = bars_of(track, prefix, PASSES_DRAWN // len(tracks))
        bars += found
        skipped += left
    caption = (
        "Each bar is one micro-batch on one stage, forward or backward with what it sends; gaps "
        "are bubbles. Gradient synchronisation and the update follow the pipeline."
    )
    if skipped:
        caption += f" {words.plural(skipped, 'pass', 'passes')} of the steady middle are left out."
    end = until_ms or max((bar.end_ms for bar in bars), default=0.0)
    return _figure("timeline", "One iteration, simulated", caption, bars, end)


def _figure(name: str, title: str, caption: str, bars: Sequence[Bar], until_ms: float) -> Figure:
    divisor, unit = words.time_axis(until_ms)
    return Figure(
        name,
        title,
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
            "xaxis": {
                "title": {"text": f"time, {unit}"},
                "range": [0, 1.01 * until_ms / divisor],
            },
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
        "insidetextfont": {
            "color": "var(--quiet)" if kind in _PALE else "var(--panel)",
            "size": 11,
        },
        "constraintext": "inside",
        "marker": {"color": COLOURS[kind], "line": {"color": "var(--panel)", "width": 0.6}},
        "hovertemplate": f"%{{text}}, %{{y}}: %{{base:.4~g}} {unit}, takes %{{x:.4~g}} {unit}"
        f"<extra>{kind}</extra>",
    }
