"""Collectives inside the layers of a stage.

Revision ID: 0003
Revises: 0002
Created: 2026-12-01
"""

from __future__ import annotations

from alembic import op

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: None = None
depends_on: None = None


def upgrade() -> None:
    # As SQL, with the check at the column: SQLite then needs no copy of the table (which keeps or
    # forgets the other checks, by the version of SQLAlchemy), and the check goes with the column.
    op.execute(
        "ALTER TABLE stage_times ADD COLUMN comm_ms FLOAT "
        "CONSTRAINT ck_stage_times_comm_not_negative CHECK (comm_ms >= 0)"
    )


def downgrade() -> None:
    op.drop_column("stage_times", "comm_ms")
