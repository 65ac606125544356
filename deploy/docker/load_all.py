"""Loads what the commands load, so that Python writes its bytecode (PYTHONPYCACHEPREFIX) into the image."""

import importlib
import pkgutil

import diagnoser

LATER = (
    "aiosqlite",
    "alembic.command",
    "apprise.plugins",
    "asyncpg",
    "boto3.session",
    "botocore.client",
    "confluent_kafka",
    "openai.resources.chat",
    "redis.asyncio",
    "rich.progress",
    "uvicorn.protocols.http.httptools_impl",
    "uvloop",
)
"""Loaded only where they are needed."""

for module in pkgutil.walk_packages(diagnoser.__path__, "diagnoser."):
    if not module.name.endswith("__main__") and ".migrations." not in module.name:  # those are Alembic's to run
        importlib.import_module(module.name)
for name in LATER:
    importlib.import_module(name)
