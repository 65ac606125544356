"""SQL that was compiled for one database, and is used for all of its kind: a test has a database of its own, whose
engine would compile every statement anew."""

from typing import Any

from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.dialects.sqlite.aiosqlite import SQLiteDialect_aiosqlite
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import Engine
from sqlalchemy.util import LRUCache

_compiled: LRUCache[Any, Any] = LRUCache(5_000)


def share() -> None:
    """Engines share one cache, in which dialects of one kind are equal: all are made and configured alike."""
    for kind in (SQLiteDialect_aiosqlite, SQLiteDialect_pysqlite, PGDialect_asyncpg):
        kind.__eq__ = _is_of_one_kind  # type: ignore[method-assign]
        kind.__hash__ = _hash_of_kind  # type: ignore[assignment,method-assign]
    Engine._compiled_cache = property(lambda _: _compiled, _ignore)  # type: ignore[assignment]


def _is_of_one_kind(dialect: object, other: object) -> bool:
    return type(dialect) is type(other)


def _hash_of_kind(dialect: object) -> int:
    return hash(type(dialect))


def _ignore(engine: Engine, cache: object) -> None:
    """An engine that is made has no cache of its own."""
