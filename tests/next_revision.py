"""A revision that no release has: it adds to the newest schema, as the next one may."""

from pathlib import Path

from diagnoser.adapters.sql import migrations

REVISION = f"{int(migrations.head()) + 1:04}"
_SCRIPT = f'''
import sqlalchemy as sa
from alembic import op

revision = "{REVISION}"
down_revision = "{migrations.head()}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("added", sa.Integer, nullable=False, server_default=sa.text("7")))
    op.create_table("added", sa.Column("name", sa.Text, primary_key=True))
'''


def add_revision(folder: Path) -> None:
    """folder: the scripts of a checkout, or of a copy of them."""
    (folder / f"{REVISION}_next.py").write_text(_SCRIPT)
