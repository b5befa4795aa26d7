"""The page of one plan: its pipeline, its time, its memory, its runs, the command that runs it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.answer import figures as plan_figures
from planner.answer import stage_rows
from reports import words
from reports.accuracy import AccuracyRow, accuracy_of, gpus_held, layout_label, source_label
from reports.figures import Figure
from reports.page import Page, Provenance
from reports.pipeline_picture import cluster_figure, layers_in_words, pipeline_figure
from reports.plan_figures import memory_figure, parts_figure, runs_figure, stage_time_figure
from reports.stage_errors import StageError
from reports.timeline import end_of, measured_figure, timeline_figure
from specs.errors import ProfileMissing
from specs.plan import Plan
from specs.plan_file import plan_hash, plan_to_document

if TYPE_CHECKING:
    from db.records import StoredMeasurement, StoredPlan
    from db.store import Store
    from planner.explanation import Explanation
    from planner.trace import Track
    from specs.measurement import RunTrace
    from specs.profile import ProfileRun

PRICE_TOLERANCE = 1e-6  # a stored prediction and today's price of the same profiles differ by less


@dataclass(frozen=True)
class PlanFacts:
    """All that the page says of a plan.

    plan: with its prediction. stored: as in the store, None for a plan that is only a file.
    explanation and tracks: None where the store lacks profiles to simulate it, `missing` says
    which. priced_ms: what the store's profiles give today. trace: of the newest run that kept one.
    """

    plan: Plan
    stored: StoredPlan | None
    runs: tuple[AccuracyRow, ...]
    measurements: tuple[StoredMeasurement, ...]
    profile_runs: tuple[ProfileRun, ...]
    explanation: Explanation | None = None
    tracks: tuple[Track, ...] = ()
    priced_ms: float | None = None
    missing: str = ""
    trace: RunTrace | None = None

    @property
    def name(self) -> str:
        """File name of the page: the id of a stored plan, else its hash."""
        return f"plan-{self.stored.id}" if self.stored else f"plan-{plan_hash(self.plan)}"


def read_plan_facts(store: Store, plan: Plan, stored: StoredPlan | None) -> PlanFacts:
    """What the store knows of a plan.

    A plan without a prediction is priced by the store's profiles. Raises ProfileMissing where
    they do not suffice for that; a plan with a prediction goes without timeline then.
    """
    from planner.evaluate import evaluate_plan, plan_problem
    from planner.explanation import explain_plan
    from planner.passes import plan_tracks

    if plan.prediction is None:
        plan = evaluate_plan(store, plan)
    explanation: Explanation | None = None
    tracks: tuple[Track, ...] = ()
    priced_ms: float | None = None
    missing = ""
    try:
        priced = evaluate_plan(store, plan)
        problem = plan_problem(store, plan)
        explanation = explain_plan(problem, priced)
        tracks = tuple(plan_tracks(problem, priced))
        priced_ms = priced.prediction.iteration_ms if priced.prediction else None
    except ProfileMissing as error:
        missing = str(error)
    measurements = tuple(store.measurements(stored.id)) if stored else ()
    rows = accuracy_of([stored], measurements).rows if stored else ()
    traces = store.traces(stored.id) if stored else []
    trace = traces[-1].trace if traces else None
    used = set(plan.prediction.profile_runs) if plan.prediction else set()
    runs = tuple(run for run in store.profile_runs() if run.id in used)
    return PlanFacts(
        plan, stored, rows, measurements, runs, explanation, tracks, priced_ms, missing, trace
    )


def plan_page(
    facts: PlanFacts, provenance: Provenance, links: Sequence[dict[str, str]] = ()
) -> Page:
    """The page of a plan, with the plan as a document and its trace beside it."""
    from planner.trace import chrome_trace

    plan = facts.plan
    prediction = plan.prediction
    assert prediction is not None  # read_plan_facts prices a plan that has none
    numbers = plan_figures(plan)
    drawn: list[Figure] = [pipeline_figure(plan), cluster_figure(plan)]
    until_ms = end_of(facts.tracks, facts.trace)
    if facts.tracks:
        drawn.append(timeline_figure(facts.tracks, until_ms))
    if facts.trace:
        drawn.append(measured_figure(facts.trace, until_ms))
    drawn += [
        parts_figure(plan, prediction),
        stage_time_figure(plan, prediction),
        memory_figure(plan, prediction),
    ]
    if facts.runs:
        drawn.append(runs_figure(facts.runs, [m.measurement for m in facts.measurements]))
    files = {f"{facts.name}.json": json.dumps(plan_to_document(plan), indent=2) + "\n"}
    if facts.tracks:
        trace = chrome_trace(facts.tracks, {"plan": facts.name})
        files[f"{facts.name}-trace.json"] = json.dumps(trace) + "\n"
    measured_run, measured_stages = _measured_stages(facts)
    bound = prediction.bound_iteration_ms
    return Page(
        name=facts.name,
        title=f"{facts.name.replace('-', ' ')}: {plan.model.name}",
        template="plan.html.j2",
        provenance=provenance,
        context={
            "facts": facts,
            "plan": plan,
            "prediction": prediction,
            "numbers": numbers,
            "gap_percent": (None if not bound else 100 * (prediction.iteration_ms / bound - 1)),
            "where": " + ".join(f"{count} × {gpu}" for gpu, count in gpus_held(plan)),
            "idle": plan.idle_gpus,
            "layout": layout_label(plan),
            "source": source_label(prediction.sources),
            "stages": _stage_rows(plan),
            "limits": _limits(facts),
            "changed": _changed(facts),
            "measured_run": measured_run,
            "measured_stages": measured_stages,
            "command": f"arachne-run {facts.name}.json",
            "links": links,
        },
        figures=drawn,
        files=files,
    )


def _stage_rows(plan: Plan) -> list[dict[str, Any]]:
    rows = stage_rows(plan)
    for row in rows:
        stage = plan.templates[row["template"]].stages[row["stage"]]
        row["layers"] = layers_in_words(plan, stage)
        row["fill"] = 100 * row["memory_bytes"]["total"] / row["limit_bytes"]
    return rows


def _measured_stages(facts: PlanFacts) -> tuple[str, tuple[StageError, ...]]:
    """The newest run that recorded its stages, and these; empty where none did."""
    found = [row for row in facts.runs if row.stages]
    if not found:
        return "", ()
    newest = max(found, key=lambda row: row.recorded)
    return newest.run, newest.stages


def _limits(facts: PlanFacts) -> list[str]:
    from planner.explanation import limits

    found = list(facts.explanation.limits) if facts.explanation else limits(facts.plan)
    return [re.sub(r"^.", lambda first: first.group().upper(), line) + "." for line in found]


def _changed(facts: PlanFacts) -> str:
    """A remark where the store's profiles today price the plan otherwise than its prediction."""
    prediction = facts.plan.prediction
    if facts.priced_ms is None or prediction is None:
        return ""
    change = facts.priced_ms / prediction.iteration_ms - 1
    if abs(change) <= PRICE_TOLERANCE:
        return ""
    return (
        f"The store's profiles today give {words.ms(facts.priced_ms)} an iteration "
        f"({words.signed_percent(100 * change)}): the timeline is drawn from them, all other "
        "figures are the stored prediction."
    )
