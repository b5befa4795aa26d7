"""What runs of plans really took: iterations, their stages, and one trace a run."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, delete, select

from db import tables
from db.columns import plain_text, utc_now
from db.engine import Database
from db.records import StoredMeasurement, StoredTrace
from db.rows import Row, big, json_ready, maybe, number, put, table_of, whole
from specs.errors import StoreError
from specs.measurement import Measurement, RunTrace, StageTimes, StageTrack

_PLANS = table_of(tables.Plan)
_MEASUREMENTS = table_of(tables.Measurement)
_STAGES = table_of(tables.StageTime)
_TRACES = table_of(tables.Trace)

_STAGE_FIELDS = tuple(field.name for field in fields(StageTimes))
_AT_ONCE = 500  # ids in one statement


def _measurement_row(plan_id: int, row: Measurement) -> Row:
    what = f"measurement of plan {plan_id} run {row.run} iteration {row.iteration}"
    # A loss that is no number says that training diverged: the time beside it is still true.
    loss = row.loss if row.loss is not None and math.isfinite(row.loss) else None
    return {
        "plan_id": plan_id,
        "run": row.run,
        "iteration": whole(what, "iteration", row.iteration),
        "host": row.host,
        "origin": row.origin,
        "iteration_ms": number(what, "iteration_ms", row.iteration_ms),
        "samples": whole(what, "samples", row.samples, least=1),
        "warm_up": bool(row.warm_up),
        "loss": None if loss is None else float(loss),
        "peak_bytes": [big(what, "peak_bytes", peak) for peak in row.peak_bytes],
        "drift": None if row.drift is None else number(what, "drift", row.drift, least=-1.0),
        "created": utc_now(),
    }


def _stage_row(plan_id: int, row: Measurement, times: StageTimes) -> Row:
    what = (
        f"measurement of plan {plan_id} run {row.run} iteration {row.iteration} "
        f"template {times.template} stage {times.stage}"
    )
    found: Row = {name: whole(what, name, getattr(times, name)) for name in ("template", "stage")}
    for name in _STAGE_FIELDS[2:]:
        check = maybe if name == "comm_ms" else number
        found[name] = check(what, name, getattr(times, name))
    return found


def _put_stages(connection: Connection, plan_id: int, rows: Sequence[Measurement]) -> None:
    """Replace the stages of these iterations, which are written already."""
    runs = sorted({plain_text(row.run) for row in rows})
    ids: dict[tuple[str, int], int] = {}
    for first in range(0, len(runs), _AT_ONCE):
        query = select(_MEASUREMENTS.c.id, _MEASUREMENTS.c.run, _MEASUREMENTS.c.iteration).where(
            _MEASUREMENTS.c.plan_id == plan_id,
            _MEASUREMENTS.c.run.in_(runs[first : first + _AT_ONCE]),
        )
        for measurement_id, run, iteration in connection.execute(query):
            ids[run, iteration] = measurement_id
    written = sorted({ids[plain_text(row.run), int(row.iteration)] for row in rows})
    for first in range(0, len(written), _AT_ONCE):
        some = written[first : first + _AT_ONCE]
        connection.execute(delete(_STAGES).where(_STAGES.c.measurement_id.in_(some)))
    entries = [
        {"measurement_id": ids[plain_text(row.run), int(row.iteration)]}
        | _stage_row(plan_id, row, times)
        for row in rows
        for times in row.stages
    ]
    put(connection, _STAGES, entries, replace=True)


def _check_plan(connection: Connection, plan_id: int) -> None:
    known = connection.execute(select(_PLANS.c.id).where(_PLANS.c.id == plan_id)).first()
    if known is None:
        raise StoreError(f"no plan {plan_id} in the store; arachne-plan list shows them")


class MeasurementQueries(Database):
    """Measurements, stage times and traces."""

    def add_measurements(self, plan_id: int, rows: Sequence[Measurement]) -> None:
        """Write measured iterations of a plan in one transaction; the same again are replaced.

        A loss that is not finite is stored as none. Raises StoreError for an unknown plan or a
        figure that cannot be.
        """
        entries = [_measurement_row(plan_id, row) for row in rows]
        with self.write() as connection:
            _check_plan(connection, plan_id)
            put(connection, _MEASUREMENTS, entries, replace=True)
            _put_stages(connection, plan_id, rows)

    def measurements(self, plan_id: int | None = None) -> list[StoredMeasurement]:
        """Measured iterations of a plan, or of all, by plan, in the order the runs came."""
        query = select(_MEASUREMENTS).order_by(_MEASUREMENTS.c.plan_id, _MEASUREMENTS.c.id)
        stage_query = select(
            _STAGES.c.measurement_id, *(_STAGES.c[name] for name in _STAGE_FIELDS)
        ).order_by(_STAGES.c.template, _STAGES.c.stage)
        if plan_id is not None:
            query = query.where(_MEASUREMENTS.c.plan_id == plan_id)
            stage_query = stage_query.join(
                _MEASUREMENTS, _MEASUREMENTS.c.id == _STAGES.c.measurement_id
            ).where(_MEASUREMENTS.c.plan_id == plan_id)
        with self.read() as connection:
            stages: dict[int, list[StageTimes]] = defaultdict(list)
            for measurement_id, *values in connection.execute(stage_query):
                stages[measurement_id].append(StageTimes(*values))
            return [
                StoredMeasurement(
                    row.plan_id,
                    Measurement(
                        row.run,
                        row.host,
                        row.origin,
                        row.iteration,
                        row.iteration_ms,
                        row.samples,
                        row.warm_up,
                        row.loss,
                        tuple(row.peak_bytes),
                        row.drift,
                        tuple(stages.get(row.id, ())),
                    ),
                    row.created,
                )
                for row in connection.execute(query)
            ]

    def add_trace(self, plan_id: int, trace: RunTrace) -> None:
        """Write the trace of a run; a run has one, the newest. Raises StoreError as above."""
        what = f"trace of plan {plan_id} run {trace.run}"
        row = {
            "plan_id": plan_id,
            "run": trace.run,
            "iteration": whole(what, "iteration", trace.iteration),
            "iteration_ms": number(what, "iteration_ms", trace.iteration_ms),
            "tracks": json_ready(what, [_track_json(what, track) for track in trace.tracks]),
            "created": utc_now(),
        }
        with self.write() as connection:
            _check_plan(connection, plan_id)
            put(connection, _TRACES, [row], replace=True)

    def traces(self, plan_id: int) -> list[StoredTrace]:
        """The traces of a plan's runs, oldest first."""
        query = select(_TRACES).where(_TRACES.c.plan_id == plan_id)
        with self.read() as connection:
            rows = connection.execute(query.order_by(_TRACES.c.created, _TRACES.c.id)).all()
        return [
            StoredTrace(
                row.plan_id,
                RunTrace(
                    row.run,
                    row.iteration,
                    row.iteration_ms,
                    tuple(_track(track) for track in row.tracks),
                ),
                row.created,
            )
            for row in rows
        ]


def _track_json(what: str, track: StageTrack) -> dict[str, Any]:
    for kind, _, start, end in track.actions:
        if not start <= end:
            raise StoreError(f"{what}: {kind} is from {start} to {end} ms, expected start <= end")
    return {"template": track.template, "stage": track.stage, "actions": list(track.actions)}


def _track(document: dict[str, Any]) -> StageTrack:
    actions = tuple((str(k), int(m), float(s), float(e)) for k, m, s, e in document["actions"])
    return StageTrack(int(document["template"]), int(document["stage"]), actions)
