"""The schema's history, shipped inside the package, and the upgrade that runs at every start."""

from importlib import resources
from importlib.resources.abc import Traversable
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

VERSIONS = resources.files(__name__).joinpath("versions")
"""A script for each revision, the first schema included."""

_LOCK = 0x6469_6167  # any number that is the same in every replica


def config(connection: Connection | None = None) -> "Config":
    """Alembic's settings, without a file: ``connection`` is what the scripts run on."""
    from alembic.config import Config

    settings = Config()
    settings.set_main_option("script_location", _escaped(resources.files(__name__)))
    settings.set_main_option("version_locations", _escaped(VERSIONS))
    settings.set_main_option("path_separator", "os")
    settings.attributes["connection"] = connection
    return settings


def head() -> str:
    """The revision that this code needs."""
    return max(_revisions())


def why_too_old(found: str) -> str:
    """Why no upgrade leads on from this schema, as what the database or the backup "has"; "" where one does."""
    first = min(_revisions())
    if found >= first:
        return ""
    return (
        f"has schema {found}, and this diagnoser upgrades from {first} on: first upgrade it with the version that "
        f"ends at schema {first} (`diagnoser db upgrade`), or begin with a new database"
    )


def _escaped(path: Traversable) -> str:
    return str(path).replace("%", "%%")


def _revisions() -> list[str]:
    """The numbers in front of the scripts' names."""
    names = [script.name for script in VERSIONS.iterdir() if script.name.endswith(".py")]
    if not names:
        raise RuntimeError("the package was built without its migrations")
    return [name.partition("_")[0] for name in names]


async def upgrade(url: str) -> None:
    """Bring the database to the newest revision. Safe to run from several replicas at once. Raises Unavailable."""
    engine = create_engine(url)
    try:
        await upgrade_engine(engine)
    finally:
        await engine.dispose()


async def upgrade_engine(engine: AsyncEngine) -> None:
    """One transaction under one lock: the second replica waits, then finds nothing to do.

    A database without tables of ours gets those of the code at once. Alembic is loaded only where an older one must be
    changed.
    """
    async with our_errors(), engine.execution_options(write=True).begin() as connection:
        if engine.dialect.name == "postgresql":
            await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        await connection.run_sync(_upgrade)


def check_known(connection: Connection) -> str | None:
    """The schema, if this code can work with it: its own, one that an upgrade changes to it, or a newer one that only
    added to it. Raises Unavailable.

    A migration that takes away what earlier code uses says so in ``revisions``, under the name ``NEEDED``.
    """
    found, known = current(connection), head()
    if not found:
        return None
    if why := why_too_old(found):
        raise Unavailable(f"the database {why}")
    if found > known:
        needed = connection.execute(select(revisions.c.value).where(revisions.c.name == NEEDED)).scalar() or 0
        if int(needed) > int(known):
            raise Unavailable(
                f"the database has schema {found}, of a newer diagnoser; this one knows {known}: update it"
            )
    return found


def _upgrade(connection: Connection) -> None:
    found, known = check_known(connection), head()
    if found is None:
        metadata.create_all(connection, checkfirst=False)
        connection.execute(CreateTable(_version))
        connection.execute(_version.insert().values(version_num=known))
    elif found > known:
        log_newer_schema(found)
    elif found < known:
        from alembic import command

        command.upgrade(config(connection), known)
        structlog.get_logger().info("schema_upgraded", before=found, now=known)


def log_newer_schema(found: str) -> None:
    structlog.get_logger().warning("newer_schema", database=found, known=head(), why="a newer replica made it")


def current(connection: Connection) -> str:
    """The revision; "" in a database without tables."""
    if not inspect(connection).has_table("alembic_version"):
        return ""
    current: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return "" if current is None else current
