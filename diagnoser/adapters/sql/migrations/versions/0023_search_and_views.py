"""Jobs are found by how their ids begin, and views of lists are kept under a name."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":  # SQLite's own index of the ids does
        op.execute("CREATE INDEX jobs_by_beginning ON jobs (id text_pattern_ops)")
    op.create_table(
        "saved_views",
        sa.Column("listed", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("query", sa.Text, nullable=False),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
    )
