"""Wrong passwords, counted by all replicas together."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "login_tries",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("times", sa.Text, nullable=False),
        sa.Column("last", sa.Double, nullable=False),
    )
    op.create_index("login_tries_last", "login_tries", ["last"])
