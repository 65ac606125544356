"""Streams, deltas and what they do to an attempt."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Select, and_, case, delete, func, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from diagnoser.adapters.sql import codec
from diagnoser.adapters.sql.database import Database
from diagnoser.adapters.sql.tables import attempts, deltas, jobs
from diagnoser.adapters.sql.tables import streams as stream_rows
from diagnoser.model import NODE_LOG, AttemptKey, Job, Stream
from diagnoser.model.errors import Conflict
from diagnoser.ports import Append, Cursor, StoredDelta

_CursorRows = dict[AttemptKey, dict[Stream, Cursor]]

_PLACE = ("job", "attempt", "source", "node", "rank", "provenance")

_CHUNK = 5_000
"""Attempts or streams a query; both databases bound the number of values in a statement to about 32,000."""


class LogRows(Database):
    """``ports.LogStore``."""

    async def cursors(self, attempts: Sequence[AttemptKey]) -> _CursorRows:
        async with self.reading() as connection:
            return await _cursors(connection, attempts)

    async def stream_cursors(self, streams: Mapping[AttemptKey, Collection[Stream]]) -> _CursorRows:
        places = [_place(key, stream) for key, own in streams.items() for stream in own]
        cursors: _CursorRows = {key: {} for key in streams}
        async with self.reading() as connection:
            for start in range(0, len(places), _CHUNK):
                mine = tuple_(*(stream_rows.c[name] for name in _PLACE)).in_(places[start : start + _CHUNK])
                await _add_cursors(connection, select(stream_rows).where(mine), cursors)
        return cursors

    async def append(self, appends: Sequence[Append]) -> None:
        """Locks the rows of all attempts first, in one order: writers of one attempt never wait for each other's
        cursors."""
        if not appends:
            return
        ordered = sorted(appends, key=lambda append: append.attempt)
        async with self.writing() as connection:
            await self.create_jobs(connection, {append.attempt.job: append.received for append in ordered})
            await self.touch(connection, [_attempt_row(append) for append in ordered])
            await self._write_cursors(connection, _cursor_rows(ordered))
            await connection.execute(deltas.insert(), [_delta_row(append.attempt, append.delta) for append in ordered])

    async def deltas(self, attempt: AttemptKey) -> list[StoredDelta]:
        query = select(deltas.c.id, deltas.c.data).where(_is(attempt)).order_by(deltas.c.id)
        async with self.reading() as connection:
            return [StoredDelta(row.id, bytes(row.data)) for row in await connection.execute(query)]

    async def compact(self, attempt: AttemptKey, merged: bytes, replaced: Sequence[int]) -> bool:
        """Of two callers the one that deletes all of ``replaced`` wins; the other finds rows missing and rolls back."""
        try:
            async with self.writing() as connection:
                await self._swap(connection, attempt, merged, sorted(set(replaced)))
        except _Gone:
            return False
        return True

    async def crowded(self, more_than: int, limit: int) -> list[AttemptKey]:
        query = select(attempts.c.job, attempts.c.number).where(attempts.c.deltas > more_than)
        async with self.reading() as connection:
            rows = await connection.execute(query.order_by(attempts.c.deltas.desc()).limit(limit))
            return [AttemptKey(row.job, row.number) for row in rows]

    async def current_attempt(self, job: str) -> int:
        return (await self.current_attempts([job]))[job]

    async def current_attempts(self, jobs: Collection[str]) -> dict[str, int]:
        names, newest = sorted(jobs), dict.fromkeys(jobs, 1)
        async with self.reading() as connection:
            for start in range(0, len(names), _CHUNK):
                mine = attempts.c.job.in_(names[start : start + _CHUNK])
                query = (
                    select(attempts.c.job, func.max(attempts.c.number).label("number"))
                    .where(mine)
                    .group_by(attempts.c.job)
                )
                newest |= {row.job: row.number for row in await connection.execute(query)}
        return newest

    async def create_jobs(self, connection: AsyncConnection, first_seen: dict[str, float]) -> None:
        """Creates the jobs that nobody registered. first_seen: job id -> time."""
        rows = [{"id": job, "body": codec.job_text(Job(job, created=time))} for job, time in sorted(first_seen.items())]
        await self.insert_new(connection, jobs, rows)

    async def touch(self, connection: AsyncConnection, rows: Sequence[dict[str, Any]]) -> None:
        """Create attempts, or grow their revision by one with the news of each row. Locks them."""
        statement = self.insert(attempts)
        new = statement.excluded
        grown = attempts.c.revision + 1
        changes = {
            "revision": grown,
            "deltas": attempts.c.deltas + new.deltas,
            "last_line": case((new.last_line > attempts.c.last_line, new.last_line), else_=attempts.c.last_line),
            "fatal": func.coalesce(attempts.c.fatal, new.fatal),
            "fatal_revision": case((new.fatal.is_not(None), grown), else_=attempts.c.fatal_revision),
            "ended": func.coalesce(attempts.c.ended, new.ended),
            "dirty": case((attempts.c.revision == attempts.c.diagnosed, new.dirty), else_=attempts.c.dirty),
        }
        await connection.execute(statement.on_conflict_do_update(index_elements=["job", "number"], set_=changes), rows)

    async def _write_cursors(self, connection: AsyncConnection, rows: list[dict[str, Any]]) -> None:
        """Compare and set: a row at another version than the one read is left as it is, and missing in the answer."""
        if not rows:
            return
        statement = self.insert(stream_rows)
        new = statement.excluded
        swap = statement.on_conflict_do_update(
            index_elements=_PLACE,
            set_={"covered": new.covered, "version": new.version},
            where=stream_rows.c.version == new.version - 1,
        )
        written = await connection.execute(swap.returning(stream_rows.c.version), rows)
        if len(written.all()) != len(rows):
            raise Conflict("a stream of this commit has moved on")

    async def _swap(self, connection: AsyncConnection, attempt: AttemptKey, merged: bytes, replaced: list[int]) -> None:
        fewer = update(attempts).where(attempts.c.job == attempt.job, attempts.c.number == attempt.number)
        await connection.execute(fewer.values(deltas=attempts.c.deltas + 1 - len(replaced)))
        for start in range(0, len(replaced), _CHUNK):
            chunk = replaced[start : start + _CHUNK]
            deleted = await connection.execute(delete(deltas).where(_is(attempt), deltas.c.id.in_(chunk)))
            if deleted.rowcount != len(chunk):
                raise _Gone
        await connection.execute(deltas.insert(), _delta_row(attempt, merged))


class _Gone(Exception):
    """A delta to be replaced no longer exists."""


async def _cursors(connection: AsyncConnection, keys: Iterable[AttemptKey]) -> _CursorRows:
    cursors: _CursorRows = {key: {} for key in keys}
    pairs = [(key.job, key.number) for key in cursors]
    for start in range(0, len(pairs), _CHUNK):
        mine = tuple_(stream_rows.c.job, stream_rows.c.attempt).in_(pairs[start : start + _CHUNK])
        await _add_cursors(connection, select(stream_rows).where(mine), cursors)
    return cursors


async def _add_cursors(connection: AsyncConnection, query: Select[Any], cursors: _CursorRows) -> None:
    for row in (await connection.execute(query)).mappings():
        stream, cursor = codec.cursor_of(row)
        cursors[AttemptKey(row["job"], row["attempt"])][stream] = cursor


def _place(attempt: AttemptKey, stream: Stream) -> tuple[str, int, str, str, int, str]:
    """A stream's key, in the order of ``_PLACE``."""
    return attempt.job, attempt.number, stream.source, stream.node, stream.rank, stream.provenance.value


def _cursor_rows(appends: Sequence[Append]) -> list[dict[str, Any]]:
    """Raises Conflict when two appends are to one stream: neither has read what the other leaves."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for append in appends:
        for stream, (version, covered) in append.cursors.items():
            place = _place(append.attempt, stream)
            if place in rows:
                raise Conflict(f"stream {stream.source} of {append.attempt.job}/{append.attempt.number} comes twice")
            values = {"covered": codec.ranges_text(covered), "version": version + 1}
            rows[place] = {**dict(zip(_PLACE, place, strict=True)), **values}
    return list(rows.values())


def _attempt_row(append: Append) -> dict[str, Any]:
    fatal = append.fatal and not append.attempt.job.startswith(NODE_LOG)  # a node's log is never due by itself
    return {
        "job": append.attempt.job,
        "number": append.attempt.number,
        "opened": append.received,
        "last_line": append.received,
        "fatal": append.received if fatal else None,
        "fatal_revision": 1 if fatal else 0,
        "ended": None,
        "revision": 1,
        "dirty": append.received,
        "deltas": 1,
    }


def _delta_row(attempt: AttemptKey, data: bytes) -> dict[str, Any]:
    return {"job": attempt.job, "attempt": attempt.number, "data": data}


def _is(attempt: AttemptKey) -> Any:
    return and_(deltas.c.job == attempt.job, deltas.c.attempt == attempt.number)
