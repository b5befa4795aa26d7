"""The tables of the store (DESIGN section 4). Times in ms, memory and messages in bytes.

Each table has one unique constraint: what makes its row the same row in every store, where ids
differ. Text columns are never NULL, so that an empty CSV field means one thing.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from db.columns import PlainText, UtcDateTime

NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_name)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Base of all tables."""

    metadata = MetaData(naming_convention=NAMES)
    type_annotation_map = {  # noqa: RUF012
        str: PlainText(),
        int: Integer(),
        float: Float(),
        datetime: UtcDateTime(),
        dict[str, Any]: JSON(none_as_null=True),
        list[Any]: JSON(none_as_null=True),
    }


class StoreRevision(Base):
    """When the schema came to a revision, and which Arachne brought it there."""

    __tablename__ = "store_revisions"
    __table_args__ = (UniqueConstraint("revision"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    revision: Mapped[str]
    arachne_version: Mapped[str]
    applied: Mapped[datetime]


class GpuType(Base):
    """A GPU type with the catalogue figures it had when it was first used here."""

    __tablename__ = "gpu_types"
    __table_args__ = (UniqueConstraint("name"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    memory_mib: Mapped[int | None]
    tflops: Mapped[float | None]
    memory_gb_per_s: Mapped[float | None]
    nvlink_gb_per_s: Mapped[float | None]
    pcie_gb_per_s: Mapped[float | None]
    sms: Mapped[int | None]
    default_topology: Mapped[str]
    price_per_hour: Mapped[float]


class Model(Base):
    """A model by name and config; the same config may come under two names."""

    __tablename__ = "models"
    __table_args__ = (UniqueConstraint("config_hash", "name"), Index(None, "name"))
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    config_hash: Mapped[str]
    config: Mapped[dict[str, Any]]
    parameters: Mapped[int] = mapped_column(BigInteger)
    blocks: Mapped[int]
    created: Mapped[datetime]


class LayerType(Base):
    """A repeated structure, shared by all models that have it."""

    __tablename__ = "layer_types"
    __table_args__ = (UniqueConstraint("hash"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    hash: Mapped[str]
    kind: Mapped[str]
    shapes: Mapped[list[Any]]
    parameters: Mapped[int] = mapped_column(BigInteger)
    expert_parameters: Mapped[int] = mapped_column(BigInteger)


class ModelLayer(Base):
    """How many layers of a type a model has; `position` orders its types by first appearance."""

    __tablename__ = "model_layers"
    __table_args__ = (
        UniqueConstraint("model_id", "layer_type_id"),
        Index(None, "layer_type_id"),
        CheckConstraint("count >= 1", "count_positive"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey("models.id", ondelete="CASCADE"))
    layer_type_id: Mapped[int] = mapped_column(ForeignKey("layer_types.id"))
    position: Mapped[int]
    count: Mapped[int]


class ProfileRun(Base):
    """One act of measuring, importing or estimating.

    uid: the same in every store the run is copied to. deleted: when its rows were deleted although
    plans had used them; the run itself stays, so that those plans can still name it.
    """

    __tablename__ = "profile_runs"
    __table_args__ = (
        UniqueConstraint("uid"),
        Index(None, "origin"),
        CheckConstraint("source IN ('measured', 'imported', 'estimated')", "source_known"),
        CheckConstraint("status IN ('running', 'complete', 'failed')", "status_known"),
        # An id must never come back after a deletion: plans name runs by it.
        {"sqlite_autoincrement": True},
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    uid: Mapped[str]
    source: Mapped[str]
    origin: Mapped[str]
    host: Mapped[str]
    licence: Mapped[str]
    driver: Mapped[str]
    torch_version: Mapped[str]
    nccl_version: Mapped[str]
    seed: Mapped[int] = mapped_column(BigInteger)
    reference_ms: Mapped[float | None]
    status: Mapped[str]
    started: Mapped[datetime]
    ended: Mapped[datetime | None]
    deleted: Mapped[datetime | None]


class LayerProfile(Base):
    """One layer timed on one GPU type, or why it could not be."""

    __tablename__ = "layer_profiles"
    __table_args__ = (
        UniqueConstraint(
            "run_id",
            "gpu_type_id",
            "layer_type_id",
            "tp",
            "micro_batch",
            "seq_len",
            "dtype",
            "recompute",
            "optimizer",
            "topology",
            "ep",
            "etp",
        ),
        Index(None, "layer_type_id", "gpu_type_id", "seq_len"),
        CheckConstraint(
            "tp >= 1 AND micro_batch >= 1 AND seq_len >= 1 AND ep >= 1 AND etp >= 1",
            "key_positive",
        ),
        CheckConstraint(
            "forward_ms >= 0 AND backward_ms >= 0 AND comm_ms >= 0 AND update_ms >= 0",
            "times_not_negative",
        ),
        CheckConstraint(
            "activation_bytes >= 0 AND transient_bytes >= 0 AND parameter_bytes >= 0 "
            "AND expert_parameter_bytes >= 0",
            "bytes_not_negative",
        ),
        CheckConstraint(
            "forward_mad_ms >= 0 AND backward_mad_ms >= 0 AND comm_mad_ms >= 0 "
            "AND update_mad_ms >= 0",
            "spreads_not_negative",
        ),
        CheckConstraint(
            "status <> 'ok' OR (forward_ms IS NOT NULL AND backward_ms IS NOT NULL "
            "AND comm_ms IS NOT NULL AND update_ms IS NOT NULL AND activation_bytes IS NOT NULL "
            "AND transient_bytes IS NOT NULL AND parameter_bytes IS NOT NULL "
            "AND expert_parameter_bytes IS NOT NULL AND samples IS NOT NULL)",
            "ok_has_figures",
        ),
        CheckConstraint("samples >= 1", "samples_positive"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("profile_runs.id", ondelete="CASCADE"))
    gpu_type_id: Mapped[int] = mapped_column(ForeignKey("gpu_types.id"))
    layer_type_id: Mapped[int] = mapped_column(ForeignKey("layer_types.id"))
    tp: Mapped[int]
    micro_batch: Mapped[int]
    seq_len: Mapped[int]
    dtype: Mapped[str]
    recompute: Mapped[str]
    optimizer: Mapped[str]
    topology: Mapped[str]
    ep: Mapped[int]
    etp: Mapped[int]
    status: Mapped[str]
    reason: Mapped[str]
    forward_ms: Mapped[float | None]
    backward_ms: Mapped[float | None]
    comm_ms: Mapped[float | None]
    update_ms: Mapped[float | None]
    activation_bytes: Mapped[int | None] = mapped_column(BigInteger)
    transient_bytes: Mapped[int | None] = mapped_column(BigInteger)
    parameter_bytes: Mapped[int | None] = mapped_column(BigInteger)
    expert_parameter_bytes: Mapped[int | None] = mapped_column(BigInteger)
    samples: Mapped[int | None]
    forward_mad_ms: Mapped[float | None]
    backward_mad_ms: Mapped[float | None]
    comm_mad_ms: Mapped[float | None]
    update_mad_ms: Mapped[float | None]
    comm_included: Mapped[bool]


class LinkProfile(Base):
    """Time of one transfer of one size; the peer type equals the type but for p2p between two."""

    __tablename__ = "link_profiles"
    __table_args__ = (
        UniqueConstraint(
            "run_id", "gpu_type_id", "peer_gpu_type_id", "topology", "operation", "ranks", "nbytes"
        ),
        Index(None, "gpu_type_id", "peer_gpu_type_id"),
        CheckConstraint("ranks >= 2 AND nbytes >= 0 AND samples >= 1", "key_positive"),
        CheckConstraint("time_ms >= 0 AND mad_ms >= 0", "times_not_negative"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("profile_runs.id", ondelete="CASCADE"))
    gpu_type_id: Mapped[int] = mapped_column(ForeignKey("gpu_types.id"))
    peer_gpu_type_id: Mapped[int] = mapped_column(ForeignKey("gpu_types.id"))
    topology: Mapped[str]
    operation: Mapped[str]
    ranks: Mapped[int]
    nbytes: Mapped[int] = mapped_column(BigInteger)
    time_ms: Mapped[float]
    samples: Mapped[int]
    mad_ms: Mapped[float | None]


class HostProfile(Base):
    """What a process costs before any layer runs; usable memory is before any head-room."""

    __tablename__ = "host_profiles"
    __table_args__ = (
        UniqueConstraint("run_id", "gpu_type_id"),
        Index(None, "gpu_type_id"),
        CheckConstraint("host_ms >= 0 AND host_mad_ms >= 0", "times_not_negative"),
        CheckConstraint("framework_bytes >= 0 AND usable_bytes >= 0", "bytes_not_negative"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("profile_runs.id", ondelete="CASCADE"))
    gpu_type_id: Mapped[int] = mapped_column(ForeignKey("gpu_types.id"))
    host_ms: Mapped[float]
    framework_bytes: Mapped[int] = mapped_column(BigInteger)
    usable_bytes: Mapped[int] = mapped_column(BigInteger)
    host_mad_ms: Mapped[float | None]


class Cluster(Base):
    """A cluster as resolved: one entry a node. hash: of that document."""

    __tablename__ = "clusters"
    __table_args__ = (UniqueConstraint("hash"), CheckConstraint("gpus >= 1", "gpus_positive"))
    id: Mapped[int] = mapped_column(primary_key=True)
    hash: Mapped[str]
    name: Mapped[str]
    gpus: Mapped[int]
    document: Mapped[dict[str, Any]]
    created: Mapped[datetime]


class Workload(Base):
    """How a model is trained; batch in sequences, length in tokens."""

    __tablename__ = "workloads"
    __table_args__ = (
        UniqueConstraint("model_id", "global_batch", "seq_len", "dtype", "optimizer", "recompute"),
        CheckConstraint("global_batch >= 1 AND seq_len >= 1", "sizes_positive"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey("models.id"))
    global_batch: Mapped[int]
    seq_len: Mapped[int]
    dtype: Mapped[str]
    optimizer: Mapped[str]
    recompute: Mapped[str]


class Plan(Base):
    """A plan and what it is predicted to do.

    identity: hash of plan, planner, options and the uids of the profile runs used. document: the
    templates; model, workload and cluster stand in their own tables. memory_bytes: predicted for
    the fullest GPU. status: `fits`, `does not fit` or `unpriced`.
    """

    __tablename__ = "plans"
    __table_args__ = (
        UniqueConstraint("identity"),
        Index(None, "plan_hash"),
        Index(None, "workload_id"),
        Index(None, "cluster_id"),
        CheckConstraint("iteration_ms >= 0 AND bound_iteration_ms >= 0", "times_not_negative"),
        CheckConstraint("planning_s >= 0 AND evaluations >= 0", "effort_not_negative"),
        CheckConstraint("status IN ('fits', 'does not fit', 'unpriced')", "status_known"),
        {"sqlite_autoincrement": True},
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    identity: Mapped[str]
    plan_hash: Mapped[str]
    planner: Mapped[str]
    workload_id: Mapped[int] = mapped_column(ForeignKey("workloads.id"))
    cluster_id: Mapped[int] = mapped_column(ForeignKey("clusters.id"))
    document: Mapped[dict[str, Any]]
    prediction: Mapped[dict[str, Any] | None]
    iteration_ms: Mapped[float | None]
    bound_iteration_ms: Mapped[float | None]
    memory_bytes: Mapped[float | None]
    status: Mapped[str]
    planning_s: Mapped[float]
    evaluations: Mapped[int] = mapped_column(BigInteger)
    rejected: Mapped[dict[str, Any]]
    options: Mapped[dict[str, Any]]
    created: Mapped[datetime]
    updated: Mapped[datetime]


class PlanProfileRun(Base):
    """The profile runs that a prediction came from."""

    __tablename__ = "plan_profile_runs"
    __table_args__ = (UniqueConstraint("plan_id", "profile_run_id"), Index(None, "profile_run_id"))
    id: Mapped[int] = mapped_column(primary_key=True)
    plan_id: Mapped[int] = mapped_column(ForeignKey("plans.id", ondelete="CASCADE"))
    profile_run_id: Mapped[int] = mapped_column(ForeignKey("profile_runs.id"))


class Measurement(Base):
    """One iteration of one run of a plan; peak_bytes has an entry per rank."""

    __tablename__ = "measurements"
    __table_args__ = (
        UniqueConstraint("plan_id", "run", "iteration"),
        CheckConstraint("iteration >= 0 AND samples >= 1", "key_positive"),
        CheckConstraint("iteration_ms >= 0", "times_not_negative"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    plan_id: Mapped[int] = mapped_column(ForeignKey("plans.id"))
    run: Mapped[str]
    iteration: Mapped[int]
    host: Mapped[str]
    origin: Mapped[str]
    iteration_ms: Mapped[float]
    samples: Mapped[int]
    warm_up: Mapped[bool]
    loss: Mapped[float | None]
    peak_bytes: Mapped[list[Any]]
    drift: Mapped[float | None]
    created: Mapped[datetime]


class StageTime(Base):
    """What one stage took in one measured iteration; ms, as `specs.measurement.StageTimes`."""

    __tablename__ = "stage_times"
    __table_args__ = (
        UniqueConstraint("measurement_id", "template", "stage"),
        CheckConstraint("template >= 0 AND stage >= 0", "key_not_negative"),
        CheckConstraint(
            "forward_ms >= 0 AND backward_ms >= 0 AND send_ms >= 0 AND receive_ms >= 0 "
            "AND sync_ms >= 0 AND update_ms >= 0",
            "times_not_negative",
        ),
        CheckConstraint("comm_ms >= 0", "comm_not_negative"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    measurement_id: Mapped[int] = mapped_column(ForeignKey("measurements.id", ondelete="CASCADE"))
    template: Mapped[int]
    stage: Mapped[int]
    forward_ms: Mapped[float]
    backward_ms: Mapped[float]
    send_ms: Mapped[float]
    receive_ms: Mapped[float]
    sync_ms: Mapped[float]
    update_ms: Mapped[float]
    comm_ms: Mapped[float | None]


class Trace(Base):
    """One iteration of a run, action by action; tracks: first replica of each template."""

    __tablename__ = "traces"
    __table_args__ = (
        UniqueConstraint("plan_id", "run"),
        CheckConstraint("iteration >= 0", "key_positive"),
        CheckConstraint("iteration_ms >= 0", "times_not_negative"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    plan_id: Mapped[int] = mapped_column(ForeignKey("plans.id"))
    run: Mapped[str]
    iteration: Mapped[int]
    iteration_ms: Mapped[float]
    tracks: Mapped[list[Any]]
    created: Mapped[datetime]


class Reconfiguration(Base):
    """One live change from a plan to another: ms of each phase, bytes moved per rank."""

    __tablename__ = "reconfigurations"
    __table_args__ = (
        UniqueConstraint("uid"),
        Index(None, "old_plan_id"),
        Index(None, "new_plan_id"),
        CheckConstraint("repeat >= 0", "repeat_not_negative"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    uid: Mapped[str]
    event: Mapped[str]
    run: Mapped[str]
    host: Mapped[str]
    origin: Mapped[str]
    old_plan_id: Mapped[int | None] = mapped_column(ForeignKey("plans.id"))
    new_plan_id: Mapped[int | None] = mapped_column(ForeignKey("plans.id"))
    phases_ms: Mapped[dict[str, Any]]
    bytes_per_rank: Mapped[list[Any]]
    repeat: Mapped[int]
    status: Mapped[str]
    reason: Mapped[str]
    created: Mapped[datetime]


class Comparison(Base):
    """Planners asked the same question."""

    __tablename__ = "comparisons"
    __table_args__ = (
        UniqueConstraint("uid"),
        Index(None, "workload_id"),
        Index(None, "cluster_id"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    uid: Mapped[str]
    title: Mapped[str]
    suite: Mapped[str]
    origin: Mapped[str]
    workload_id: Mapped[int] = mapped_column(ForeignKey("workloads.id"))
    cluster_id: Mapped[int] = mapped_column(ForeignKey("clusters.id"))
    options: Mapped[dict[str, Any]]
    created: Mapped[datetime]


class ComparisonRow(Base):
    """What one planner answered; iteration_ms is the plan's price by our own cost model."""

    __tablename__ = "comparison_rows"
    __table_args__ = (
        UniqueConstraint("comparison_id", "planner"),
        Index(None, "plan_id"),
        CheckConstraint("iteration_ms >= 0", "times_not_negative"),
        CheckConstraint("search_s >= 0 AND evaluations >= 0", "effort_not_negative"),
        CheckConstraint("status IN ('ok', 'no plan', 'budget', 'unsupported')", "status_known"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    comparison_id: Mapped[int] = mapped_column(ForeignKey("comparisons.id", ondelete="CASCADE"))
    planner: Mapped[str]
    plan_id: Mapped[int | None] = mapped_column(ForeignKey("plans.id"))
    status: Mapped[str]
    reason: Mapped[str]
    iteration_ms: Mapped[float | None]
    search_s: Mapped[float]
    evaluations: Mapped[int] = mapped_column(BigInteger)
    rejected: Mapped[dict[str, Any]]


class SearchCurvePoint(Base):
    """Best plan so far after so many evaluations; best_iteration_ms is NULL before the first."""

    __tablename__ = "search_curves"
    __table_args__ = (
        UniqueConstraint("comparison_id", "planner", "phase", "seed", "evaluations"),
        CheckConstraint(
            "evaluations >= 0 AND elapsed_s >= 0 AND best_iteration_ms >= 0", "not_negative"
        ),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    comparison_id: Mapped[int] = mapped_column(ForeignKey("comparisons.id", ondelete="CASCADE"))
    planner: Mapped[str]
    phase: Mapped[str]
    seed: Mapped[int] = mapped_column(BigInteger)
    evaluations: Mapped[int] = mapped_column(BigInteger)
    best_iteration_ms: Mapped[float | None]
    elapsed_s: Mapped[float | None]


class Policy(Base):
    """A trained policy: how it was made and how good it is."""

    __tablename__ = "policies"
    __table_args__ = (
        UniqueConstraint("uid"),
        Index(None, "file_hash"),
        CheckConstraint("steps >= 0 AND training_s >= 0", "effort_not_negative"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    uid: Mapped[str]
    run: Mapped[str]
    recipe: Mapped[str]
    origin: Mapped[str]
    host: Mapped[str]
    models: Mapped[list[Any]]
    metrics: Mapped[dict[str, Any]]
    seed: Mapped[int] = mapped_column(BigInteger)
    steps: Mapped[int] = mapped_column(BigInteger)
    training_s: Mapped[float]
    file: Mapped[str]
    file_hash: Mapped[str]
    status: Mapped[str]
    created: Mapped[datetime]
