"""Cluster and tenant of a job as columns: what belongs to a job is looked up by them.

The database computes them from the body, so that they are right in rows of replicas that do not know them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

_VALUES = {
    "sqlite": "coalesce(json_extract(body, '$.{name}'), '')",
    "postgresql": "COALESCE(((body)::json ->> '{name}'::text), ''::text)",
}


def upgrade() -> None:
    dialect = op.get_bind().dialect.name
    for name in ("cluster", "tenant"):
        computed = sa.Computed(_VALUES[dialect].format(name=name), persisted=dialect == "postgresql")
        op.add_column("jobs", sa.Column(name, sa.Text, computed))
    op.create_index("jobs_owner", "jobs", ["tenant", "cluster", "id"])
