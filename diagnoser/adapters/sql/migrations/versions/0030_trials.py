"""Evaluation runs: their trials, pieces and batches, and how long pieces took."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def _of_run(key: bool) -> tuple[Any, ...]:
    run = sa.Column("run", sa.Text, sa.ForeignKey("trial_runs.id", ondelete="CASCADE"), primary_key=key, nullable=False)
    return run, *(sa.Column(name, sa.Text, primary_key=key, nullable=False) for name in ("checkpoint", "task"))


def upgrade() -> None:
    op.create_table(
        "trial_runs",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("suite", sa.Text, nullable=False),
        sa.Column("backend", sa.Text, nullable=False),
        sa.Column("folder", sa.Text, nullable=False),
        sa.Column("directory", sa.Text, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("ended", sa.Double),
        sa.Column("cuts", sa.BigInteger, nullable=False),
    )
    op.create_index("trial_runs_created", "trial_runs", ["created"])
    op.create_table(
        "trials",
        *_of_run(key=True),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("scores", sa.Text, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("failures", sa.BigInteger, nullable=False),
        sa.Column("scored", sa.Double),
        sa.Column("batch", sa.Text, nullable=False),
    )
    op.create_table(
        "trial_pieces",
        *_of_run(key=True),
        sa.Column("first", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("last", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("batch", sa.Text, nullable=False),
        sa.Column("failures", sa.BigInteger, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("seconds", sa.Double),
        sa.Column("load", sa.Double),
    )
    op.create_table(
        "trial_batches",
        sa.Column("id", sa.Text, primary_key=True),
        *_of_run(key=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("slot", sa.BigInteger, nullable=False),
        sa.Column("started", sa.Double, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("ended", sa.Double),
    )
    op.create_index("trial_batches_run", "trial_batches", ["run", "started"])
    is_on_slot = sa.text("state = 'running'")
    op.create_index(
        "trial_batches_slot",
        "trial_batches",
        ["run", "node", "slot"],
        unique=True,
        postgresql_where=is_on_slot,
        sqlite_where=is_on_slot,
    )
    op.create_table(
        "trial_runtimes",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("task", sa.Text, nullable=False),
        sa.Column("size", sa.Text, nullable=False),
        sa.Column("hardware", sa.Text, nullable=False),
        sa.Column("samples", sa.BigInteger, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("load", sa.Double, nullable=False),
        sa.Column("score", sa.Double),
    )
    op.create_index("trial_runtimes_task", "trial_runtimes", ["task", "time"])
    op.create_index("trial_runtimes_time", "trial_runtimes", ["time"])
