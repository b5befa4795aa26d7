"""Times of stages and traces of runs.

Revision ID: 0002
Revises: 0001
Created: 2026-11-30
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: None = None
depends_on: None = None

_TIMES = ("forward_ms", "backward_ms", "send_ms", "receive_ms", "sync_ms", "update_ms")


def upgrade() -> None:
    op.create_table(
        "stage_times",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("measurement_id", sa.Integer, nullable=False),
        sa.Column("template", sa.Integer, nullable=False),
        sa.Column("stage", sa.Integer, nullable=False),
        *(sa.Column(name, sa.Float, nullable=False) for name in _TIMES),
        sa.PrimaryKeyConstraint("id", name="pk_stage_times"),
        sa.UniqueConstraint(
            "measurement_id", "template", "stage", name="uq_stage_times_measurement_id"
        ),
        sa.ForeignKeyConstraint(
            ["measurement_id"],
            ["measurements.id"],
            name="fk_stage_times_measurement_id_measurements",
            ondelete="CASCADE",
        ),
        sa.CheckConstraint(
            "template >= 0 AND stage >= 0", name=op.f("ck_stage_times_key_not_negative")
        ),
        sa.CheckConstraint(
            " AND ".join(f"{name} >= 0" for name in _TIMES),
            name=op.f("ck_stage_times_times_not_negative"),
        ),
    )
    op.create_table(
        "traces",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("plan_id", sa.Integer, nullable=False),
        sa.Column("run", sa.String, nullable=False),
        sa.Column("iteration", sa.Integer, nullable=False),
        sa.Column("iteration_ms", sa.Float, nullable=False),
        sa.Column("tracks", sa.JSON, nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_traces"),
        sa.UniqueConstraint("plan_id", "run", name="uq_traces_plan_id"),
        sa.ForeignKeyConstraint(["plan_id"], ["plans.id"], name="fk_traces_plan_id_plans"),
        sa.CheckConstraint("iteration >= 0", name=op.f("ck_traces_key_positive")),
        sa.CheckConstraint("iteration_ms >= 0", name=op.f("ck_traces_times_not_negative")),
    )


def downgrade() -> None:
    op.drop_table("traces")
    op.drop_table("stage_times")
