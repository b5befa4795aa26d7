"""What a run did, as Chrome trace JSON, which Perfetto and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runtime.records import Iteration
from specs.layout import ranks_of
from specs.plan import Plan

_COLOURS = {
    "forward": "good",
    "backward": "thread_state_running",
    "receive": "grey",
    "send": "thread_state_iowait",
    "sync": "bad",
    "update": "terrible",
}


def chrome_trace(plan: Plan, iterations: Sequence[Iteration]) -> dict[str, Any]:
    """A trace document: a process per replica, a row per rank, a slice per action.

    Times in microseconds since the first rank started (Trace Event Format: `ph` "X" is a slice with
    start `ts` and length `dur`, `ph` "M" names processes and rows). Ranks of other hosts are
    as well aligned as the hosts' clocks.
    """
    if not iterations:
        return {"traceEvents": []}
    origin_s = min(step.started_s for step in iterations[0].steps)
    events: list[dict[str, Any]] = []
    process_of: dict[tuple[int, int], int] = {}
    for place in ranks_of(plan):
        replica = (place.template, place.replica)
        if replica not in process_of:
            process_of[replica] = len(process_of) + 1
            name = f"template {place.template} replica {place.replica}"
            events.append(_named("process_name", process_of[replica], 0, name))
        row = f"stage {place.stage} tp {place.tp_rank} ({place.node}:{place.gpu})"
        events.append(_named("thread_name", process_of[replica], place.rank, row))
    places = ranks_of(plan)
    for iteration in iterations:
        for step in iteration.steps:
            place = places[step.rank]
            begun_us = (step.started_s - origin_s) * 1e6
            for kind, micro_batch, start_ms, end_ms in step.actions:
                which = f" {micro_batch}" if micro_batch >= 0 else ""
                events.append(
                    {
                        "ph": "X",
                        "name": f"{kind}{which}",
                        "cat": kind,
                        "cname": _COLOURS[kind],
                        "pid": process_of[place.template, place.replica],
                        "tid": step.rank,
                        "ts": begun_us + start_ms * 1e3,
                        "dur": (end_ms - start_ms) * 1e3,
                        "args": {"iteration": iteration.number, "warm_up": iteration.warm_up},
                    }
                )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}
