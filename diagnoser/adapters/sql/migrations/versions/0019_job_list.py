"""The list of jobs: attempts that have no end yet by their last line, the others by their end."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    unended = sa.text("substr(job, 1, 1) != '~' AND ended IS NULL")
    op.create_index("attempts_unended", "attempts", ["last_line"], postgresql_where=unended, sqlite_where=unended)
    ended = sa.text("substr(job, 1, 1) != '~' AND ended IS NOT NULL")
    columns = ["ended", "job", "number"]
    op.create_index("attempts_ended", "attempts", columns, postgresql_where=ended, sqlite_where=ended)
