"""Who vouches for a stream, and which nodes the scheduler gave an attempt."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_KEPT = ("job", "attempt", "source", "node", "rank", "covered", "version")


def upgrade() -> None:
    op.create_table(
        "allocations",
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("attempt", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("nodes", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["job", "attempt"], ["attempts.job", "attempts.number"], ondelete="CASCADE"),
    )
    _streams()


def _streams() -> None:
    """A new table, for the key changes. Whose lines the stored streams hold is not known, so they are the job's; those
    of node logs go on as the node's or the scheduler's.
    """
    op.create_table(
        "streams_new",
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("attempt", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("source", sa.Text, primary_key=True),
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("rank", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("provenance", sa.Text, primary_key=True),
        sa.Column("covered", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["job", "attempt"], ["attempts.job", "attempts.number"], ondelete="CASCADE"),
    )
    stored = sa.table("streams", *map(sa.column, _KEPT))
    new = sa.table("streams_new", *map(sa.column, (*_KEPT, "provenance")))
    is_job, is_scheduler = stored.c.job.not_like("~node/%"), stored.c.source == "scheduler"
    provenance = sa.case((is_job, "job"), (is_scheduler, "scheduler"), else_="node")
    op.execute(sa.insert(new).from_select([*_KEPT, "provenance"], sa.select(*stored.c, provenance)))
    op.drop_table("streams")
    op.rename_table("streams_new", "streams")
