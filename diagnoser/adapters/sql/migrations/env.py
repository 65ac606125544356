"""Alembic runs this file for every command. The caller brings the connection and owns the transaction."""

from alembic import context

from diagnoser.adapters.sql.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
