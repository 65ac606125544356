"""An index by which the list of diagnoses is sorted by confidence.

PostgreSQL reads no JSON that holds the character 0, which log text may.
"""

from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

_CONFIDENCE = {
    "sqlite": "json_extract(body, '$.confidence')",
    "postgresql": r"(((replace(body, '\u0000'::text, '\u0001'::text))::json ->> 'confidence'::text))::double precision",
}


def upgrade() -> None:
    confidence = _CONFIDENCE[op.get_bind().dialect.name]
    op.execute(f"CREATE INDEX diagnoses_confidence ON diagnoses (({confidence}), id)")
