"""The schema's history, shipped inside the package, and the upgrade that runs at every start."""

from importlib import resources

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncEngine

from diagnoser.adapters.sql.database import create_engine, our_errors

_LOCK = 0x6469_6167  # any number that is the same in every replica


def config(connection: Connection | None = None) -> Config:
    """Alembic's settings, without a file: ``connection`` is what the scripts run on."""
    settings = Config()
    settings.set_main_option("script_location", str(resources.files(__name__)).replace("%", "%%"))
    settings.set_main_option("path_separator", "os")
    settings.attributes["connection"] = connection
    return settings


def head() -> str:
    """The revision that this code needs."""
    newest = ScriptDirectory.from_config(config()).get_current_head()
    if newest is None:
        raise RuntimeError("the package was built without its migrations")
    return newest


async def upgrade(url: str, revision: str = "head") -> None:
    """Bring the database to ``revision``. Safe to run from several replicas at once. Raises Unavailable."""
    engine = create_engine(url)
    try:
        await upgrade_engine(engine, revision)
    finally:
        await engine.dispose()


async def upgrade_engine(engine: AsyncEngine, revision: str = "head") -> None:
    """One transaction under one lock: the second replica waits, then finds nothing to do."""
    async with our_errors(), engine.execution_options(write=True).begin() as connection:
        if engine.dialect.name == "postgresql":
            await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        await connection.run_sync(lambda sync: command.upgrade(config(sync), revision))
