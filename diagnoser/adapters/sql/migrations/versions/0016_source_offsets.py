"""How far topics of message queues are stored."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "source_offsets",
        sa.Column("cluster", sa.Text, primary_key=True),
        sa.Column("consumer_group", sa.Text, primary_key=True),
        sa.Column("topic", sa.Text, primary_key=True),
        sa.Column("partition", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("next", sa.BigInteger, nullable=False),
    )
