"""Runs that fell silent are found by their last line, and looked at by their own rhythm."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("patience", sa.Double, nullable=False, server_default="0"))
    op.add_column("attempts", sa.Column("looked_at", sa.BigInteger, nullable=False, server_default="-1"))
    is_running = sa.text("revision > diagnosed AND fatal IS NULL AND ended IS NULL")
    op.create_index("attempts_running", "attempts", ["last_line"], postgresql_where=is_running, sqlite_where=is_running)
