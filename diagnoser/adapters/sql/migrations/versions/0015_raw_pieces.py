"""Lines of small requests are stored as they came, and compressed later."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("deltas", sa.Column("raw", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("attempts", sa.Column("raw_bytes", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("attempts", sa.Column("streams", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("attempts", sa.Column("compacting", sa.Double, nullable=False, server_default="0"))
    has_raw = sa.text("raw_bytes > 0")
    op.create_index("attempts_raw", "attempts", ["last_line"], postgresql_where=has_raw, sqlite_where=has_raw)
