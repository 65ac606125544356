"""What recovery asks for: plans by id, cluster and failure; nodes and what happened to them; breakers; dead effects."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_TEXTS = ("id", "cluster", "action", "family", "fingerprint")
_TIMES = ("created", "expires", "lease")


def upgrade() -> None:
    for name in _TEXTS:
        op.add_column("plans", sa.Column(name, sa.Text, nullable=False, server_default=""))
    for name in _TIMES:
        op.add_column("plans", sa.Column(name, sa.Double, nullable=False, server_default="0"))
    _fill()
    _drop_defaults()
    op.create_index("plans_id", "plans", ["id"], unique=True)
    op.create_index("plans_state", "plans", ["state", "cluster"])
    op.create_index("plans_cluster", "plans", ["cluster", "created"])
    op.create_index("plans_fingerprint", "plans", ["fingerprint", "created"])
    _nodes()


def _fill() -> None:
    """The new columns of plans that exist already come out of their bodies."""
    plans = sa.table("plans", *(sa.column(name) for name in ("key", "body", "id", "action", "created", "expires")))
    connection = op.get_bind()
    for key, body in connection.execute(sa.select(plans.c.key, plans.c.body)).all():
        plan = json.loads(body)
        values = {name: plan[name] for name in ("id", "action", "created", "expires")}
        connection.execute(sa.update(plans).where(plans.c.key == key).values(values))


def _drop_defaults() -> None:
    """They were for the rows that existed; the code names every column."""
    with op.batch_alter_table("plans") as plans:
        for name in _TEXTS:
            plans.alter_column(name, server_default=None, existing_type=sa.Text, existing_nullable=False)
        for name in _TIMES:
            plans.alter_column(name, server_default=None, existing_type=sa.Double, existing_nullable=False)


def _nodes() -> None:
    op.create_table(
        "nodes",
        sa.Column("cluster", sa.Text, primary_key=True),
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("partition", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "node_events",
        sa.Column("cluster", sa.Text, primary_key=True),
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, primary_key=True),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "breakers",
        sa.Column("scope", sa.Text, primary_key=True),
        sa.Column("cluster", sa.Text, nullable=False),
        sa.Column("tripped", sa.Boolean, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("breakers_cluster", "breakers", ["cluster"])
