"""Rules that the service learned, the attempts in which they hit or would have, and the counter of their changes."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "learned_rules",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("lease", sa.Double, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("learned_rules_state", "learned_rules", ["state", "kind", "scope"])
    op.create_index("learned_rules_source", "learned_rules", ["source"])
    op.create_index("learned_rules_created", "learned_rules", ["created", "id"])
    op.create_table(
        "rule_hits",
        sa.Column("rule", sa.Text, sa.ForeignKey("learned_rules.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("attempt", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("diagnosis", sa.Text, nullable=False),
        sa.Column("verdict", sa.Text, nullable=False),
        sa.Column("active", sa.Boolean, nullable=False),
        sa.Column("lines", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["job", "attempt"], ["attempts.job", "attempts.number"], ondelete="CASCADE"),
    )
    op.create_index("rule_hits_attempt", "rule_hits", ["job", "attempt"])
    op.create_table(
        "revisions",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("value", sa.BigInteger, nullable=False),
    )
