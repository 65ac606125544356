"""What is old is found by its time."""

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("attempts_opened", "attempts", ["opened"])
    op.create_index("effects_created", "effects", ["created"])
    op.create_index("node_events_time", "node_events", ["time"])
    op.create_index("runtime_files_received", "runtime_files", ["received"])
