"""The accuracy page: planned against measured, for every run in the store."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reports import words
from reports.accuracy import Accuracy, AccuracyRow
from reports.accuracy_figures import accuracy_figures, every_run
from reports.figures import significant
from reports.packed import indexed
from reports.page import Page, Provenance
from reports.regression import SCHEMA_VERSION, THRESHOLD_POINTS, Regression, fingerprint
from reports.stage_errors import TERMS
from reports.summary import ErrorSummary, by_source, by_source_and_hardware, overall

if TYPE_CHECKING:
    from specs.profile import ProfileRun

ROWS_FOR_PEOPLE = 1000  # from here on accuracy.json is not indented: nobody reads it line by line
HISTORY_KEPT = 100  # summaries of earlier reports that accuracy.json carries on

_MARKS = {  # colour and plotly.js symbol of a source; never told apart by colour alone
    "measured": ("var(--c1)", "circle"),
    "imported": ("var(--c2)", "square"),
    "estimated": ("var(--c3)", "diamond"),
}
_MIXTURES = (("var(--c4)", "triangle-up"), ("var(--c5)", "cross"), ("var(--c6)", "star"))


def accuracy_document(
    accuracy: Accuracy,
    provenance: Provenance,
    regression: Regression | None,
    earlier: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What accuracy.json holds and `--json` prints.

    `history`: the summaries of the reports before this one, oldest first.
    """
    rows = accuracy.rows
    mixed = overall(rows)
    document: dict[str, Any] = {
        "schema": SCHEMA_VERSION,
        "made": provenance.made.isoformat(),
        "store": provenance.store,
        "version": provenance.version,
        "fingerprint": fingerprint(rows),
        "by_source": [summary.to_json() for summary in by_source(rows)],
        "by_source_and_hardware": [group.to_json() for group in by_source_and_hardware(rows)],
        "overall": mixed.to_json() if mixed else None,
        "left_out": accuracy.left_out,
        "unmeasured_plans": accuracy.unmeasured_plans,
        "regression": regression.to_json() if regression else None,
        "history": [],
        "rows": [row.to_json() for row in rows],
    }
    if earlier is not None:
        history = list(earlier.get("history") or [])
        if earlier["fingerprint"] != document["fingerprint"]:
            history.append({"made": earlier["made"], "by_source": earlier.get("by_source", [])})
        document["history"] = history[-HISTORY_KEPT:]
    return document


def accuracy_page(
    accuracy: Accuracy,
    runs: Sequence[ProfileRun],
    provenance: Provenance,
    *,
    regression: Regression | None = None,
    document: dict[str, Any] | None = None,
    plan_pages: Sequence[int] = (),
    links: Sequence[dict[str, str]] = (),
) -> Page:
    """The page of these rows.

    runs: the store's profile runs. plan_pages: ids of the plans that have a page beside this one.
    """
    rows = accuracy.rows
    sources = by_source(rows)
    uses = Counter(run for row in rows for run in row.profile_runs)
    known = {run.id: run for run in runs}
    context = {
        "rows": rows,
        "lead": _lead(sources),
        "by_source": sources,
        "overall": overall(rows),
        "groups": by_source_and_hardware(rows),
        "regression": regression,
        "threshold": THRESHOLD_POINTS,
        "left_out": accuracy.left_out,
        "unmeasured": accuracy.unmeasured_plans,
        "uses": uses,
        "profile_runs": [known[run] for run in sorted(uses) if run in known],
        "missing_runs": [run for run in sorted(uses) if run not in known],
        "memory_words": _memory_words(rows),
        "links": links,
        **_empty_words(accuracy, len(runs)),
    }
    files = {}
    if rows:
        files["accuracy-runs.csv"] = every_run(rows).to_csv()
    if document is not None:
        indent = 1 if len(rows) < ROWS_FOR_PEOPLE else None
        files["accuracy.json"] = json.dumps(document, indent=indent, allow_nan=False) + "\n"
    return Page(
        name="accuracy",
        title="Accuracy",
        template="accuracy.html.j2",
        provenance=provenance,
        context=context,
        figures=accuracy_figures(rows) if rows else (),
        data={
            "rows": pack(rows) if rows else None,
            "sources": [_mark(summary.source, i) for i, summary in enumerate(sources)],
            "plan_pages": sorted(set(plan_pages)),
        },
        scripts=("terms.js", "accuracy.js"),
        files=files,
    )


def _lead(sources: Sequence[ErrorSummary]) -> str:
    if not sources:
        return (
            "Every run of a plan is set beside the iteration time that was predicted for it "
            "before it ran."
        )
    parts = [
        f"{words.percent(s.median_percent)} from {s.source} profiles "
        f"({words.plural(s.runs, 'run')}, worst {words.signed_percent(s.worst_percent)})"
        for s in sources
    ]
    return "Median absolute error of the predicted iteration time: " + "; ".join(parts) + "."


def _empty_words(accuracy: Accuracy, runs: int) -> dict[str, str]:
    if accuracy.rows:
        return {"empty_title": "", "empty_why": ""}
    if accuracy.left_out:
        return {
            "empty_title": "No run can be compared yet",
            "empty_why": "The store has runs, but none that stands beside a prediction.",
        }
    if accuracy.unmeasured_plans:
        plans = words.plural(accuracy.unmeasured_plans, "plan")
        return {
            "empty_title": "No plan has been run yet",
            "empty_why": f"The store has {plans}, none with a measured iteration.",
        }
    if runs:
        profiles = words.plural(runs, "profile run")
        return {
            "empty_title": "No plan has been made yet",
            "empty_why": f"The store has {profiles}, but no plan.",
        }
    return {"empty_title": "The store is empty", "empty_why": "There is nothing to compare yet."}


def _memory_words(rows: Sequence[AccuracyRow]) -> str:
    """What is held against what, for the kinds of devices that the rows are of."""
    types = {gpu for row in rows if row.memory_error is not None for gpu, _ in row.gpus}
    text = (
        "The peak of the fullest rank over all iterations, against the largest prediction of any "
        "stage: weights, gradients, optimizer state, activations in flight, transient and "
        "framework memory. "
    )
    if "cpu" in types:
        text += (
            "On a CPU host the peak is the high-water mark of a worker's resident memory, "
            "interpreter and libraries included, as they are in the framework part of the "
            "prediction. "
        )
    if types - {"cpu"}:
        text += (
            "On GPUs a run of arachne-run records what the allocator handed out, which lacks the "
            "context in the framework part; a figure that others published counts what their tool "
            "saw, often the whole device. "
        )
    return text.strip()


def _mark(source: str, index: int) -> dict[str, str]:
    colour, symbol = _MARKS.get(source) or _MIXTURES[index % len(_MIXTURES)]
    css = source if source in _MARKS else "mixture"
    return {"label": source, "colour": colour, "symbol": symbol, "css": css}


_TEXTS = ("model", "planner", "source", "host", "origin", "run", "layout", "hardware", "where")


def pack(rows: Sequence[AccuracyRow]) -> dict[str, Any]:
    """The rows column by column, repeated text once: what the page's script reads.

    text: name -> [values, index per row]; numbers: name -> value per row, errors in percent, time
    in seconds since 1970.
    """
    text = {name: [getattr(row, name) for row in rows] for name in _TEXTS}
    text["gpus"] = [row.gpu_label for row in rows]
    text["measured_is"] = [row.time.label for row in rows]
    text["profile_runs"] = [", ".join(map(str, row.profile_runs)) for row in rows]
    numbers = {
        "plan_id": [row.plan_id for row in rows],
        "predicted_ms": [significant(row.predicted_ms) for row in rows],
        "measured_ms": [significant(row.measured_ms) for row in rows],
        "mad_ms": [_short(row.time.mad_ms) for row in rows],
        "iterations": [row.time.iterations for row in rows],
        "error": [significant(100 * row.error) for row in rows],
        "spread": [_percent(row.spread) for row in rows],
        "noise": [_percent(row.run_to_run) for row in rows],
        "drift": [_percent(row.time.drift) for row in rows],
        "recorded": [int(row.recorded.timestamp()) for row in rows],
        "predicted_peak": [_short(row.predicted_peak_bytes) for row in rows],
        "measured_peak": [row.time.peak_bytes for row in rows],
        "memory_error": [_percent(row.memory_error) for row in rows],
    }
    return {
        "count": len(rows),
        "text": {name: indexed(values) for name, values in text.items()},
        "numbers": numbers,
        "stages": _pack_stages(rows),
    }


def _pack_stages(rows: Sequence[AccuracyRow]) -> dict[str, Any]:
    """The stages of all rows in the same form; `row` is the index of the run they are of."""
    stages = [(i, stage) for i, row in enumerate(rows) for stage in row.stages]
    numbers: dict[str, list[Any]] = {
        "row": [i for i, _ in stages],
        "template": [stage.template for _, stage in stages],
        "stage": [stage.stage for _, stage in stages],
        "split": [int(stage.split) for _, stage in stages],
    }
    for t, term in enumerate(TERMS):
        both = [(stage, stage.terms[t]) for _, stage in stages]
        numbers[f"{term}_predicted"] = [significant(found.predicted_ms, 5) for _, found in both]
        numbers[f"{term}_measured"] = [significant(found.measured_ms, 5) for _, found in both]
        numbers[f"{term}_share"] = [significant(100 * s.share(found), 4) for s, found in both]
    return {
        "count": len(stages),
        "text": {
            "role": indexed([stage.role for _, stage in stages]),
            "gpu": indexed([stage.gpu for _, stage in stages]),
        },
        "numbers": numbers,
    }


def _short(value: float | None) -> float | None:
    return None if value is None else significant(value)


def _percent(share: float | None) -> float | None:
    return None if share is None else significant(100 * share, 5)
