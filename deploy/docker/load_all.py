"""Loads what the commands load, so that Python writes its bytecode (PYTHONPYCACHEPREFIX) into the image."""

import importlib
import pkgutil

import diagnoser

LATER = (
    "aiosqlite",
    "alembic.command",
    "apprise.plugins",
    "asyncpg",
    "confluent_kafka",
    "obstore.store",
    "openai.resources.chat",
    "redis.asyncio",
    "rich.progress",
    "sqlalchemy.dialects.postgresql.asyncpg",
    "uvicorn.protocols.http.httptools_impl",
    "uvloop",
)
"""Loaded only where they are needed."""

NOT_HERE = {"diagnoser.integrations.mcp_server"}
"""It runs beside an assistant, and what it needs is not in the image."""

for module in pkgutil.walk_packages(diagnoser.__path__, "diagnoser."):
    is_migration = ".migrations." in module.name  # those are Alembic's to run
    if not (module.name.endswith("__main__") or is_migration or module.name in NOT_HERE):
        importlib.import_module(module.name)
for name in LATER:
    importlib.import_module(name)
