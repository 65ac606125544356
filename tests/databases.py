"""Databases for tests: each its own, with the tables of the code, made without the history that leads to them."""

import sqlite3
from pathlib import Path

from diagnoser.adapters.sql.store import SqlStore, open_store

_MADE = {"alembic_version", "diagnosis_words_index_config", "diagnosis_words_index_data"}
"""Tables that hold rows from the beginning."""
_empty: list[bytes] = []
"""The first file that ``open_store`` made in this process: the others are its copies."""


async def sqlite_store(file: Path) -> SqlStore:
    """A store over a SQLite file, which is made where it is absent. The caller closes the store."""
    url = f"sqlite:///{file}"
    if not _empty:
        first = file.with_name("empty.db")
        await (await open_store(f"sqlite:///{first}")).close()
        _empty.append(first.read_bytes())
        first.unlink()
    _copy(file)
    return await open_store(url)


def _copy(file: Path) -> None:
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_empty[0])


def is_empty(connection: sqlite3.Connection) -> bool:
    """Whether nothing is stored in a SQLite database but its version."""
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'")
    return not any(_has_rows(connection, name) for (name,) in found.fetchall() if name not in _MADE)


def _has_rows(connection: sqlite3.Connection, table: str) -> bool:
    return connection.execute(f'SELECT 1 FROM "{table}" LIMIT 1').fetchone() is not None
