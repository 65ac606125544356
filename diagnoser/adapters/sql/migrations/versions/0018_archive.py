"""Which object of the archive holds which original lines."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "archive_segments",
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("attempt", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("start", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("first_stream", sa.LargeBinary, nullable=False),
        sa.Column("last_stream", sa.LargeBinary, nullable=False),
        sa.Column("first_line", sa.BigInteger, nullable=False),
        sa.Column("last_line", sa.BigInteger, nullable=False),
        sa.Column("stored", sa.Double, nullable=False),
        sa.ForeignKeyConstraint(["job", "attempt"], ["attempts.job", "attempts.number"], ondelete="CASCADE"),
    )
    op.create_index("archive_segments_lines", "archive_segments", ["job", "attempt", "last_line"])
    op.create_index("archive_segments_key", "archive_segments", ["key"])
    op.create_index("archive_segments_stored", "archive_segments", ["stored", "key"])
