"""The schema: its history leads to the tables of the code, from anywhere, with several replicas at once."""

import asyncio
import multiprocessing
import warnings
from multiprocessing.synchronize import Event

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text
from sqlalchemy.engine import Connection

from diagnoser.adapters.sql.database import create_engine
from diagnoser.adapters.sql.migrations import config, head, upgrade
from diagnoser.adapters.sql.store import open_store
from diagnoser.adapters.sql.tables import metadata
from tests.contract.records import KEY, append
from tests.thorough import THOROUGH

SOME = ("0001", "0021")
"""The first takes every step of the history; the others take the last of the same steps, after a stop."""
REVISIONS = [script.revision for script in ScriptDirectory.from_config(config()).walk_revisions()]


def differences(connection: Connection) -> list[object]:
    """Without the indexes of texts and of what a text says, which each database has in its own way."""

    def is_ours(name: str | None, kind: str, parents: object) -> bool:
        return not (name or "").startswith(("diagnosis_words_index", "jobs_by_beginning"))

    def is_compared(item: object, name: str | None, *more: object) -> bool:
        return name != "diagnoses_confidence"

    opts = {"compare_server_default": True, "include_name": is_ours, "include_object": is_compared}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Skipped unsupported reflection|autogenerate skipping")
        # SQLAlchemy reads two computed columns that SQLite has added as one: they have a test of their own.
        warnings.filterwarnings("ignore", r"Computed default on (jobs|incident_groups)")
        return list(compare_metadata(MigrationContext.configure(connection, opts=opts), metadata))


def partial_indexes(connection: Connection) -> set[str]:
    found = inspect(connection).get_indexes("attempts")
    return {
        str(index["name"])
        for index in found
        if any(name.endswith("_where") for name in index.get("dialect_options", {}))
    }


def objects(connection: Connection) -> dict[str, object]:
    """All that the schema consists of, in no order."""
    seen = inspect(connection)
    schema: dict[str, object] = {}
    for table in seen.get_table_names():
        schema[f"columns {table}"] = {
            column["name"]: (str(column["type"]), column["nullable"], column["default"])
            for column in seen.get_columns(table)
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Skipped unsupported reflection")
            found = seen.get_indexes(table)
        indexes = [(str(index["name"]), index["unique"], index["column_names"]) for index in found]
        schema[f"indexes {table}"] = sorted(indexes)
        schema[f"key {table}"] = seen.get_pk_constraint(table)["constrained_columns"]
    if connection.dialect.name == "sqlite":
        schema["names"] = set(map(tuple, connection.execute(text("SELECT type, name FROM sqlite_master"))))
    return schema


@pytest.mark.parametrize("revision", ["base", *(REVISIONS if THOROUGH else (*SOME, REVISIONS[1]))])
async def test_every_earlier_schema_can_be_brought_up_to_date(url: str, revision: str) -> None:
    """From nothing and from each revision ever released, the result is exactly the tables of the code. The newest
    step alone is taken as well, whatever it is."""
    if revision != "base":
        await upgrade(url, revision)
    await upgrade(url)
    engine = create_engine(url)
    async with engine.connect() as connection:
        assert await connection.run_sync(differences) == []
        assert await connection.run_sync(partial_indexes) == {
            "attempts_ended",
            "attempts_node_logs",
            "attempts_open",
            "attempts_raw",
            "attempts_running",
            "attempts_unended",
        }
    await engine.dispose()


async def test_a_new_database_is_as_one_that_was_brought_up_to_date(url: str, second_url: str) -> None:
    """It gets the tables of the code at once: tables, columns, indexes and triggers are as after the whole history."""
    await upgrade(url, "0001")
    for database in (url, second_url):
        await upgrade(database)
    schemas = []
    for database in (url, second_url):
        engine = create_engine(database)
        async with engine.connect() as connection:
            assert await connection.run_sync(differences) == []
            schemas.append(await connection.run_sync(objects))
        await engine.dispose()
    assert schemas[0] == schemas[1]


async def test_learned_filters_of_an_earlier_version_go(url: str) -> None:
    """With their hits; learned diagnosis rules stay."""
    await upgrade(url, "0005")
    engine = create_engine(url)
    async with engine.begin() as connection:
        for kind in ("filter", "diagnosis"):
            row = f"('{kind}', '{kind}', 'active', '', '', 1.0, 0, 0.0, '{{}}')"
            columns = "id, kind, state, source, scope, created, version, lease, body"
            await connection.execute(text(f"INSERT INTO learned_rules ({columns}) VALUES {row}"))
    await upgrade(url)
    async with engine.connect() as connection:
        assert (await connection.execute(text("SELECT id FROM learned_rules"))).scalars().all() == ["diagnosis"]
    await engine.dispose()


async def test_replicas_that_start_at_once_do_not_break_each_other(url: str) -> None:
    """One migrates, the others wait for it and find nothing to do."""
    stores = await asyncio.gather(*(open_store(url) for _ in range(4)))
    for store in stores:
        await store.ping()
    await stores[0].logs.append([append()])
    assert len(await stores[3].logs.pieces(KEY)) == 1
    for store in stores:
        await store.close()


async def test_opening_again_keeps_the_data(url: str) -> None:
    """A restart finds what was committed before it."""
    first = await open_store(url)
    await first.logs.append([append(delta=b"kept")])
    await first.close()
    second = await open_store(url)
    assert [delta.data for delta in await second.logs.pieces(KEY)] == [b"kept"]
    await second.close()


def test_there_is_one_newest_revision() -> None:
    """Two branches of history would leave the outcome to chance."""
    assert ScriptDirectory.from_config(config()).get_heads() == [head()]


@pytest.mark.parametrize("before", ["0021", "head"])
async def test_the_owner_of_a_job_is_what_its_row_says_whoever_wrote_it(url: str, before: str) -> None:
    """Rows from before the columns, and rows of replicas that do not know them, belong to their cluster and tenant."""
    await upgrade(url, before)
    engine = create_engine(url)
    insert = text("INSERT INTO jobs (id, body) VALUES (:id, :body)")
    async with engine.begin() as connection:
        await connection.execute(insert, {"id": "old", "body": '{"id": "old", "cluster": "east", "tenant": "a\'b%"}'})
    await upgrade(url)
    async with engine.begin() as connection:
        await connection.execute(insert, {"id": "new", "body": '{"id": "new"}'})
        rows = await connection.execute(text("SELECT id, cluster, tenant FROM jobs ORDER BY id"))
        assert [tuple(row) for row in rows] == [("new", "", ""), ("old", "east", "a'b%")]
        await connection.execute(text("UPDATE jobs SET body = '{\"tenant\": \"c\"}' WHERE id = 'new'"))
        assert (await connection.execute(text("SELECT tenant FROM jobs WHERE id = 'new'"))).scalar() == "c"
    await engine.dispose()


@pytest.mark.parametrize("before", ["base", "0001", "0021"])
async def test_processes_that_start_at_once_do_not_break_each_other(url: str, before: str) -> None:
    """Real ones, as on a machine that has just booted: none fails with a lock, on a new file and on an old schema."""
    if before != "base":
        await upgrade(url, before)
    context = multiprocessing.get_context("fork")
    start = context.Event()
    processes = [context.Process(target=_upgrade_at, args=(url, start)) for _ in range(5)]
    for process in processes:
        process.start()
    start.set()
    for process in processes:
        await asyncio.to_thread(process.join)
    assert [process.exitcode for process in processes] == [0] * len(processes)
    store = await open_store(url)
    await store.ping()
    await store.close()


def _upgrade_at(url: str, start: Event) -> None:
    start.wait()
    asyncio.run(upgrade(url))
