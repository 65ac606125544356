"""The schema: a new database has the tables of the code, and an upgrade changes one in use, by one of many replicas."""

import asyncio
import multiprocessing
import shutil
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text
from sqlalchemy.engine import Connection
from structlog.testing import capture_logs

from diagnoser.adapters.sql import migrations
from diagnoser.adapters.sql.administration import schema
from diagnoser.adapters.sql.database import create_engine
from diagnoser.adapters.sql.migrations import config, head, upgrade
from diagnoser.adapters.sql.store import open_store
from diagnoser.adapters.sql.tables import metadata
from diagnoser.model.errors import Unavailable
from tests.contract.records import KEY, OUT, append
from tests.next_revision import REVISION, add_revision


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


@pytest.fixture
def next_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Called, it makes this process one whose code has the next revision."""
    folder = tmp_path / "versions"
    shutil.copytree(str(migrations.VERSIONS), folder, ignore=shutil.ignore_patterns("__pycache__"))
    add_revision(folder)
    yield lambda: monkeypatch.setattr(migrations, "VERSIONS", folder)


async def test_a_new_database_has_the_tables_of_the_code(url: str) -> None:
    """Column by column, with the indexes of a part of a table."""
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


async def test_tables_of_others_stay_beside_ours(url: str) -> None:
    """A database that somebody else uses gets our tables; what it holds stays."""
    engine = create_engine(url)
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE others (name TEXT)"))
        await connection.execute(text("INSERT INTO others VALUES ('theirs')"))
    store = await open_store(url)
    await store.ping()
    await store.close()
    async with engine.connect() as connection:
        assert (await connection.execute(text("SELECT name FROM others"))).scalar() == "theirs"
    await engine.dispose()


async def test_the_next_revision_changes_a_database_in_use(url: str, next_code: Callable[[], None]) -> None:
    """Once, with what it holds; who has the code before goes on, and the log tells both."""
    before = await open_store(url)
    await before.logs.append([append(delta=b"kept")])
    with pytest.MonkeyPatch.context() as newer, capture_logs() as logs:
        newer.setattr(migrations, "VERSIONS", migrations.VERSIONS)  # put back at the end
        next_code()
        for _ in range(2):
            after = await open_store(url)
            await after.ping()
            assert [piece.data for piece in await after.logs.pieces(KEY)] == [b"kept"]
            async with after.db.reading() as connection:
                assert (await connection.execute(text("SELECT added FROM attempts"))).scalars().all() == [7]
            await after.close()
    assert [(entry["before"], entry["now"]) for entry in logs] == [(head(), REVISION)]
    with capture_logs() as logs:
        for _ in range(2):
            await before.ping()
            await (await open_store(url)).close()
    assert {entry["event"] for entry in logs} == {"newer_schema"}
    read = (await before.logs.cursors([KEY]))[KEY]
    await before.logs.append([append(read=read[OUT])])
    assert len(await before.logs.pieces(KEY)) == 2
    await before.close()


async def test_a_schema_from_before_the_first_one_is_refused(url: str) -> None:
    """With the words what to do; nothing is changed."""
    store = await open_store(url)
    async with store.db.writing() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '0021'"))
    with pytest.raises(Unavailable, match=r"has schema 0021, .* upgrades from 0033 on: first upgrade it with"):
        await open_store(url)
    with pytest.raises(Unavailable, match="has schema 0021"):
        await store.ping()
    await store.close()
    assert await schema(url) == "0021"


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


async def test_the_owner_of_a_job_is_what_its_row_says_whoever_wrote_it(url: str) -> None:
    """Whoever writes a row need not know the columns: it belongs to its cluster and tenant."""
    await upgrade(url)
    engine = create_engine(url)
    insert = text("INSERT INTO jobs (id, body) VALUES (:id, :body)")
    async with engine.begin() as connection:
        await connection.execute(insert, {"id": "old", "body": '{"id": "old", "cluster": "east", "tenant": "a\'b%"}'})
        await connection.execute(insert, {"id": "new", "body": '{"id": "new"}'})
        rows = await connection.execute(text("SELECT id, cluster, tenant FROM jobs ORDER BY id"))
        assert [tuple(row) for row in rows] == [("new", "", ""), ("old", "east", "a'b%")]
        await connection.execute(text("UPDATE jobs SET body = '{\"tenant\": \"c\"}' WHERE id = 'new'"))
        assert (await connection.execute(text("SELECT tenant FROM jobs WHERE id = 'new'"))).scalar() == "c"
    await engine.dispose()


@pytest.mark.parametrize("is_new", [True, False])
async def test_processes_that_start_at_once_do_not_break_each_other(
    url: str, is_new: bool, next_code: Callable[[], None]
) -> None:
    """Real ones, as on a machine that has just booted: none fails with a lock, on a new file and on an old schema."""
    if not is_new:
        await upgrade(url)
        next_code()
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
