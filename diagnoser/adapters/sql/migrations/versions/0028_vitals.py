"""When agents were last seen, and what people were told that the service cannot see."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "agents",
        sa.Column("cluster", sa.Text, primary_key=True),
        sa.Column("executor", sa.Text, nullable=False),
        sa.Column("last_seen", sa.Double, nullable=False),
    )
    op.create_table(
        "blind_spots",
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("subject", sa.Text, primary_key=True),
        sa.Column("since", sa.Double, nullable=False),
        sa.Column("what", sa.Text, nullable=False),
        sa.Column("lost", sa.Text, nullable=False),
    )
