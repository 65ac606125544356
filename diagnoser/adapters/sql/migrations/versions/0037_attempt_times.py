"""Attempts say themselves when they were submitted, started and last saved: the report of impact looks up no events."""

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None

_START = "2f30f36762d0f6f328f1bfca68888bf4fcb292e4ce649ff4b33531638a8f0a28"
"""Digest of the start that a scheduler reports."""
_SUBMITTED = {
    "sqlite": "json_extract(body, '$.submitted')",
    "postgresql": r"(replace(body, '\u0000'::text, '\u0001'::text)::json ->> 'submitted'::text)::double precision",
}
_IS_SAVED = (
    "substr(digest, 1, 11) = 'checkpoint-' AND "
    """length(replace(replace(body, '"phase":"staged"', ''), '"phase":"bad"', '')) = length(body)"""
)


def upgrade() -> None:
    for name in ("submitted", "started", "saved"):
        op.add_column("attempts", sa.Column(name, sa.Double))
    _fill("submitted", _SUBMITTED[op.get_context().dialect.name], f"digest = '{_START}'")
    _fill("started", "time", f"digest = '{_START}'")
    _fill("saved", "time", _IS_SAVED)
    op.execute("DROP INDEX events_saved")


def _fill(column: str, value: str, condition: str) -> None:
    """Set the newest value of the events that the condition holds for."""
    op.get_bind().exec_driver_sql(
        f"UPDATE attempts SET {column} = known.value FROM "  # noqa: S608 - of this file alone
        f"(SELECT job, attempt, max({value}) AS value FROM events WHERE {condition} GROUP BY job, attempt) AS known "
        "WHERE known.job = attempts.job AND known.attempt = attempts.number"
    )
