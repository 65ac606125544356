"""Replays of the site's own cases: how the rules did over time."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "case_replays",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("case_replays_time", "case_replays", ["time"])
