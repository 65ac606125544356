"""The first schema. A database without tables of ours gets them from ``tables``, so that no step leads to here."""

revision = "0033"
down_revision = None
branch_labels = None
depends_on = None
