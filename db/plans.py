"""Plans with their predictions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, select

from db import tables
from db.columns import utc_now
from db.engine import Database
from db.models import put_model
from db.records import StoredPlan
from db.rows import big, canonical, json_ready, maybe, number, put, put_one, table_of
from specs.cluster import Cluster
from specs.errors import StoreError
from specs.model import Model
from specs.plan import Plan
from specs.plan_file import plan_from_document, plan_hash, plan_to_document
from specs.workload import Workload

_PLANS = table_of(tables.Plan)
_PLAN_RUNS = table_of(tables.PlanProfileRun)
_RUNS = table_of(tables.ProfileRun)
_MODELS = table_of(tables.Model)
_WORKLOADS = table_of(tables.Workload)
_CLUSTERS = table_of(tables.Cluster)

WORKLOAD_COLUMNS = ("global_batch", "seq_len", "dtype", "optimizer", "recompute")


def put_workload(connection: Connection, model: Model, workload: Workload) -> int:
    """Write model and workload, unless they are there; the workload's id."""
    return put_one(
        connection,
        _WORKLOADS,
        {
            "model_id": put_model(connection, model),
            "global_batch": workload.global_batch,
            "seq_len": workload.seq_len,
            "dtype": workload.dtype.value,
            "optimizer": workload.optimizer.value,
            "recompute": workload.recompute.value,
        },
    )


def put_cluster(connection: Connection, cluster: Cluster) -> int:
    """Write a cluster, unless it is there; its id."""
    document = json_ready(f"cluster {cluster.name}", cluster.to_json())
    return put_one(
        connection,
        _CLUSTERS,
        {
            "hash": hashlib.sha256(canonical(document).encode()).hexdigest()[:16],
            "name": cluster.name,
            "gpus": cluster.gpus,
            "document": document,
            "created": utc_now(),
        },
    )


def _uids(connection: Connection, runs: Iterable[int]) -> list[str]:
    """The uids of profile runs, sorted. Raises StoreError for one that is not in the store."""
    wanted = sorted(set(runs))
    query = select(_RUNS.c.id, _RUNS.c.uid).where(_RUNS.c.id.in_(wanted))
    found = dict(connection.execute(query).all())
    for run in wanted:
        if run not in found:
            raise StoreError(
                f"the plan's prediction names profile run {run}, which is not in the store"
            )
    return sorted(found.values())


def plan_identity(
    hash_of_plan: str, planner: str, options: Mapping[str, Any], uids: Sequence[str]
) -> str:
    """What makes two plans one: 32 hex digits, the same in every store."""
    text = canonical([hash_of_plan, planner, options, list(uids)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _status_of(plan: Plan) -> str:
    if plan.prediction is None:
        return "unpriced"
    return "fits" if plan.prediction.fits else "does not fit"


def _memory_of(plan: Plan) -> float | None:
    if plan.prediction is None:
        return None
    stages = [stage for template in plan.prediction.stages for stage in template]
    return max((stage.memory.total for stage in stages), default=None)


_PLAN_COLUMNS = (
    *(_PLANS.c[name] for name in ("id", "plan_hash", "planner", "document", "prediction")),
    *(_PLANS.c[name] for name in ("status", "memory_bytes", "planning_s", "evaluations")),
    *(_PLANS.c[name] for name in ("rejected", "options", "created", "updated")),
    _MODELS.c.name.label("model_name"),
    *(_MODELS.c[name] for name in ("config_hash", "config")),
    *(
        _WORKLOADS.c[name]
        for name in ("global_batch", "seq_len", "dtype", "optimizer", "recompute")
    ),
    _CLUSTERS.c.document.label("cluster"),
)


def _read_plan(row: Any, runs: Sequence[int]) -> StoredPlan:
    document = {
        **row.document,
        "planner": row.planner,
        "model": {"name": row.model_name, "config_hash": row.config_hash, "config": row.config},
        "workload": {name: getattr(row, name) for name in WORKLOAD_COLUMNS},
        "cluster": row.cluster,
    }
    if row.prediction is not None:
        document["prediction"] = row.prediction
    return StoredPlan(
        id=row.id,
        plan=plan_from_document(document, f"plan {row.id} of the store"),
        plan_hash=row.plan_hash,
        planning_s=row.planning_s,
        evaluations=row.evaluations,
        rejected=row.rejected,
        options=row.options,
        created=row.created,
        profile_runs=tuple(runs),
        status=row.status,
        memory_bytes=row.memory_bytes,
        updated=row.updated,
    )


class PlanQueries(Database):
    """Plans and their predictions."""

    def add_plan(
        self,
        plan: Plan,
        *,
        planning_s: float = 0.0,
        evaluations: int = 0,
        rejected: Mapping[str, int] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> int:
        """Write a plan with its model, workload, cluster and prediction; its id.

        The same plan by the same planner with the same options from the same profile runs has the
        same id; its prediction and effort are then those of this call. Raises StoreError where the
        prediction names a profile run that is not in the store.
        """
        document = plan_to_document(plan)
        prediction = document.pop("prediction", None)
        kept_options = json_ready("options of the plan", dict(options or {}))
        runs = plan.prediction.profile_runs if plan.prediction else ()
        hash_of_plan = plan_hash(plan)
        now = utc_now()
        with self.write() as connection:
            uids = _uids(connection, runs)
            plan_id = put_one(
                connection,
                _PLANS,
                {
                    "identity": plan_identity(hash_of_plan, plan.planner, kept_options, uids),
                    "plan_hash": hash_of_plan,
                    "planner": plan.planner,
                    "workload_id": put_workload(connection, plan.model, plan.workload),
                    "cluster_id": put_cluster(connection, plan.cluster),
                    "document": {"schema": document["schema"], "templates": document["templates"]},
                    "prediction": json_ready("the plan's prediction", prediction),
                    "iteration_ms": maybe(
                        "plan",
                        "iteration_ms",
                        plan.prediction.iteration_ms if plan.prediction else None,
                    ),
                    "bound_iteration_ms": maybe(
                        "plan",
                        "bound_iteration_ms",
                        plan.prediction.bound_iteration_ms if plan.prediction else None,
                    ),
                    "memory_bytes": _memory_of(plan),
                    "status": _status_of(plan),
                    "planning_s": number("plan", "planning_s", planning_s),
                    "evaluations": big("plan", "evaluations", evaluations),
                    "rejected": json_ready("rejections of the plan", dict(rejected or {})),
                    "options": kept_options,
                    "created": now,
                    "updated": now,
                },
                replace=(
                    *("prediction", "iteration_ms", "bound_iteration_ms", "memory_bytes"),
                    *("status", "planning_s", "evaluations", "rejected", "updated"),
                ),
            )
            put(
                connection,
                _PLAN_RUNS,
                [{"plan_id": plan_id, "profile_run_id": run} for run in sorted(set(runs))],
                replace=False,
            )
            return plan_id

    def plans(self) -> list[StoredPlan]:
        """All plans, oldest first."""
        return self._plans()

    def plan(self, plan_id: int) -> StoredPlan:
        """The plan of that id. Raises StoreError where there is none."""
        found = self._plans(_PLANS.c.id == plan_id)
        if not found:
            raise StoreError(f"no plan {plan_id} in the store; arachne-plan list shows them")
        return found[0]

    def plans_like(self, hash_of_plan: str) -> list[StoredPlan]:
        """The plans with that plan_hash, oldest first: one layout, other options or profiles."""
        return self._plans(_PLANS.c.plan_hash == hash_of_plan)

    def _plans(self, *rules: ColumnElement[bool]) -> list[StoredPlan]:
        query = (
            select(*_PLAN_COLUMNS)
            .select_from(_PLANS)
            .join(_WORKLOADS, _WORKLOADS.c.id == _PLANS.c.workload_id)
            .join(_MODELS, _MODELS.c.id == _WORKLOADS.c.model_id)
            .join(_CLUSTERS, _CLUSTERS.c.id == _PLANS.c.cluster_id)
            .where(*rules)
            .order_by(_PLANS.c.id)
        )
        with self.read() as connection:
            rows = connection.execute(query).all()
            used = select(_PLAN_RUNS.c.plan_id, _PLAN_RUNS.c.profile_run_id).order_by(
                _PLAN_RUNS.c.profile_run_id
            )
            if rules:
                used = used.where(_PLAN_RUNS.c.plan_id.in_([row.id for row in rows]))
            runs: dict[int, list[int]] = {}
            for plan_id, run_id in connection.execute(used):
                runs.setdefault(plan_id, []).append(run_id)
        return [_read_plan(row, runs.get(row.id, ())) for row in rows]
