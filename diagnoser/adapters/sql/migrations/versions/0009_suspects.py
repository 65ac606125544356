"""Plans are found by their first suspect. Those that exist are not filled in: a week later none of them counts."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("plans", sa.Column("suspect", sa.Text))
    op.create_index("plans_suspect", "plans", ["suspect", "created"])
