"""Tokens, by the hash of their secrets, and what each may do."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tokens",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("cluster", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("expires", sa.Double),
        sa.Column("last_used", sa.Double),
        sa.Column("revoked", sa.Double),
        sa.Column("old_hash", sa.Text),
        sa.Column("old_until", sa.Double),
        sa.Column("old_used", sa.Double),
    )
    op.create_index("tokens_hash", "tokens", ["hash"], unique=True)
    op.create_index("tokens_old_hash", "tokens", ["old_hash"], unique=True)
