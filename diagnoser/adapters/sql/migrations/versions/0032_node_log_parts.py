"""Parts of node logs are apart from running jobs: both are asked for every second."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    running = sa.text("substr(job, 1, 1) != '~' AND revision > diagnosed AND fatal IS NULL AND ended IS NULL")
    op.drop_index("attempts_running", "attempts")
    op.create_index("attempts_running", "attempts", ["last_line"], postgresql_where=running, sqlite_where=running)
    parts = sa.text("substr(job, 1, 6) = '~node/'")
    op.create_index("attempts_node_logs", "attempts", ["job", "last_line"], postgresql_where=parts, sqlite_where=parts)
