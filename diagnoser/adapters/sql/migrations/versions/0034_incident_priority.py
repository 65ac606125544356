"""When an incident was escalated, and indexes by which those that cost most are found."""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

_INDEXES = {
    "incident_groups_operators": ("last_seen, id", "state != 'resolved' AND category != 'script'"),
    "incident_groups_repeats": ("failures, id", "state != 'resolved'"),
    "incident_groups_escalated": ("escalated", "escalated > 0"),
}


def upgrade() -> None:
    op.add_column("incident_groups", sa.Column("escalated", sa.Double, nullable=False, server_default="0"))
    for name, (columns, condition) in _INDEXES.items():
        op.execute(f"CREATE INDEX {name} ON incident_groups ({columns}) WHERE {condition}")
