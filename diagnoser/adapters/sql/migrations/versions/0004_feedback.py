"""Feedback on diagnoses, and the confirmed incidents that similar failures are compared with."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "feedback",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("diagnosis", sa.Text, sa.ForeignKey("diagnoses.id", ondelete="CASCADE"), nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("feedback_diagnosis", "feedback", ["diagnosis", "id"])
    op.create_table(
        "incidents",
        sa.Column("diagnosis", sa.Text, sa.ForeignKey("diagnoses.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("changed", sa.Double, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("vectors", sa.LargeBinary, nullable=False),
    )
    op.create_index("incidents_changed", "incidents", ["changed"])
