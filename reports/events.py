"""Live reconfigurations by kind: the phases of each event over its repeats, and the paper's."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
}
PAPER_PAUSE_S = (19.2, 21.5)  # the whole, with parts that it does not name


@dataclass(frozen=True, slots=True)
class Spread:
    """Repeats of one time in ms. mad_ms: median absolute deviation, None of a single repeat."""

    median_ms: float
    lowest_ms: float
    highest_ms: float
    mad_ms: float | None

    @classmethod
    def of(cls, times_ms: Sequence[float]) -> Spread:
        """The spread of at least one time."""
        mad = median_absolute_deviation(times_ms) if len(times_ms) > 1 else None
        return cls(statistics.median(times_ms), min(times_ms), max(times_ms), mad)


@dataclass(frozen=True)
class EventSummary:
    """One kind of event over its repeats that went well.

    host: where it was done; events of different hosts are never averaged. phases: in order of
    time; a repeat without a phase spent 0 ms in it. most_bytes: received by one rank.
    """

    event: str
    host: str
    repeats: int
    failed: int
    phases: dict[str, Spread]
    total: Spread | None
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
        received = [max(one.bytes_per_rank) for one in good if one.bytes_per_rank]
        found.append(
            EventSummary(
                event=event,
                host=host,
                repeats=len(good),
                failed=len(group) - len(good),
                phases={
                    name: Spread.of([one.phases_ms.get(name, 0.0) for one in good])
                    for name in names
                },
                total=Spread.of([one.total_ms for one in good]) if good else None,
                most_bytes=max(received, default=None),
            )
        )
    return found


def event_labels(summaries: Sequence[EventSummary]) -> list[str]:
    """A name for each kind: the event, with its host where there are several."""
    several = len({s.host for s in summaries}) > 1
    return [f"{s.event} on {s.host}" if several and s.host else s.event for s in summaries]
