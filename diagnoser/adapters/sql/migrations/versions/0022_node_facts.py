"""What people note about nodes, what monitors say of them, requests to give them back, and a mark up to which failures
of earlier versions still have to join incidents."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "node_notes",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("cluster", sa.Text, nullable=False),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
    )
    op.create_index("node_notes_node", "node_notes", ["cluster", "node", "id"])
    op.create_index("node_notes_time", "node_notes", ["time"])
    op.create_table(
        "node_alerts",
        sa.Column("cluster", sa.Text, primary_key=True),
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("fingerprint", sa.Text, primary_key=True),
        sa.Column("started", sa.Double, primary_key=True),
        sa.Column("ended", sa.Double),
        sa.Column("received", sa.Double, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("node_alerts_received", "node_alerts", ["received"])
    op.create_table(
        "node_requests",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("cluster", sa.Text, nullable=False),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("lease", sa.Double, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("node_requests_open", "node_requests", ["cluster", "state", "created"])
    op.create_index("node_requests_node", "node_requests", ["cluster", "node", "id"])
    op.create_index("node_requests_created", "node_requests", ["created"])
    _mark_earlier_failures()


def _mark_earlier_failures() -> None:
    """Times are numbered in milliseconds, as ids of diagnoses begin with them."""
    newest = op.get_bind().execute(sa.text("SELECT max(created) FROM diagnoses")).scalar()
    if newest is not None:
        row = {"name": "~ungrouped-before", "value": int(newest * 1000) + 1}
        op.get_bind().execute(sa.text("INSERT INTO revisions (name, value) VALUES (:name, :value)"), row)
