"""The first schema.

Revision ID: 0001
Revises:
Created: 2026-11-30
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0001"
down_revision: str | None = None
branch_labels: None = None
depends_on: None = None


def upgrade() -> None:
    _create_catalogue()
    _create_profiles()
    _create_plans()
    _create_comparisons()


def downgrade() -> None:
    for table in (
        "policies",
        "search_curves",
        "comparison_rows",
        "comparisons",
        "reconfigurations",
        "measurements",
        "plan_profile_runs",
        "plans",
        "workloads",
        "clusters",
        "host_profiles",
        "link_profiles",
        "layer_profiles",
        "profile_runs",
        "model_layers",
        "layer_types",
        "models",
        "gpu_types",
        "store_revisions",
    ):
        op.drop_table(table)


def _key() -> sa.Column[int]:
    return sa.Column("id", sa.Integer, nullable=False)


def _text(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.String, nullable=False) for name in names]


def _whole(*names: str, big: bool = False, null: bool = False) -> list[sa.Column[int]]:
    kind = sa.BigInteger if big else sa.Integer
    return [sa.Column(name, kind, nullable=null) for name in names]


def _number(*names: str, null: bool = False) -> list[sa.Column[float]]:
    return [sa.Column(name, sa.Float, nullable=null) for name in names]


def _json(name: str, null: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.JSON, nullable=null)


def _moment(name: str, null: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=null)


def _primary(table: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint("id", name=f"pk_{table}")


def _unique(table: str, *columns: str) -> sa.UniqueConstraint:
    return sa.UniqueConstraint(*columns, name=f"uq_{table}_{columns[0]}")


def _check(table: str, name: str, rule: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(rule, name=op.f(f"ck_{table}_{name}"))


def _foreign(table: str, column: str, other: str, cascade: bool = False) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        [column],
        [f"{other}.id"],
        name=f"fk_{table}_{column}_{other}",
        ondelete="CASCADE" if cascade else None,
    )


def _index(table: str, *columns: str) -> None:
    op.create_index(f"ix_{table}_{columns[0]}", table, list(columns))


def _create_catalogue() -> None:
    op.create_table(
        "store_revisions",
        _key(),
        *_text("revision", "arachne_version"),
        _moment("applied"),
        _primary("store_revisions"),
        _unique("store_revisions", "revision"),
    )
    op.create_table(
        "gpu_types",
        _key(),
        *_text("name"),
        *_whole("memory_mib", null=True),
        *_number("tflops", "memory_gb_per_s", "nvlink_gb_per_s", "pcie_gb_per_s", null=True),
        *_whole("sms", null=True),
        *_text("default_topology"),
        *_number("price_per_hour"),
        _primary("gpu_types"),
        _unique("gpu_types", "name"),
    )
    op.create_table(
        "models",
        _key(),
        *_text("name", "config_hash"),
        _json("config"),
        *_whole("parameters", big=True),
        *_whole("blocks"),
        _moment("created"),
        _primary("models"),
        _unique("models", "config_hash", "name"),
    )
    _index("models", "name")
    op.create_table(
        "layer_types",
        _key(),
        *_text("hash", "kind"),
        _json("shapes"),
        *_whole("parameters", "expert_parameters", big=True),
        _primary("layer_types"),
        _unique("layer_types", "hash"),
    )
    op.create_table(
        "model_layers",
        _key(),
        *_whole("model_id", "layer_type_id", "position", "count"),
        _primary("model_layers"),
        _unique("model_layers", "model_id", "layer_type_id"),
        _foreign("model_layers", "model_id", "models", cascade=True),
        _foreign("model_layers", "layer_type_id", "layer_types"),
        _check("model_layers", "count_positive", "count >= 1"),
    )
    _index("model_layers", "layer_type_id")


def _create_profiles() -> None:
    op.create_table(
        "profile_runs",
        _key(),
        *_text("uid", "source", "origin", "host", "licence"),
        *_text("driver", "torch_version", "nccl_version"),
        *_whole("seed", big=True),
        *_number("reference_ms", null=True),
        *_text("status"),
        _moment("started"),
        _moment("ended", null=True),
        _moment("deleted", null=True),
        _primary("profile_runs"),
        _unique("profile_runs", "uid"),
        _check("profile_runs", "source_known", "source IN ('measured', 'imported', 'estimated')"),
        _check("profile_runs", "status_known", "status IN ('running', 'complete', 'failed')"),
        sqlite_autoincrement=True,
    )
    _index("profile_runs", "origin")
    op.create_table(
        "layer_profiles",
        _key(),
        *_whole("run_id", "gpu_type_id", "layer_type_id", "tp", "micro_batch", "seq_len"),
        *_text("dtype", "recompute", "optimizer", "topology"),
        *_whole("ep", "etp"),
        *_text("status", "reason"),
        *_number("forward_ms", "backward_ms", "comm_ms", "update_ms", null=True),
        *_whole(
            "activation_bytes",
            "transient_bytes",
            "parameter_bytes",
            "expert_parameter_bytes",
            big=True,
            null=True,
        ),
        *_whole("samples", null=True),
        *_number("forward_mad_ms", "backward_mad_ms", "comm_mad_ms", "update_mad_ms", null=True),
        sa.Column("comm_included", sa.Boolean, nullable=False),
        _primary("layer_profiles"),
        _unique(
            "layer_profiles",
            *("run_id", "gpu_type_id", "layer_type_id", "tp", "micro_batch", "seq_len"),
            *("dtype", "recompute", "optimizer", "topology", "ep", "etp"),
        ),
        _foreign("layer_profiles", "run_id", "profile_runs", cascade=True),
        _foreign("layer_profiles", "gpu_type_id", "gpu_types"),
        _foreign("layer_profiles", "layer_type_id", "layer_types"),
        _check(
            "layer_profiles",
            "key_positive",
            "tp >= 1 AND micro_batch >= 1 AND seq_len >= 1 AND ep >= 1 AND etp >= 1",
        ),
        _check(
            "layer_profiles",
            "times_not_negative",
            "forward_ms >= 0 AND backward_ms >= 0 AND comm_ms >= 0 AND update_ms >= 0",
        ),
        _check(
            "layer_profiles",
            "bytes_not_negative",
            "activation_bytes >= 0 AND transient_bytes >= 0 AND parameter_bytes >= 0 "
            "AND expert_parameter_bytes >= 0",
        ),
        _check(
            "layer_profiles",
            "spreads_not_negative",
            "forward_mad_ms >= 0 AND backward_mad_ms >= 0 AND comm_mad_ms >= 0 "
            "AND update_mad_ms >= 0",
        ),
        _check(
            "layer_profiles",
            "ok_has_figures",
            "status <> 'ok' OR (forward_ms IS NOT NULL AND backward_ms IS NOT NULL "
            "AND comm_ms IS NOT NULL AND update_ms IS NOT NULL AND activation_bytes IS NOT NULL "
            "AND transient_bytes IS NOT NULL AND parameter_bytes IS NOT NULL "
            "AND expert_parameter_bytes IS NOT NULL AND samples IS NOT NULL)",
        ),
        _check("layer_profiles", "samples_positive", "samples >= 1"),
    )
    _index("layer_profiles", "layer_type_id", "gpu_type_id", "seq_len")
    op.create_table(
        "link_profiles",
        _key(),
        *_whole("run_id", "gpu_type_id", "peer_gpu_type_id"),
        *_text("topology", "operation"),
        *_whole("ranks"),
        *_whole("nbytes", big=True),
        *_number("time_ms"),
        *_whole("samples"),
        *_number("mad_ms", null=True),
        _primary("link_profiles"),
        _unique(
            "link_profiles",
            "run_id",
            "gpu_type_id",
            "peer_gpu_type_id",
            "topology",
            "operation",
            "ranks",
            "nbytes",
        ),
        _foreign("link_profiles", "run_id", "profile_runs", cascade=True),
        _foreign("link_profiles", "gpu_type_id", "gpu_types"),
        _foreign("link_profiles", "peer_gpu_type_id", "gpu_types"),
        _check("link_profiles", "key_positive", "ranks >= 2 AND nbytes >= 0 AND samples >= 1"),
        _check("link_profiles", "times_not_negative", "time_ms >= 0 AND mad_ms >= 0"),
    )
    _index("link_profiles", "gpu_type_id", "peer_gpu_type_id")
    op.create_table(
        "host_profiles",
        _key(),
        *_whole("run_id", "gpu_type_id"),
        *_number("host_ms"),
        *_whole("framework_bytes", "usable_bytes", big=True),
        *_number("host_mad_ms", null=True),
        _primary("host_profiles"),
        _unique("host_profiles", "run_id", "gpu_type_id"),
        _foreign("host_profiles", "run_id", "profile_runs", cascade=True),
        _foreign("host_profiles", "gpu_type_id", "gpu_types"),
        _check("host_profiles", "times_not_negative", "host_ms >= 0 AND host_mad_ms >= 0"),
        _check("host_profiles", "bytes_not_negative", "framework_bytes >= 0 AND usable_bytes >= 0"),
    )
    _index("host_profiles", "gpu_type_id")


def _create_plans() -> None:
    op.create_table(
        "clusters",
        _key(),
        *_text("hash", "name"),
        *_whole("gpus"),
        _json("document"),
        _moment("created"),
        _primary("clusters"),
        _unique("clusters", "hash"),
        _check("clusters", "gpus_positive", "gpus >= 1"),
    )
    op.create_table(
        "workloads",
        _key(),
        *_whole("model_id", "global_batch", "seq_len"),
        *_text("dtype", "optimizer", "recompute"),
        _primary("workloads"),
        _unique(
            "workloads", "model_id", "global_batch", "seq_len", "dtype", "optimizer", "recompute"
        ),
        _foreign("workloads", "model_id", "models"),
        _check("workloads", "sizes_positive", "global_batch >= 1 AND seq_len >= 1"),
    )
    op.create_table(
        "plans",
        _key(),
        *_text("identity", "plan_hash", "planner"),
        *_whole("workload_id", "cluster_id"),
        _json("document"),
        _json("prediction", null=True),
        *_number("iteration_ms", "bound_iteration_ms", "memory_bytes", null=True),
        *_text("status"),
        *_number("planning_s"),
        *_whole("evaluations", big=True),
        _json("rejected"),
        _json("options"),
        _moment("created"),
        _moment("updated"),
        _primary("plans"),
        _unique("plans", "identity"),
        _foreign("plans", "workload_id", "workloads"),
        _foreign("plans", "cluster_id", "clusters"),
        _check("plans", "times_not_negative", "iteration_ms >= 0 AND bound_iteration_ms >= 0"),
        _check("plans", "effort_not_negative", "planning_s >= 0 AND evaluations >= 0"),
        _check("plans", "status_known", "status IN ('fits', 'does not fit', 'unpriced')"),
        sqlite_autoincrement=True,
    )
    for column in ("plan_hash", "workload_id", "cluster_id"):
        _index("plans", column)
    op.create_table(
        "plan_profile_runs",
        _key(),
        *_whole("plan_id", "profile_run_id"),
        _primary("plan_profile_runs"),
        _unique("plan_profile_runs", "plan_id", "profile_run_id"),
        _foreign("plan_profile_runs", "plan_id", "plans", cascade=True),
        _foreign("plan_profile_runs", "profile_run_id", "profile_runs"),
    )
    _index("plan_profile_runs", "profile_run_id")
    op.create_table(
        "measurements",
        _key(),
        *_whole("plan_id"),
        *_text("run"),
        *_whole("iteration"),
        *_text("host", "origin"),
        *_number("iteration_ms"),
        *_whole("samples"),
        sa.Column("warm_up", sa.Boolean, nullable=False),
        *_number("loss", null=True),
        _json("peak_bytes"),
        *_number("drift", null=True),
        _moment("created"),
        _primary("measurements"),
        _unique("measurements", "plan_id", "run", "iteration"),
        _foreign("measurements", "plan_id", "plans"),
        _check("measurements", "key_positive", "iteration >= 0 AND samples >= 1"),
        _check("measurements", "times_not_negative", "iteration_ms >= 0"),
    )
    op.create_table(
        "reconfigurations",
        _key(),
        *_text("uid", "event", "run", "host", "origin"),
        *_whole("old_plan_id", "new_plan_id", null=True),
        _json("phases_ms"),
        _json("bytes_per_rank"),
        *_whole("repeat"),
        *_text("status", "reason"),
        _moment("created"),
        _primary("reconfigurations"),
        _unique("reconfigurations", "uid"),
        _foreign("reconfigurations", "old_plan_id", "plans"),
        _foreign("reconfigurations", "new_plan_id", "plans"),
        _check("reconfigurations", "repeat_not_negative", "repeat >= 0"),
    )
    for column in ("old_plan_id", "new_plan_id"):
        _index("reconfigurations", column)


def _create_comparisons() -> None:
    op.create_table(
        "comparisons",
        _key(),
        *_text("uid", "title", "suite", "origin"),
        *_whole("workload_id", "cluster_id"),
        _json("options"),
        _moment("created"),
        _primary("comparisons"),
        _unique("comparisons", "uid"),
        _foreign("comparisons", "workload_id", "workloads"),
        _foreign("comparisons", "cluster_id", "clusters"),
    )
    for column in ("workload_id", "cluster_id"):
        _index("comparisons", column)
    op.create_table(
        "comparison_rows",
        _key(),
        *_whole("comparison_id"),
        *_text("planner"),
        *_whole("plan_id", null=True),
        *_text("status", "reason"),
        *_number("iteration_ms", null=True),
        *_number("search_s"),
        *_whole("evaluations", big=True),
        _json("rejected"),
        _primary("comparison_rows"),
        _unique("comparison_rows", "comparison_id", "planner"),
        _foreign("comparison_rows", "comparison_id", "comparisons", cascade=True),
        _foreign("comparison_rows", "plan_id", "plans"),
        _check("comparison_rows", "times_not_negative", "iteration_ms >= 0"),
        _check("comparison_rows", "effort_not_negative", "search_s >= 0 AND evaluations >= 0"),
        _check(
            "comparison_rows",
            "status_known",
            "status IN ('ok', 'no plan', 'budget', 'unsupported')",
        ),
    )
    _index("comparison_rows", "plan_id")
    op.create_table(
        "search_curves",
        _key(),
        *_whole("comparison_id"),
        *_text("planner", "phase"),
        *_whole("seed", "evaluations", big=True),
        *_number("best_iteration_ms", "elapsed_s", null=True),
        _primary("search_curves"),
        _unique("search_curves", "comparison_id", "planner", "phase", "seed", "evaluations"),
        _foreign("search_curves", "comparison_id", "comparisons", cascade=True),
        _check(
            "search_curves",
            "not_negative",
            "evaluations >= 0 AND elapsed_s >= 0 AND best_iteration_ms >= 0",
        ),
    )
    op.create_table(
        "policies",
        _key(),
        *_text("uid", "run", "recipe", "origin", "host"),
        _json("models"),
        _json("metrics"),
        *_whole("seed", "steps", big=True),
        *_number("training_s"),
        *_text("file", "file_hash", "status"),
        _moment("created"),
        _primary("policies"),
        _unique("policies", "uid"),
        _check("policies", "effort_not_negative", "steps >= 0 AND training_s >= 0"),
    )
    _index("policies", "file_hash")
