"""First tables: jobs and attempts, their streams, deltas and events, diagnoses, plans, and the outbox."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_OPEN = "revision > diagnosed AND (fatal IS NOT NULL OR ended IS NOT NULL)"


def upgrade() -> None:
    _jobs()
    _logs()
    _diagnoses()
    _effects()


def _of_attempt() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["job", "attempt"], ["attempts.job", "attempts.number"], ondelete="CASCADE")


def _jobs() -> None:
    op.create_table("jobs", sa.Column("id", sa.Text, primary_key=True), sa.Column("body", sa.Text, nullable=False))
    op.create_table(
        "attempts",
        sa.Column("job", sa.Text, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("opened", sa.Double, nullable=False),
        sa.Column("last_line", sa.Double, nullable=False),
        sa.Column("fatal", sa.Double),
        sa.Column("fatal_revision", sa.BigInteger, nullable=False),
        sa.Column("ended", sa.Double),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("diagnosed", sa.BigInteger, nullable=False),
        sa.Column("dirty", sa.Double, nullable=False),
        sa.Column("deltas", sa.BigInteger, nullable=False),
        sa.Column("token", sa.Text, nullable=False),
        sa.Column("lease", sa.Double, nullable=False),
        sa.Column("tries", sa.BigInteger, nullable=False),
    )
    open_ = sa.text(_OPEN)
    op.create_index("attempts_open", "attempts", ["lease"], postgresql_where=open_, sqlite_where=open_)
    op.create_index("attempts_deltas", "attempts", ["deltas"])


def _logs() -> None:
    op.create_table(
        "streams",
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("attempt", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("source", sa.Text, primary_key=True),
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("rank", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("covered", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        _of_attempt(),
    )
    op.create_table(
        "deltas",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("attempt", sa.BigInteger, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        _of_attempt(),
        sqlite_autoincrement=True,
    )
    op.create_index("deltas_attempt", "deltas", ["job", "attempt", "id"])
    op.create_table(
        "events",
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("attempt", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("digest", sa.Text, primary_key=True),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        _of_attempt(),
    )


def _diagnoses() -> None:
    op.create_table(
        "diagnoses",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("attempt", sa.BigInteger, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("current", sa.Boolean, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("category", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("plan", sa.Text),
        sa.Column("search", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        _of_attempt(),
    )
    op.create_index("diagnoses_attempt", "diagnoses", ["job", "attempt", "current"])
    op.create_index("diagnoses_type", "diagnoses", ["type", "id"])
    op.create_table(
        "diagnosis_nodes",
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("diagnosis", sa.Text, sa.ForeignKey("diagnoses.id", ondelete="CASCADE"), primary_key=True),
    )
    op.create_index("diagnosis_nodes_diagnosis", "diagnosis_nodes", ["diagnosis"])
    op.create_table(
        "plans",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("attempt", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        _of_attempt(),
    )
    op.create_index("plans_attempt", "plans", ["job", "attempt"])


def _effects() -> None:
    op.create_table(
        "effects",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("expires", sa.Double, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("tries", sa.BigInteger, nullable=False),
        sa.Column("due", sa.Double, nullable=False),
        sa.Column("token", sa.Text, nullable=False),
        sa.Column("lease", sa.Double, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
    )
    op.create_index("effects_due", "effects", ["state", "due"])
