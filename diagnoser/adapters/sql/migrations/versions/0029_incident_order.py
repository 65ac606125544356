"""When an incident was first seen, and its category, as columns: the list is sorted by them.

The database computes them from the body, so that they are right in rows of replicas that do not know them. PostgreSQL
reads no JSON that holds the character 0, which log text may.
"""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

_BODY = r"(replace(body, '\u0000'::text, '\u0001'::text))::json"
_FIRST_SEEN = {
    "sqlite": "json_extract(body, '$.first_seen')",
    "postgresql": f"(({_BODY} ->> 'first_seen'::text))::double precision",
}
_CATEGORY = {
    "sqlite": "coalesce(json_extract(body, '$.category'), '')",
    "postgresql": f"COALESCE(({_BODY} ->> 'category'::text), ''::text)",
}


def upgrade() -> None:
    dialect = op.get_bind().dialect.name
    stored = dialect == "postgresql"
    op.add_column("incident_groups", sa.Column("first_seen", sa.Double, sa.Computed(_FIRST_SEEN[dialect], stored)))
    op.add_column("incident_groups", sa.Column("category", sa.Text, sa.Computed(_CATEGORY[dialect], stored)))
