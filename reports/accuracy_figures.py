"""The figures of the accuracy page and their data; static/accuracy.js draws what is in view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reports.accuracy import AccuracyRow
from reports.figures import Figure, Table

_RUN = ("plan_id", "run", "model", "gpus", "planner", "source", "host")
_STAGE = ("plan_id", "run", "source", "template", "stage", "role", "gpu", "term")
OLDER = (
    " Runs that did not time the collectives inside layers have them in “compute with collectives”."
)
_MEMORY = ("predicted_peak_bytes", "measured_peak_bytes", "memory_error_percent")


def _record(row: AccuracyRow) -> dict[str, Any]:
    record = row.to_json()
    del record["stages"]  # they have a table of their own
    record["gpus"] = row.gpu_label
    record["profile_runs"] = " ".join(map(str, row.profile_runs))
    record["hardware"] = row.hardware
    record["place"] = row.where
    record["iteration_spread_percent"] = None if row.spread is None else 100 * row.spread
    return record


def _table(records: Sequence[dict[str, Any]], *columns: str) -> Table:
    return Table(columns, tuple(tuple(record[name] for name in columns) for record in records))


def every_run(rows: Sequence[AccuracyRow]) -> Table:
    """All that is known of every run, in full precision."""
    records = [_record(row) for row in rows]
    return _table(records, *(records[0] if records else ()))


def stage_table(rows: Sequence[AccuracyRow]) -> Table:
    """Every term of every stage of the runs that recorded them."""
    return Table(
        (*_STAGE, "predicted_ms", "measured_ms", "error_percent", "share_percent"),
        tuple(
            (
                *(row.plan_id, row.run, row.source, stage.template, stage.stage, stage.role),
                *(stage.gpu, term.term, term.predicted_ms, term.measured_ms),
                None if term.error is None else 100 * term.error,
                100 * stage.share(term),
            )
            for row in rows
            for stage in row.stages
            for term in stage.terms
        ),
    )


def terms_figure(rows: Sequence[AccuracyRow]) -> Figure:
    """Which term of which stage was predicted wrong, and what that weighs."""
    return Figure(
        "terms",
        "By stage and by term",
        "Each point is a stage of a run: predicted less measured time of one term, in percent of "
        "the iteration. Communication is the collectives inside layers and what a stage sends to "
        "its neighbours; in no term are waiting for a neighbour and what the process does between "
        "actions." + (OLDER if any(not s.split for row in rows for s in row.stages) else ""),
        stage_table(rows),
        drawn_by="terms",
        wide=True,
        height=460,
    )


def accuracy_figures(rows: Sequence[AccuracyRow]) -> tuple[Figure, ...]:
    """The figures of the page, each with the data of all rows."""
    records = [_record(row) for row in rows]
    with_memory = [record for record in records if record["memory_error_percent"] is not None]
    spreads = ("run_to_run_percent", "iteration_spread_percent")
    with_spread = [
        record for record in records if any(record[name] is not None for name in spreads)
    ]
    return (
        Figure(
            "scatter",
            "Predicted against measured",
            "Each mark is a run; the line is where prediction and measurement agree, the bands "
            "are ±10 % and ±25 %, the bars the spread of a run's iterations.",
            _table(
                records,
                *_RUN,
                *("predicted_ms", "measured_ms", "measured_is", "mad_ms", "iterations"),
                "error_percent",
            ),
            drawn_by="scatter",
            height=470,
        ),
        Figure(
            "histogram",
            "How the errors are spread",
            "Runs by error; left of zero the prediction was too fast, right of it too slow.",
            _table(records, "source", "plan_id", "run", "error_percent"),
            drawn_by="histogram",
            height=470,
        ),
        Figure(
            "groups",
            "By hardware, inside one machine and across",
            "Errors of each group of runs.",
            _table(records, "source", "hardware", "place", "plan_id", "run", "error_percent"),
            drawn_by="groups",
            wide=True,
        ),
        Figure(
            "noise",
            "Error beside the machine's own noise",
            "Absolute error against the spread between runs of the plan, or inside its one run.",
            _table(
                with_spread, "plan_id", "run", "source", *spreads, "drift_percent", "error_percent"
            ),
            drawn_by="noise",
        ),
        Figure(
            "trend",
            "Over time",
            "Absolute error by when the run was recorded, with the median of the last 20 runs.",
            _table(
                sorted(records, key=lambda record: str(record["recorded"])),
                *("recorded", "source", "plan_id", "run", "error_percent"),
            ),
            drawn_by="trend",
        ),
        Figure(
            "memory",
            "Peak memory, predicted against measured",
            "The fullest GPU of each run that recorded its peak; bands of ±10 % and ±25 %.",
            _table(with_memory, *_RUN, *_MEMORY),
            drawn_by="memory",
            wide=True,
            height=420,
        ),
        *([terms_figure(rows)] if any(row.stages for row in rows) else []),
    )
