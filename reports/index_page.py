"""The first page: what is in the store, where it comes from, and a way to every other page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reports import words
from reports.accuracy import (
    Accuracy,
    accuracy_of,
    gpus_held,
    plans_and_measurements,
    source_label,
)
from reports.page import Page, Provenance
from reports.summary import by_source

if TYPE_CHECKING:
    from db.records import StoredComparison, StoredPlan, StoredPolicy, StoredReconfiguration
    from db.store import Store
    from specs.model import Model
    from specs.profile import ProfileRun

TITLES = {
    "index": "Overview",
    "accuracy": "Accuracy",
    "compare": "Comparison",
    "profile": "Profiles",
    "reconfigure": "Reconfiguration",
}
PLANS_LISTED = 500


@dataclass(frozen=True)
class Contents:
    """What a store holds, as far as the first page tells it."""

    runs: tuple[ProfileRun, ...]
    models: tuple[Model, ...]
    plans: tuple[StoredPlan, ...]
    accuracy: Accuracy
    iterations: int
    comparisons: tuple[StoredComparison, ...]
    reconfigurations: tuple[StoredReconfiguration, ...]
    policies: tuple[StoredPolicy, ...]


def read_contents(store: Store) -> Contents:
    """Everything that the first page tells of a store."""
    plans, measurements = plans_and_measurements(store)
    return Contents(
        tuple(store.profile_runs()),
        tuple(store.models()),
        tuple(plans),
        accuracy_of(plans, measurements),
        len(measurements),
        tuple(store.comparisons()),
        tuple(store.reconfigurations()),
        tuple(store.policies()),
    )


def page_links() -> list[dict[str, str]]:
    """The way from any page of a set to the others."""
    return [{"href": f"{name}.html", "title": title} for name, title in TITLES.items()]


def index_page(
    contents: Contents,
    provenance: Provenance,
    *,
    plan_pages: Sequence[int] = (),
    links: Sequence[dict[str, str]] = (),
) -> Page:
    """The first page. plan_pages: ids of the plans whose pages lie beside it."""
    measured = Counter(row.plan_id for row in contents.accuracy.rows)
    newest_first = sorted(contents.plans, key=lambda plan: -plan.id)
    return Page(
        name="index",
        title="Overview",
        template="index.html.j2",
        provenance=provenance,
        context={
            "contents": contents,
            "rows": sum(run.layer_rows + run.link_rows + run.host_rows for run in contents.runs),
            "cards": _cards(contents),
            "plans": [_plan_row(plan, measured) for plan in newest_first[:PLANS_LISTED]],
            "more_plans": max(0, len(newest_first) - PLANS_LISTED),
            "plan_pages": set(plan_pages),
            "sources": by_source(contents.accuracy.rows),
            "links": links,
        },
    )


def _plan_row(stored: StoredPlan, measured: Counter[int]) -> dict[str, Any]:
    plan = stored.plan
    prediction = plan.prediction
    return {
        "id": stored.id,
        "model": plan.model.name,
        "gpus": " + ".join(f"{count} × {gpu}" for gpu, count in gpus_held(plan)),
        "planner": plan.planner,
        "source": source_label(prediction.sources) if prediction else "",
        "iteration_ms": prediction.iteration_ms if prediction else None,
        "status": stored.status,
        "runs": measured[stored.id],
        "created": stored.created,
    }


def _cards(contents: Contents) -> list[dict[str, str]]:
    """What each other page holds, in a sentence."""
    sources = by_source(contents.accuracy.rows)
    layers = sum(run.layer_rows for run in contents.runs)
    accuracy = "No plan has been run yet."
    if sources:
        accuracy = "; ".join(
            f"{words.percent(s.median_percent)} median error from {s.source} profiles, "
            f"{words.plural(s.runs, 'run')}"
            for s in sources
        )
    asked = len(contents.comparisons)
    events = len(contents.reconfigurations)
    return [
        {"page": "accuracy", "title": "How true were the predictions?", "text": accuracy},
        {
            "page": "compare",
            "title": "Which planner finds the fastest plan?",
            "text": words.plural(asked, "comparison") if asked else "Nothing compared yet.",
        },
        {
            "page": "profile",
            "title": "How fast is one layer on each GPU?",
            "text": words.plural(layers, "layer profile") if layers else "Nothing profiled yet.",
        },
        {
            "page": "reconfigure",
            "title": "What does a change of the cluster cost?",
            "text": words.plural(events, "live event") if events else "No live event yet.",
        },
    ]
