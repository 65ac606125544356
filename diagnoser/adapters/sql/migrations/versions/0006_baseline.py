"""Learned rules are diagnosis rules only: what clean runs print is learned with the baseline of their job family.

Columns that only filters used stay until no replica of the version before runs any more.
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("DELETE FROM rule_hits WHERE rule IN (SELECT id FROM learned_rules WHERE kind = 'filter')")
    op.execute("DELETE FROM learned_rules WHERE kind = 'filter'")
