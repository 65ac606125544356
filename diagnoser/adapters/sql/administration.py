"""The database as a whole: whether it is there, whether it is sound, and copies of it.

A copy of SQLite is a SQLite file, one of PostgreSQL an archive of ``pg_dump``. Whatever kills the process, the
database that is copied to is as it was or whole, and a copy bears its name only once it is complete.
"""

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, func, inspect, select, text
from sqlalchemy.exc import SQLAlchemyError

from diagnoser.adapters.sql.database import connected, create_engine, parsed_url
from diagnoser.adapters.sql.migrations import current, head, why_too_old
from diagnoser.adapters.sql.tables import metadata
from diagnoser.model.errors import BadInput, Unavailable

Progress = Callable[[int, int], None]
"""Called with (done, of); pages of SQLite."""

PAGES = 2_000
_NO_SUCH_DATABASE = "3D000"
"""SQLSTATE of a connection to a database that the server does not have."""
_COUNTED = ("jobs", "attempts", "diagnoses", "plans", "effects", "incidents", "deltas", "runtime_files")


@dataclass(frozen=True, slots=True)
class DatabaseReport:
    """schema: of the database, "" where it has none; needed: by this code. size: in bytes. faults: empty when sound."""

    kind: str
    schema: str
    needed: str
    size: int
    rows: dict[str, int]
    faults: list[str]


def require_existing(url: str) -> None:
    """Raises BadInput where opening would make a new SQLite file: the path is probably mistyped."""
    file = _sqlite_file(url)
    if file is not None and not file.is_file():
        raise BadInput(f"there is no database at {file}")


def check_place(url: str, usual: str) -> bool:
    """Whether the service may open the database of this URL: raises BadInput where that would silently make a new
    SQLite file in the wrong place. True where a new file is made. usual: the URL that nobody has to set.

    A new file is right where its folder is there and holds no other database; else the path is probably mistyped.
    """
    file = _sqlite_file(url)
    if file is None:
        return False
    if file.exists():
        return False
    if url == usual:
        return True
    how = "diagnoser db upgrade --create makes a new one"
    if not file.parent.is_dir():
        raise BadInput(f"there is no folder {file.parent} for the database: make it, or correct DIAGNOSER_DATABASE_URL")
    others = sorted(other.name for other in file.parent.glob("*.db") if _is_sqlite(other))
    if others:
        raise BadInput(f"there is no database {file}, but {', '.join(others[:3])} beside it: {how}")
    return True


def _is_sqlite(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return opened.read(15) == b"SQLite format 3"
    except OSError:
        return False


def place(url: str) -> str:
    """Where the database is, without user and password. Raises BadInput."""
    file, parsed = _sqlite_file(url), parsed_url(url)
    return str(file.absolute()) if file else f"{parsed.host or 'localhost'}:{parsed.port or 5432}/{parsed.database}"


async def schema(url: str) -> str:
    """The revision of an existing database, "" where it has no tables of ours. Raises Unavailable, BadInput."""
    require_existing(url)
    async with connected(url) as connection:
        return await connection.run_sync(current)


async def create_missing(url: str) -> None:
    """Make the PostgreSQL database where its server has none of that name. A file of SQLite is made when it is opened.

    Raises Unavailable, and BadInput where this user may not make it.
    """
    if _sqlite_file(url) is not None or await _is_there(url):
        return
    target = parsed_url(url)
    server = create_engine(target.set(database="postgres").render_as_string(hide_password=False))
    name = server.dialect.identifier_preparer.quote_identifier(target.database or "")
    try:
        async with server.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            await connection.execute(text(f"CREATE DATABASE {name}"))
    except (SQLAlchemyError, OSError) as error:
        if await _is_there(url):
            return  # another replica made it at the same time
        raise BadInput(
            f"there is no database {name}, and {target.username} cannot make it ({getattr(error, 'orig', error)}): "
            f"let an administrator run CREATE DATABASE {name} OWNER {target.username}"
        ) from None
    finally:
        await server.dispose()


async def _is_there(url: str) -> bool:
    """Tell whether the server has the database. Raises Unavailable where it does not answer, or refuses the user."""
    try:
        async with connected(url):
            return True
    except Unavailable as error:
        if getattr(getattr(error.__cause__, "orig", None), "sqlstate", "") == _NO_SUCH_DATABASE:
            return False
        raise


async def check(url: str) -> DatabaseReport:
    """Reads everything, which takes a while. Raises Unavailable, BadInput."""
    require_existing(url)
    async with connected(url) as connection:
        return await connection.run_sync(_report)


def back_up(url: str, file: Path, progress: Progress) -> None:
    """A consistent copy of a database that may be in use. Raises BadInput, Unavailable."""
    require_existing(url)
    if file.exists():
        raise BadInput(f"{file} exists already")
    if not file.parent.is_dir():
        raise BadInput(f"there is no folder {file.parent}")
    partial = file.with_name(f"{file.name}.partial")
    partial.unlink(missing_ok=True)
    partial.touch(0o600, exist_ok=False)  # lines of logs and hashes of passwords are in it
    source = _sqlite_file(url)
    try:
        if source is not None:
            _copy(source, partial, progress)
            with closing(sqlite3.connect(partial)) as copy:
                copy.execute("PRAGMA journal_mode = DELETE")  # one file, readable where nothing can be written
        else:
            _run("pg_dump", url, ["--format=custom", f"--file={partial}"])
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.rename(file)
    finally:
        partial.unlink(missing_ok=True)


def restore(url: str, file: Path, progress: Progress, *, overwrite: bool = False) -> None:
    """One transaction. Stop the service first: it keeps in memory what it has read. Raises BadInput, Unavailable.

    overwrite: replace what the database holds; else it must be empty.
    """
    check_file(url, file)
    target = _sqlite_file(url)
    if target is None:
        options = ["--single-transaction", "--exit-on-error", "--no-owner", *(["--clean", "--if-exists"] * overwrite)]
        _run("pg_restore", url, [*options, f"--dbname={_without_password(url)}", str(file)])
        return
    _check_backup(file)
    target.parent.mkdir(parents=True, exist_ok=True)
    _check_unused(target)
    _copy(file, target, progress)


def check_file(url: str, file: Path) -> None:
    """Raises BadInput for a file that cannot be restored to this database."""
    if not file.is_file():
        raise BadInput(f"there is no file {file}")
    target = _sqlite_file(url)
    if target is not None and target.exists() and target.samefile(file):
        raise BadInput(f"{file} is the database itself")
    with file.open("rb") as opened:
        head = opened.read(15)
    kind = ""
    if head == b"SQLite format 3":
        kind = "SQLite"
    elif head.startswith(b"PGDMP"):
        kind = "PostgreSQL"
    ours = "SQLite" if target else "PostgreSQL"
    if not kind:
        raise BadInput(f"{file} is no backup: it must be a file of `diagnoser db backup`, and not be packed")
    if kind != ours:
        raise BadInput(f"{file} is a backup of {kind}, and the database is {ours}")


async def holds_data(url: str) -> bool:
    """Whether there is a database with tables. Makes no file."""
    file = _sqlite_file(url)
    if file is not None and not (file.is_file() and file.stat().st_size):
        return False
    async with connected(url) as connection:
        return bool(await connection.run_sync(lambda opened: inspect(opened).get_table_names()))


def _copy(source: Path, target: Path, progress: Progress) -> None:
    """The source's snapshot is held open: writers beside it do not make the copy begin anew."""
    try:
        with (
            closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as reader,
            closing(sqlite3.connect(target, timeout=30.0)) as writer,
        ):
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
            reader.backup(writer, pages=PAGES, progress=lambda _, left, pages: progress(pages - left, pages))
    except sqlite3.Error as error:
        raise Unavailable(f"database: {error}") from error


def _check_unused(target: Path) -> None:
    """Raises BadInput while a service has the database open: only who is alone with it can end its write-ahead log."""
    try:
        with closing(sqlite3.connect(target, timeout=1.0)) as opened:
            opened.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.DatabaseError as error:  # of a damaged database, the copy makes a whole one
        if "locked" in str(error):
            raise BadInput(f"{target} is in use: stop the service first") from None
        if "not a database" in str(error):
            raise BadInput(f"{target} is no SQLite database: move it away") from None


def _check_backup(file: Path) -> None:
    """Raises BadInput for a file that is damaged or not one of ours: better before than after."""
    try:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as backup:
            (fault,) = backup.execute("PRAGMA quick_check(1)").fetchone()
            (revision,) = backup.execute("SELECT version_num FROM alembic_version").fetchone()
    except (sqlite3.Error, TypeError) as error:
        raise BadInput(f"{file} is no backup of a diagnoser database: {error}") from None
    if fault != "ok":
        raise BadInput(f"{file} is damaged: {fault}")
    if why := why_too_old(revision):
        raise BadInput(f"{file} {why}")
    if revision > head():
        raise BadInput(f"{file} has schema {revision}, and this diagnoser knows {head()}: use a newer one")


def _run(program: str, url: str, arguments: list[str]) -> None:
    """PostgreSQL's own program; the password goes by the environment, which other users cannot read."""
    path = _postgresql_program(program)
    target = parsed_url(url)
    environment = dict(os.environ)
    if target.password:
        environment["PGPASSWORD"] = str(target.password)
    command = [path, *arguments]
    if program != "pg_restore":  # which is told by an option
        command.append(_without_password(url))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[0]
        raise Unavailable(f"{program} failed: {reason}")


def _postgresql_program(name: str) -> str:
    """On Debian they are not in PATH."""
    found = shutil.which(name) or next(
        map(str, sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)), None
    )
    if found is None:
        raise BadInput(f"{name} is not installed: it comes with PostgreSQL's client (postgresql-client)")
    return found


def _without_password(url: str) -> str:
    return parsed_url(url).set(drivername="postgresql", password=None).render_as_string(hide_password=False)


def _sqlite_file(url: str) -> Path | None:
    target = parsed_url(url)
    return Path(target.database or "") if target.get_backend_name() == "sqlite" else None


def _report(connection: Connection) -> DatabaseReport:
    faults = []
    size = "SELECT pg_database_size(current_database())"
    if connection.dialect.name == "sqlite":
        faults = _sqlite_faults(connection)
        size = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
    revision, tables = current(connection), set(inspect(connection).get_table_names())
    if missing := set(metadata.tables) - tables:
        faults.append(f"tables are missing: {', '.join(sorted(missing))}")
    if revision != head():
        faults.append(f"the database has schema {revision or 'none'}, this diagnoser needs {head()}")
    rows = {}
    for name in _COUNTED:
        if name in tables:
            count = select(func.count()).select_from(metadata.tables[name])
            rows[name] = int(connection.execute(count).scalar_one())
    bytes_used = int(connection.execute(text(size)).scalar_one())
    return DatabaseReport(connection.dialect.name, revision, head(), bytes_used, rows, faults)


def _sqlite_faults(connection: Connection) -> list[str]:
    faults = [str(row[0]) for row in connection.execute(text("PRAGMA integrity_check(10)")) if row[0] != "ok"]
    orphans = connection.execute(text("PRAGMA foreign_key_check")).fetchmany(10)
    faults += [f"a row of {row[0]} refers to a row of {row[2]} that is gone" for row in orphans]
    with suppress(SQLAlchemyError):
        return [*faults, *_index_faults(connection)]
    return [*faults, "the full-text index is damaged"]


def _index_faults(connection: Connection) -> list[str]:
    if inspect(connection).has_table("diagnosis_words_index"):
        check = "INSERT INTO diagnosis_words_index(diagnosis_words_index) VALUES ('integrity-check')"
        connection.execute(text(check))
    return []
