"""Timelines as Chrome trace JSON, which Perfetto and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planner.simulate import Action, Timeline

# Names of the trace viewer's palette: forward and backward are told apart without a legend.
_COLOURS = {Action.FORWARD: "good", Action.BACKWARD: "thread_state_running"}


@dataclass(frozen=True, slots=True)
class Once:
    """What a stage does once at the end of the iteration, in ms; starts where the pipe ended."""

    name: str
    start_ms: float
    duration_ms: float


@dataclass(frozen=True)
class Track:
    """One pipeline in a trace: a replica of a template.

    name: heading of its group of rows. stages: label of each row, in pipeline order.
    once: per stage, what follows the pipeline (gradient synchronisation, optimizer).
    """

    name: str
    stages: tuple[str, ...]
    timeline: Timeline
    once: tuple[tuple[Once, ...], ...] = ()


def chrome_trace(tracks: Sequence[Track], other: dict[str, Any] | None = None) -> dict[str, Any]:
    """A trace document: one process per track, one row per stage, one slice per pass.

    Times are in microseconds, as the format has them (Trace Event Format: `ph` "X" is a slice
    with start `ts` and length `dur`, `ph` "M" names processes and rows and sets their order).
    other: anything to keep beside the events, shown by viewers as metadata of the trace.
    """
    events: list[dict[str, Any]] = []
    for pid, track in enumerate(tracks, start=1):
        events.append(_meta(pid, 0, "process_name", name=track.name))
        events.append(_meta(pid, 0, "process_sort_index", sort_index=pid))
        for s, label in enumerate(track.stages):
            events.append(_meta(pid, s + 1, "thread_name", name=label))
            events.append(_meta(pid, s + 1, "thread_sort_index", sort_index=s))
        for event in track.timeline.events:
            letter = "F" if event.action is Action.FORWARD else "B"
            events.append(
                {
                    "name": f"{letter}{event.micro_batch}",
                    "cat": event.action.value,
                    "ph": "X",
                    "ts": event.start_ms * 1000,
                    "dur": (event.end_ms - event.start_ms) * 1000,
                    "pid": pid,
                    "tid": event.stage + 1,
                    "cname": _COLOURS[event.action],
                    "args": {"micro_batch": event.micro_batch, "stage": event.stage},
                }
            )
        for s, row in enumerate(track.once):
            events.extend(
                {
                    "name": part.name,
                    "cat": "once",
                    "ph": "X",
                    "ts": part.start_ms * 1000,
                    "dur": part.duration_ms * 1000,
                    "pid": pid,
                    "tid": s + 1,
                    "args": {"stage": s},
                }
                for part in row
            )
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": other or {}}


def _meta(pid: int, tid: int, kind: str, **args: Any) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": args}
