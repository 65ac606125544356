"""Incidents: failures grouped across jobs. Those that were diagnosed before are in none."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "incident_groups",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("assignee", sa.Text, nullable=False),
        sa.Column("last_seen", sa.Double, nullable=False),
        sa.Column("failures", sa.BigInteger, nullable=False),
        sa.Column("jobs", sa.BigInteger, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("incident_groups_seen", "incident_groups", ["last_seen", "id"])
    op.create_index("incident_groups_node", "incident_groups", ["node", "last_seen", "id"])
    unresolved = sa.text("state != 'resolved'")
    columns = ["last_seen", "id"]
    op.create_index(
        "incident_groups_unresolved", "incident_groups", columns, postgresql_where=unresolved, sqlite_where=unresolved
    )
    op.create_table(
        "incident_attempts",
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("attempt", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("incident", sa.Text, sa.ForeignKey("incident_groups.id", ondelete="CASCADE"), nullable=False),
        sa.Column("diagnosis", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["job", "attempt"], ["attempts.job", "attempts.number"], ondelete="CASCADE"),
    )
    op.create_index("incident_attempts_diagnosis", "incident_attempts", ["incident", "diagnosis"])
    op.create_index("incident_attempts_job", "incident_attempts", ["incident", "job"])
