"""The SQL adapter where the databases differ from the contract: durability, foreign errors, URLs."""

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import event, text
from sqlalchemy.engine import Engine

from diagnoser.adapters.sql import database
from diagnoser.adapters.sql.database import create_engine
from diagnoser.adapters.sql.store import open_store
from diagnoser.model import Job
from diagnoser.model.errors import BadInput, Unavailable
from tests.contract.records import append


async def test_sqlite_acknowledges_what_is_on_the_disk(tmp_path: Path) -> None:
    """Write-ahead log, synced at every commit, with foreign keys held."""
    engine = create_engine(f"sqlite:///{tmp_path}/test.db")
    async with engine.connect() as connection:
        found = [
            (await connection.execute(text(f"PRAGMA {name}"))).scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        ]
    await engine.dispose()
    assert found == ["wal", 2, 1]


async def test_statements_do_not_grow_with_the_number_of_nodes(tmp_path: Path) -> None:
    """A statement of thousands of rows takes seconds to build; the driver repeats one of a single row."""
    store = await open_store(f"sqlite:///{tmp_path}/test.db")
    statements: list[str] = []

    def note(connection: object, cursor: object, statement: str, *more: object) -> None:
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        await store.jobs.register(Job("large", nodes=tuple(f"n{number}" for number in range(30_000))))
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    await store.close()
    assert 0 < len([one for one in statements if "INSERT INTO nodes" in one]) <= 3
    assert max(map(len, statements)) < 1_000


async def test_a_database_that_stays_locked_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program that holds the file leads to "try again", not to an internal error, and is recovered from."""
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.01)
    store = await open_store(f"sqlite:///{tmp_path}/test.db")
    other = sqlite3.connect(tmp_path / "test.db")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable) as raised:
        await store.logs.append([append()])
    other.close()
    assert "INSERT" not in str(raised.value)
    await store.logs.append([append()])
    await store.close()


async def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    """A damaged file stops the start with a clear error."""
    (tmp_path / "test.db").write_bytes(b"this is not a database, whatever its name says" * 100)
    with pytest.raises(Unavailable):
        await open_store(f"sqlite:///{tmp_path}/test.db")


async def test_a_server_that_does_not_answer_is_unavailable(unused_tcp_port: int) -> None:
    """A refused connection to PostgreSQL is "try again" too."""
    with pytest.raises(Unavailable):
        await open_store(f"postgresql://nobody@127.0.0.1:{unused_tcp_port}/nothing")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
async def test_sqlite_without_a_file_is_refused(url: str) -> None:
    """A database in memory would forget what was acknowledged."""
    with pytest.raises(BadInput):
        await open_store(url)


@pytest.mark.parametrize("url", ["", "not a url", "mysql://localhost/x", "postgresql://host:port/x"])
async def test_an_unusable_url_is_bad_input(url: str) -> None:
    """A fault in the settings is told as such."""
    with pytest.raises(BadInput):
        await open_store(url)


async def test_the_folder_of_the_database_is_made(tmp_path: Path) -> None:
    """The first start on a laptop needs no preparation."""
    store = await open_store(f"sqlite:///{tmp_path}/new/folder/test.db")
    await store.ping()
    await store.close()


@pytest.mark.parametrize("scheme", ["postgres", "postgresql"])
def test_both_names_of_postgresql_are_understood(scheme: str) -> None:
    """URLs as other tools print them work."""
    engine = create_engine(f"{scheme}://someone:pass@db.test/diagnoser")
    assert (engine.dialect.name, engine.driver) == ("postgresql", "asyncpg")
