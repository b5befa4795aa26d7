"""Comparisons of planners, their search curves, live reconfigurations, trained policies."""

from __future__ import annotations

import uuid
from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, insert, select
from sqlalchemy.orm import DeclarativeBase

from db import tables
from db.columns import plain_text, utc_now
from db.engine import Database
from db.plans import WORKLOAD_COLUMNS, put_cluster, put_workload
from db.records import (
    ComparisonRow,
    CurvePoint,
    NewComparison,
    NewPolicy,
    NewReconfiguration,
    SearchCurve,
    StoredComparison,
    StoredCurve,
    StoredPolicy,
    StoredReconfiguration,
)
from db.rows import Row, big, json_ready, maybe, number, put, seed, table_of, whole
from specs.cluster import cluster_from_document
from specs.errors import StoreError
from specs.model import Model
from specs.workload import DType, Optimizer, Recompute, Workload

_PLANS = table_of(tables.Plan)
_MODELS = table_of(tables.Model)
_WORKLOADS = table_of(tables.Workload)
_CLUSTERS = table_of(tables.Cluster)
_COMPARISONS = table_of(tables.Comparison)
_ROWS = table_of(tables.ComparisonRow)
_CURVES = table_of(tables.SearchCurvePoint)
_RECONFIGURATIONS = table_of(tables.Reconfiguration)
_POLICIES = table_of(tables.Policy)

_ROW_FIELDS = [field.name for field in fields(ComparisonRow)]
_RECONFIGURATION_FIELDS = [
    field.name for field in fields(NewReconfiguration) if field.name != "bytes_per_rank"
]
_POLICY_FIELDS = [field.name for field in fields(NewPolicy) if field.name != "models"]

STATUSES = ("ok", "no plan", "budget", "unsupported")


def _require(connection: Connection, entity: type[DeclarativeBase], key: int, called: str) -> None:
    table = table_of(entity)
    if connection.execute(select(table.c.id).where(table.c.id == key)).first() is None:
        raise StoreError(f"no {called} {key} in the store")


def _insert(connection: Connection, entity: type[DeclarativeBase], row: Row) -> int:
    key = connection.execute(insert(table_of(entity)).values(row)).inserted_primary_key
    assert key is not None
    return int(key[0])


class ComparisonQueries(Database):
    """Comparisons, search curves, reconfigurations and policies."""

    def add_comparison(self, new: NewComparison) -> int:
        """Write the question of a comparison; its id. Rows follow one by one."""
        with self.write() as connection:
            return _insert(
                connection,
                tables.Comparison,
                {
                    "uid": uuid.uuid4().hex,
                    "title": new.title,
                    "suite": new.suite,
                    "origin": new.origin,
                    "workload_id": put_workload(connection, new.model, new.workload),
                    "cluster_id": put_cluster(connection, new.cluster),
                    "options": json_ready("options of the comparison", dict(new.options)),
                    "created": utc_now(),
                },
            )

    def add_comparison_row(self, comparison_id: int, row: ComparisonRow) -> None:
        """Write what a planner answered; the same planner again is replaced.

        Raises StoreError for an unknown comparison or plan, status or figure.
        """
        what = f"row of {row.planner} in comparison {comparison_id}"
        if row.status not in STATUSES:
            raise StoreError(f"{what}: status is {row.status!r}, expected {', '.join(STATUSES)}")
        entry = {
            "comparison_id": comparison_id,
            "planner": row.planner,
            "plan_id": row.plan_id,
            "status": row.status,
            "reason": row.reason,
            "iteration_ms": maybe(what, "iteration_ms", row.iteration_ms),
            "search_s": number(what, "search_s", row.search_s),
            "evaluations": big(what, "evaluations", row.evaluations),
            "rejected": json_ready(f"{what}: rejected", dict(row.rejected)),
        }
        with self.write() as connection:
            _require(connection, tables.Comparison, comparison_id, "comparison")
            if row.plan_id is not None:
                _require(connection, tables.Plan, row.plan_id, "plan")
            put(connection, _ROWS, [entry], replace=True)

    def comparisons(self, *, suite: str | None = None) -> list[StoredComparison]:
        """Comparisons with their rows, oldest first; of one suite, or all."""
        return self._comparisons(*([] if suite is None else [_COMPARISONS.c.suite == suite]))

    def comparison(self, comparison_id: int) -> StoredComparison:
        """The comparison of that id. Raises StoreError where there is none."""
        found = self._comparisons(_COMPARISONS.c.id == comparison_id)
        if not found:
            raise StoreError(f"no comparison {comparison_id} in the store")
        return found[0]

    def find_comparison(self, new: NewComparison) -> StoredComparison | None:
        """The newest comparison that asks exactly this (origin apart), to go on with; or None."""
        options = json_ready("options of the comparison", dict(new.options))
        rules = (_COMPARISONS.c.title == new.title, _COMPARISONS.c.suite == new.suite)
        for stored in reversed(self._comparisons(*rules)):
            old = stored.comparison
            if (
                old.options == options
                and old.workload == new.workload
                and old.model.config_hash == new.model.config_hash
                and old.cluster.to_json() == new.cluster.to_json()
            ):
                return stored
        return None

    def _comparisons(self, *rules: ColumnElement[bool]) -> list[StoredComparison]:
        query = (
            select(
                _COMPARISONS,
                *(_WORKLOADS.c[name] for name in WORKLOAD_COLUMNS),
                _MODELS.c.name.label("model_name"),
                _MODELS.c.config,
                _CLUSTERS.c.document.label("cluster"),
            )
            .join(_WORKLOADS, _WORKLOADS.c.id == _COMPARISONS.c.workload_id)
            .join(_MODELS, _MODELS.c.id == _WORKLOADS.c.model_id)
            .join(_CLUSTERS, _CLUSTERS.c.id == _COMPARISONS.c.cluster_id)
            .where(*rules)
            .order_by(_COMPARISONS.c.id)
        )
        with self.read() as connection:
            found = connection.execute(query).all()
            answers: dict[int, list[ComparisonRow]] = {row.id: [] for row in found}
            for row in connection.execute(select(_ROWS).order_by(_ROWS.c.id)):
                if row.comparison_id in answers:
                    answers[row.comparison_id].append(_comparison_row(row))
        return [
            StoredComparison(row.id, _new_comparison(row), tuple(answers[row.id]), row.created)
            for row in found
        ]

    def add_search_curve(self, comparison_id: int, curve: SearchCurve) -> None:
        """Write a search curve in one transaction; the same planner, phase and seed is replaced.

        Raises StoreError for an unknown comparison or a figure that cannot be.
        """
        what = f"search curve of {curve.planner} in comparison {comparison_id}"
        rows = [
            {
                "comparison_id": comparison_id,
                "planner": curve.planner,
                "phase": curve.phase,
                "seed": seed(what, curve.seed),
                "evaluations": big(what, "evaluations", point.evaluations),
                "best_iteration_ms": maybe(what, "best_iteration_ms", point.best_iteration_ms),
                "elapsed_s": maybe(what, "elapsed_s", point.elapsed_s),
            }
            for point in curve.points
        ]
        with self.write() as connection:
            _require(connection, tables.Comparison, comparison_id, "comparison")
            connection.execute(
                delete(_CURVES).where(
                    _CURVES.c.comparison_id == comparison_id,
                    _CURVES.c.planner == curve.planner,
                    _CURVES.c.phase == curve.phase,
                    _CURVES.c.seed == curve.seed,
                )
            )
            put(connection, _CURVES, rows, replace=True)

    def search_curves(self, comparison_id: int | None = None) -> list[StoredCurve]:
        """Search curves of a comparison, or of all; points by rising evaluations."""
        order = (_CURVES.c[name] for name in ("comparison_id", "planner", "phase", "seed"))
        query = select(_CURVES).order_by(*order, _CURVES.c.evaluations)
        if comparison_id is not None:
            query = query.where(_CURVES.c.comparison_id == comparison_id)
        points: dict[tuple[int, str, str, int], list[CurvePoint]] = {}
        with self.read() as connection:
            for row in connection.execute(query):
                points.setdefault((row.comparison_id, row.planner, row.phase, row.seed), []).append(
                    CurvePoint(row.evaluations, row.best_iteration_ms, row.elapsed_s)
                )
        return [
            StoredCurve(comparison, SearchCurve(planner, tuple(found), seed, phase))
            for (comparison, planner, phase, seed), found in points.items()
        ]

    def add_reconfiguration(self, new: NewReconfiguration) -> int:
        """Write a live change of plan; its id. Raises StoreError for an unknown plan."""
        what = f"reconfiguration {new.event}"
        row = {
            **{name: getattr(new, name) for name in ("event", "run", "host", "origin")},
            **{name: getattr(new, name) for name in ("old_plan_id", "new_plan_id")},
            **{name: getattr(new, name) for name in ("status", "reason")},
            "uid": uuid.uuid4().hex,
            "phases_ms": {name: number(what, name, ms) for name, ms in new.phases_ms.items()},
            "bytes_per_rank": [big(what, "bytes_per_rank", count) for count in new.bytes_per_rank],
            "repeat": whole(what, "repeat", new.repeat),
            "created": utc_now(),
        }
        with self.write() as connection:
            for plan_id in (new.old_plan_id, new.new_plan_id):
                if plan_id is not None:
                    _require(connection, tables.Plan, plan_id, "plan")
            return _insert(connection, tables.Reconfiguration, row)

    def reconfigurations(self) -> list[StoredReconfiguration]:
        """All live changes of plan, oldest first."""
        with self.read() as connection:
            return [
                StoredReconfiguration(
                    row.id,
                    NewReconfiguration(
                        **{name: getattr(row, name) for name in _RECONFIGURATION_FIELDS},
                        bytes_per_rank=tuple(row.bytes_per_rank),
                    ),
                    row.created,
                )
                for row in connection.execute(
                    select(_RECONFIGURATIONS).order_by(_RECONFIGURATIONS.c.id)
                )
            ]

    def add_policy(self, new: NewPolicy) -> int:
        """Write the record of a trained policy; its id."""
        what = f"policy {new.run}"
        row = asdict(new) | {
            "uid": uuid.uuid4().hex,
            "models": [plain_text(name) for name in new.models],
            "metrics": json_ready(f"{what}: metrics", dict(new.metrics)),
            "seed": seed(what, new.seed),
            "steps": big(what, "steps", new.steps),
            "training_s": number(what, "training_s", new.training_s),
            "created": utc_now(),
        }
        with self.write() as connection:
            return _insert(connection, tables.Policy, row)

    def policies(self) -> list[StoredPolicy]:
        """All policies, oldest first."""
        with self.read() as connection:
            return [
                StoredPolicy(
                    row.id,
                    NewPolicy(
                        **{name: getattr(row, name) for name in _POLICY_FIELDS},
                        models=tuple(row.models),
                    ),
                    row.created,
                )
                for row in connection.execute(select(_POLICIES).order_by(_POLICIES.c.id))
            ]


def _comparison_row(row: Any) -> ComparisonRow:
    return ComparisonRow(**{name: getattr(row, name) for name in _ROW_FIELDS})


def _new_comparison(row: Any) -> NewComparison:
    return NewComparison(
        title=row.title,
        model=Model.from_config(row.model_name, row.config, f"model {row.model_name}"),
        workload=Workload(
            row.global_batch,
            row.seq_len,
            DType(row.dtype),
            Optimizer(row.optimizer),
            Recompute(row.recompute),
        ),
        cluster=cluster_from_document(row.cluster, f"comparison {row.id} of the store"),
        suite=row.suite,
        origin=row.origin,
        options=row.options,
    )
