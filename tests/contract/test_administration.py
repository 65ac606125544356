"""`diagnoser db` on both databases: what it says, what it refuses, and that a kill leaves a whole database."""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from sqlalchemy import text
from typer.testing import CliRunner, Result

from diagnoser.adapters.sql import administration
from diagnoser.adapters.sql.administration import check, restore
from diagnoser.adapters.sql.database import create_engine
from diagnoser.adapters.sql.store import SqlStore, open_store
from diagnoser.cli import cli
from diagnoser.model import AttemptKey
from diagnoser.model.errors import BadInput
from diagnoser.model.queries import DiagnosisFilter
from tests.contract.records import append, diagnosis, record, the_claim
from tests.preloaded import Preloaded

pytestmark = pytest.mark.own_database  # it is restored, pruned, and brought to a schema that does not exist


@pytest.fixture(autouse=True)
def environment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAGNOSER_DATABASE_URL", url)
    monkeypatch.setenv("COLUMNS", "200")


async def run(*arguments: str) -> Result:
    """In a thread: the commands run loops of their own."""
    return await asyncio.to_thread(CliRunner().invoke, cli, ["db", *arguments])


async def fill(store: SqlStore, count: int = 3, start: int = 0) -> None:
    for number in range(start, start + count):
        await store.logs.append([append(AttemptKey(f"job-{number}"), fatal=True, delta=os.urandom(20_000))])
        claim = await the_claim(store)
        await store.work.save_diagnosis(claim, record(f"{number:02d}", claim, diagnosis(f"Xid {number}")), None, [])


async def jobs(url: str) -> list[str]:
    store = await open_store(url)
    try:
        return [found.attempt.job for found in await store.diagnoses.page(DiagnosisFilter(), "", 100)]
    finally:
        await store.close()


async def test_a_backup_is_what_was_there(store: SqlStore, url: str, tmp_path: Path) -> None:
    """It is taken while the service works; restoring over data needs a word, and the search works afterwards."""
    await fill(store)
    backup = tmp_path / "copy.backup"
    taken = await run("backup", str(backup), "--json")
    assert taken.exit_code == 0, taken.output
    assert orjson.loads(taken.stdout) == {"file": str(backup), "bytes": backup.stat().st_size}
    assert backup.stat().st_mode & 0o777 == 0o600
    await fill(store, 1, start=7)
    if url.startswith("sqlite"):
        in_use = await run("restore", str(backup), "--overwrite")
        assert "stop the service first" in str(in_use.exception)
        assert (await check(url)).faults == []
    await store.close()
    refused = await run("restore", str(backup))
    assert isinstance(refused.exception, BadInput)
    assert "--overwrite" in str(refused.exception)
    assert len(await jobs(url)) == 4
    restored = await run("restore", str(backup), "--overwrite", "--json")
    assert restored.exit_code == 0, restored.output
    assert await jobs(url) == ["job-2", "job-1", "job-0"]
    assert (await check(url)).faults == []
    again = await run("backup", str(backup))
    assert "exists already" in str(again.exception)


async def test_a_check_tells_what_is_there_and_what_is_wrong(store: SqlStore, url: str) -> None:
    """With figures for programs; with a fault it exits with 1."""
    await fill(store, 2)
    sound = await run("check", "--json")
    assert sound.exit_code == 0, sound.exception
    report = orjson.loads(sound.stdout)
    assert (sound.exit_code, report["rows"]["diagnoses"], report["faults"]) == (0, 2, [])
    async with store.db.writing() as connection:
        await connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
    broken = await run("check")
    assert broken.exit_code == 1
    assert "schema 0001, this diagnoser needs" in broken.output


async def test_prune_drops_what_is_old(store: SqlStore, url: str) -> None:
    """The attempts of the tests are of 1970; what it dropped is told by kind."""
    await fill(store)
    pruned = await run("prune", "--older-than", "400d", "--json")
    assert pruned.exit_code == 0, pruned.output
    assert orjson.loads(pruned.stdout)["attempts"] == 3
    assert "nothing to drop" in (await run("prune")).output
    assert await jobs(url) == []
    faulty = await run("prune", "--older-than", "soon")
    assert isinstance(faulty.exception, BadInput)


async def test_upgrade_says_what_it_did(store: SqlStore) -> None:
    """For a database that is up to date, nothing."""
    answer = await run("upgrade", "--json")
    shown = orjson.loads(answer.stdout)
    assert shown["before"] == shown["after"] != ""


@pytest.mark.parametrize("arguments", [["upgrade"], ["prune"], ["backup", "copy"], ["check"]])
def test_a_mistyped_path_makes_no_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """It is an error that names the path."""
    monkeypatch.chdir(tmp_path)
    missing = tmp_path / "no" / "diagnoser.db"
    monkeypatch.setenv("DIAGNOSER_DATABASE_URL", f"sqlite:///{missing}")
    answer = CliRunner().invoke(cli, ["db", *arguments])
    assert f"there is no database at {missing}" in str(answer.exception)
    assert {file.name for file in tmp_path.iterdir()} == set()


async def test_what_is_no_backup_is_not_restored(url: str, tmp_path: Path) -> None:
    """A file that is missing, of something else, or damaged leaves the database as it is."""
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"SQLite format 3\0" + b"x" * 5_000 if url.startswith("sqlite") else b"PGDMP")
    for file in (wrong, tmp_path / "missing", Path(__file__)):
        answer = await run("restore", str(file))
        assert answer.exit_code == 1
        assert answer.exception is not None
    assert "no backup" in str(answer.exception)
    assert not await administration.holds_data(url)


async def test_a_database_is_not_restored_to_itself(store: SqlStore, url: str, tmp_path: Path) -> None:
    """It would wait for itself; and a file of the other kind is named as such."""
    other = tmp_path / "other"
    other.write_bytes(b"PGDMP" if url.startswith("sqlite") else b"SQLite format 3\0")
    assert "is a backup of" in str((await run("restore", str(other))).exception)
    if url.startswith("sqlite"):
        file = url.removeprefix("sqlite:///")
        assert "is the database itself" in str((await run("restore", file, "--overwrite")).exception)


async def test_without_the_programs_of_postgresql_it_says_what_to_install(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite needs none."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(Path, "glob", lambda path, pattern: [])
    if url.startswith("postgresql"):
        answer = await run("backup", str(tmp_path / "copy"))
        assert "pg_dump is not installed" in str(answer.exception)


def killed(url: str, arguments: list[str], is_time: Callable[[], bool]) -> None:
    """The command in a process of its own, killed once ``is_time``, or ended by then, and gone from the database."""
    process = Preloaded(["db", *arguments], os.environ | {"DIAGNOSER_DATABASE_URL": url}, Path(os.devnull))
    while process.poll() is None and not is_time():
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if url.startswith("postgresql"):
        asyncio.run(until_nobody_is_connected(url))


async def until_nobody_is_connected(url: str) -> None:
    """A server finishes the statement of a client that is gone, and holds its locks for so long."""
    others = text(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )
    engine, connected = create_engine(url), 1
    while connected:
        async with engine.connect() as connection:
            connected = (await connection.execute(others)).scalar_one()
        await asyncio.sleep(0.02)
    await engine.dispose()


def after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


@pytest.mark.parametrize("pause", [0.0, 0.02])
async def test_a_kill_leaves_a_whole_database(store: SqlStore, url: str, tmp_path: Path, pause: float) -> None:
    """In the middle of a backup, of a restore and of pruning: no half copy bears its name, and the target is what it
    was or what it should become."""
    await fill(store, 12)
    await store.close()  # a restore needs the database alone
    before = await jobs(url)
    whole, half = tmp_path / "whole", tmp_path / "half"
    assert (await run("backup", str(whole))).exit_code == 0

    def is_writing() -> bool:
        begun = (tmp_path / "half.partial").exists() or half.exists()
        time.sleep(pause if begun else 0)
        return begun

    await asyncio.to_thread(killed, url, ["backup", str(half)], is_writing)
    if half.exists():
        restore(url, half, lambda done, of: None, overwrite=True)
        assert await jobs(url) == before
    assert (await run("backup", str(half.with_name("again")))).exit_code == 0
    journals = [Path(f"{url.removeprefix('sqlite:///')}{end}") for end in ("-wal", "-journal")]
    late = after(0.25 + pause * 10)

    def is_restoring() -> bool:
        return late() or any(journal.exists() and journal.stat().st_size for journal in journals)

    await asyncio.to_thread(killed, url, ["restore", str(whole), "--overwrite"], is_restoring)
    assert await jobs(url) == before
    left = replace(DiagnosisFilter(), text="xid")
    is_late = after(0.2 + pause * 5)
    await asyncio.to_thread(killed, url, ["prune", "--older-than", "400d"], is_late)
    assert (await check(url)).faults == []
    opened = await open_store(url)
    found = [one.id for one in await opened.diagnoses.page(left, "", 100)]
    assert found == [one.id for one in await opened.diagnoses.page(DiagnosisFilter(), "", 100)]
    await opened.close()
