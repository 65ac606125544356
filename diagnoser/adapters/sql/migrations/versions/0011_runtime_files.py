"""Dumps of the ranks of an attempt, and what agents are asked to collect."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "runtime_files",
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("attempt", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("rank", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("provenance", sa.Text, primary_key=True),
        sa.Column("received", sa.Double, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("stored", sa.BigInteger, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.ForeignKeyConstraint(["job", "attempt"], ["attempts.job", "attempts.number"], ondelete="CASCADE"),
    )
    op.create_table(
        "evidence_requests",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("attempt", sa.BigInteger, nullable=False),
        sa.Column("since", sa.Double, nullable=False),
        sa.Column("cluster", sa.Text, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("lease", sa.Double, nullable=False),
        sa.Column("result", sa.Text),
        sa.Column("body", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["job", "attempt"], ["attempts.job", "attempts.number"], ondelete="CASCADE"),
    )
    op.create_index("evidence_requests_silence", "evidence_requests", ["job", "attempt", "since"], unique=True)
    op.create_index("evidence_requests_open", "evidence_requests", ["cluster", "result", "created"])
