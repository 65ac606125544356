"""What came in and belongs to no job."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "unplaced_streams",
        sa.Column("digest", sa.Text, primary_key=True),
        sa.Column("sender", sa.Text, nullable=False),
        sa.Column("cluster", sa.Text, nullable=False),
        sa.Column("protocol", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("labels", sa.Text, nullable=False),
        sa.Column("sample", sa.Text, nullable=False),
        sa.Column("lines", sa.BigInteger, nullable=False),
        sa.Column("first_seen", sa.Double, nullable=False),
        sa.Column("last_seen", sa.Double, nullable=False),
    )
    op.create_index("unplaced_streams_sender", "unplaced_streams", ["sender", "last_seen"])
    op.create_index("unplaced_streams_last_seen", "unplaced_streams", ["last_seen"])
