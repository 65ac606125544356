"""Accounts of people, their sessions, and the audit log, whose rows nothing may change."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")

_APPEND_ONLY = {
    "sqlite": (
        "CREATE TRIGGER audit_log_append_only BEFORE UPDATE ON audit_log BEGIN "
        "SELECT RAISE(ABORT, 'the audit log is append-only'); END",
    ),
    "postgresql": (
        "CREATE FUNCTION audit_log_refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'the audit log is append-only'; END $$",
        "CREATE TRIGGER audit_log_append_only BEFORE UPDATE ON audit_log FOR EACH ROW "
        "EXECUTE FUNCTION audit_log_refuse()",
    ),
}


def upgrade() -> None:
    op.create_table(
        "users",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("password", sa.Text, nullable=False),
        sa.Column("issuer", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("disabled", sa.Double),
        sa.Column("last_sign_in", sa.Double),
    )
    of_provider = sa.text("issuer != ''")
    op.create_index(
        "users_identity",
        "users",
        ["issuer", "subject"],
        unique=True,
        postgresql_where=of_provider,
        sqlite_where=of_provider,
    )
    op.create_table(
        "sessions",
        sa.Column("hash", sa.Text, primary_key=True),
        sa.Column("user", sa.Text, sa.ForeignKey("users.name", ondelete="CASCADE"), nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("last_used", sa.Double, nullable=False),
        sa.Column("expires", sa.Double, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("browser", sa.Text, nullable=False),
        sa.Column("ended", sa.Double),
    )
    op.create_index("sessions_user", "sessions", ["user", "address"])
    op.create_index("sessions_expires", "sessions", ["expires"])
    op.create_table(
        "audit_log",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("time", sa.Double, nullable=False),
        *(
            sa.Column(name, sa.Text, nullable=False)
            for name in ("actor", "actor_kind", "address", "action", "object_kind", "object_id", "result", "detail")
        ),
        sa.Column("before", sa.Text),
        sa.Column("after", sa.Text),
        sqlite_autoincrement=True,
    )
    op.create_index("audit_log_time", "audit_log", ["time"])
    op.create_index("audit_log_actor", "audit_log", ["actor", "id"])
    op.create_index("audit_log_object", "audit_log", ["object_kind", "object_id", "id"])
    for statement in _APPEND_ONLY[op.get_bind().dialect.name]:
        op.execute(statement)
