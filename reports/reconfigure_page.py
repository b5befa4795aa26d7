"""The page of live reconfigurations: how long each phase of each event held training up."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from reports.events import PAPER_PAUSE_S, PAPER_S, phase_order, summarise_events
from reports.figures import Figure
from reports.page import Page, Provenance
from reports.reconfigure_figures import phases_figure, repeats_figure

if TYPE_CHECKING:
    from db.records import StoredReconfiguration

EVENTS_LISTED = 500  # newest first; the data of the second figure have all
KINDS_LISTED = 200


def reconfigure_page(
    rows: Sequence[StoredReconfiguration],
    provenance: Provenance,
    links: Sequence[dict[str, str]] = (),
    *,
    plan_pages: Collection[int] = (),
) -> Page:
    """The page of these events. plan_pages: ids of the plans that have a page beside this one."""
    summaries = summarise_events(rows)
    figures: tuple[Figure, ...] = ()
    if rows:
        figures = (phases_figure(summaries), repeats_figure(rows, summaries))
    return Page(
        name="reconfigure",
        title="Reconfiguration",
        template="reconfigure.html.j2",
        provenance=provenance,
        context={
            "rows": rows,
            "listed": list(rows)[::-1][:EVENTS_LISTED],
            "summaries": summaries[-KINDS_LISTED:],
            "kinds": len(summaries),
            "phases": sorted(
                {*PAPER_S, *(p for s in summaries for p in s.phases)}, key=phase_order
            ),
            "paper": PAPER_S,
            "paper_pause": PAPER_PAUSE_S,
            "plan_pages": set(plan_pages),
            "links": links,
        },
        figures=figures,
    )
