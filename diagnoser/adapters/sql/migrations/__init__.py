"""The schema's history, shipped inside the package, and the upgrade that runs at every start."""

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import structlog
from sqlalchemy import Column, MetaData, String, Table, inspect, select, text
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.schema import CreateTable

from diagnoser.adapters.sql.database import create_engine, our_errors
from diagnoser.adapters.sql.tables import metadata, revisions
from diagnoser.model.errors import Unavailable

if TYPE_CHECKING:
    from alembic.config import Config

NEEDED = "schema_needed"
"""Number of the oldest schema whose code can work with the database; no row while all can."""

_version = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))
"""Where Alembic notes the schema."""

_LOCK = 0x6469_6167  # any number that is the same in every replica


def config(connection: Connection | None = None) -> "Config":
    """Alembic's settings, without a file: ``connection`` is what the scripts run on."""
    from alembic.config import Config

    settings = Config()
    settings.set_main_option("script_location", str(resources.files(__name__)).replace("%", "%%"))
    settings.set_main_option("path_separator", "os")
    settings.attributes["connection"] = connection
    return settings


@cache
def head() -> str:
    """The revision that this code needs: the number in front of the newest script's name."""
    scripts = resources.files(__name__).joinpath("versions").iterdir()
    revisions = [script.name.partition("_")[0] for script in scripts if script.name.endswith(".py")]
    if not revisions:
        raise RuntimeError("the package was built without its migrations")
    return max(revisions)


async def upgrade(url: str, revision: str = "head") -> None:
    """Bring the database to ``revision``. Safe to run from several replicas at once. Raises Unavailable."""
    engine = create_engine(url)
    try:
        await upgrade_engine(engine, revision)
    finally:
        await engine.dispose()


async def upgrade_engine(engine: AsyncEngine, revision: str = "head") -> None:
    """One transaction under one lock: the second replica waits, then finds nothing to do.

    An empty database gets the tables of the code at once. Alembic is loaded only where an older one must be changed.
    """
    async with our_errors(), engine.execution_options(write=True).begin() as connection:
        if engine.dialect.name == "postgresql":
            await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        await connection.run_sync(_upgrade, head() if revision == "head" else revision)


def check_known(connection: Connection) -> str | None:
    """The schema, if this code can work with it: its own, or a newer one that only added to it. Raises Unavailable.

    A migration that takes away what earlier code uses says so in ``revisions``, under the name ``NEEDED``.
    """
    found = current(connection)
    if found is not None and found > head():
        needed = connection.execute(select(revisions.c.value).where(revisions.c.name == NEEDED)).scalar() or 0
        if int(needed) > int(head()):
            raise Unavailable(
                f"the database has schema {found}, of a newer diagnoser; this one knows {head()}: update it"
            )
    return found


def _upgrade(connection: Connection, revision: str) -> None:
    found = check_known(connection)
    if found is not None and found > head():
        log_newer_schema(found)
    elif found is None and revision == head() and not inspect(connection).get_table_names():
        metadata.create_all(connection)
        connection.execute(CreateTable(_version))
        connection.execute(_version.insert().values(version_num=revision))
    elif found != revision:
        from alembic import command

        command.upgrade(config(connection), revision)
        structlog.get_logger().info("schema_upgraded", before=found or "none", now=revision)


def log_newer_schema(found: str) -> None:
    structlog.get_logger().warning("newer_schema", database=found, known=head(), why="a newer replica made it")


def current(connection: Connection) -> str | None:
    """None in a database without tables."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    current: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return current
