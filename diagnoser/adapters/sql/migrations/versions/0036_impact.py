"""Columns and indexes from which the report of impact is read, without the texts of verdicts and plans."""

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

_TEXTS = {
    "sqlite": "coalesce(json_extract(body, '$.{name}'), '')",
    "postgresql": r"COALESCE(((replace(body, '\u0000'::text, '\u0001'::text))::json ->> '{name}'::text), ''::text)",
}
_PARTS = {"has_waited": '"state":"waiting"', "is_vouched": '"kind":"person"'}
_VERDICT = "job, attempt, current, outcome, category, type, created, cluster, plan"
_IS_SAVED = (
    "substr(events.digest, 1, 11) = 'checkpoint-' AND "
    """length(replace(replace(events.body, '"phase":"staged"', ''), '"phase":"bad"', '')) = length(events.body)"""
)
_PLAN = "job, attempt, key, state, created, mode, reason, has_waited, is_vouched"


def upgrade() -> None:
    op.add_column("attempts", sa.Column("first_step", sa.Double))
    dialect = op.get_context().dialect.name
    for name in ("mode", "reason"):
        _add(name, "TEXT", _TEXTS[dialect].format(name=name))
    for name, part in _PARTS.items():
        _add(name, "BOOLEAN", f"replace(body, '{part}', '') <> body")
    op.execute("DROP INDEX plans_attempt")
    op.execute(f"CREATE INDEX plans_attempt ON plans ({_PLAN})")
    op.execute("DROP INDEX diagnoses_attempt")
    op.execute(f"CREATE INDEX diagnoses_attempt ON diagnoses ({_VERDICT})")
    op.get_bind().exec_driver_sql(f"CREATE INDEX events_saved ON events (job, attempt, time) WHERE {_IS_SAVED}")


def _add(name: str, kind: str, value: str) -> None:
    """SQLite can add a computed column only where it is not stored, PostgreSQL only where it is."""
    how = "VIRTUAL" if op.get_context().dialect.name == "sqlite" else "STORED"
    column = f"{name} {kind} GENERATED ALWAYS AS ({value}) {how}"
    op.get_bind().exec_driver_sql(f"ALTER TABLE plans ADD COLUMN {column}")
