"""Conditions that many repositories write, as SQLite plans them."""

import sqlite3
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import Table, create_engine, select
from sqlalchemy.dialects import sqlite

from diagnoser.adapters.sql.statements import has_key
from diagnoser.adapters.sql.tables import attempts, diagnoses, events, metadata, streams

_STREAM = ("job", "attempt", "source", "node", "rank", "provenance")


@pytest.mark.parametrize(
    ("table", "columns", "keys"),
    [
        (attempts, ("job", "number"), [("a", 1), ("b", 2)]),
        (diagnoses, ("job", "attempt"), [("a", 1), ("a", 2)]),
        (events, ("job", "attempt"), [("a", 1), ("b", 1)]),
        (streams, _STREAM, [("a", 1, "stdout", "n", 0, "job"), ("a", 1, "stdout", "n", 1, "job")]),
    ],
)
def test_rows_of_several_keys_are_found_by_an_index(
    table: Table, columns: Sequence[str], keys: Sequence[tuple[Any, ...]]
) -> None:
    """A table that grows with the site is never read whole for the rows of a few keys."""
    query = select(table).where(has_key([table.c[name] for name in columns], keys))
    written = query.compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True})
    connection = _empty()
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {written}")]
    assert any(step.startswith(f"SEARCH {table.name} USING") for step in plan), plan
    connection.close()


def _empty() -> sqlite3.Connection:
    """A database with the tables of the code."""
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    connection: sqlite3.Connection = engine.raw_connection().driver_connection  # type: ignore[assignment]
    return connection
