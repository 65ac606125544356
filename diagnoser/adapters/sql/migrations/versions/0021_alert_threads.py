"""What receivers of alerts were told of an incident, and which incidents are silenced."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "alert_threads",
        sa.Column("receiver", sa.Text, primary_key=True),
        sa.Column("incident", sa.Text, primary_key=True),
        sa.Column("handle", sa.Text, nullable=False),
        sa.Column("told", sa.Double, nullable=False),
        sa.Column("held_back", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_alert_threads_told", "alert_threads", ["told"])
    op.create_table(
        "alert_silences",
        sa.Column("incident", sa.Text, primary_key=True),
        sa.Column("until", sa.Double, nullable=False),
        sa.Column("by", sa.Text, nullable=False),
    )
