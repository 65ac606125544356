"""Streams, deltas and what they do to an attempt."""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import and_, case, delete, func, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from diagnoser.adapters.sql import codec
from diagnoser.adapters.sql.database import Database
from diagnoser.adapters.sql.tables import attempts, deltas, jobs, streams
from diagnoser.model import NODE_LOG, AttemptKey, Job, Stream
from diagnoser.model.errors import Conflict
from diagnoser.ports import Append, Cursor, StoredDelta

_CursorRows = dict[AttemptKey, dict[Stream, Cursor]]

_CHUNK = 5_000
"""Attempts a query; both databases bound the number of values in a statement to about 32,000."""


class LogRows(Database):
    """``ports.LogStore``."""

    async def cursors(self, attempts: Sequence[AttemptKey]) -> _CursorRows:
        async with self.reading() as connection:
            return await _cursors(connection, attempts)

    async def append(self, appends: Sequence[Append]) -> None:
        """The rows of all attempts are locked first, in one order: what is read after that cannot move."""
        if not appends:
            return
        ordered = sorted(appends, key=lambda one: one.attempt)
        async with self.writing() as connection:
            await self.create_jobs(connection, {one.attempt.job: one.received for one in ordered})
            await self.touch(connection, [_touched(one) for one in ordered])
            stored = await _cursors(connection, [one.attempt for one in ordered])
            await self._write_cursors(connection, _moved(ordered, stored))
            await connection.execute(deltas.insert(), [_delta_row(one.attempt, one.delta) for one in ordered])

    async def deltas(self, attempt: AttemptKey) -> list[StoredDelta]:
        found = select(deltas.c.id, deltas.c.data).where(_is(attempt)).order_by(deltas.c.id)
        async with self.reading() as connection:
            return [StoredDelta(row.id, bytes(row.data)) for row in await connection.execute(found)]

    async def compact(self, attempt: AttemptKey, merged: bytes, replaced: Sequence[int]) -> bool:
        """Who deletes all of ``replaced`` wins; the loser finds some gone and undoes its own deletes."""
        try:
            async with self.writing() as connection:
                await self._swap(connection, attempt, merged, sorted(set(replaced)))
        except _Gone:
            return False
        return True

    async def crowded(self, more_than: int, limit: int) -> list[AttemptKey]:
        found = select(attempts.c.job, attempts.c.number).where(attempts.c.deltas > more_than)
        async with self.reading() as connection:
            rows = await connection.execute(found.order_by(attempts.c.deltas.desc()).limit(limit))
            return [AttemptKey(row.job, row.number) for row in rows]

    async def current_attempt(self, job: str) -> int:
        newest = select(func.max(attempts.c.number)).where(attempts.c.job == job)
        async with self.reading() as connection:
            return (await connection.execute(newest)).scalar() or 1

    async def create_jobs(self, connection: AsyncConnection, seen: dict[str, float]) -> None:
        """Jobs appear by themselves. seen: id -> when."""
        rows = [{"id": job, "body": codec.job_text(Job(job, created=when))} for job, when in sorted(seen.items())]
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
        if not rows:
            return
        statement = self.insert(streams)
        new = statement.excluded
        await connection.execute(
            statement.on_conflict_do_update(
                index_elements=["job", "attempt", "source", "node", "rank"],
                set_={"covered": new.covered, "version": new.version},
            ),
            rows,
        )

    async def _swap(self, connection: AsyncConnection, attempt: AttemptKey, merged: bytes, replaced: list[int]) -> None:
        fewer = update(attempts).where(attempts.c.job == attempt.job, attempts.c.number == attempt.number)
        await connection.execute(fewer.values(deltas=attempts.c.deltas + 1 - len(replaced)))
        for start in range(0, len(replaced), _CHUNK):
            part = replaced[start : start + _CHUNK]
            gone = await connection.execute(delete(deltas).where(_is(attempt), deltas.c.id.in_(part)))
            if gone.rowcount != len(part):
                raise _Gone
        await connection.execute(deltas.insert(), _delta_row(attempt, merged))


class _Gone(Exception):
    """A delta that was to be replaced is not there any more."""


async def _cursors(connection: AsyncConnection, keys: Iterable[AttemptKey]) -> _CursorRows:
    found: _CursorRows = {key: {} for key in keys}
    wanted = [(key.job, key.number) for key in found]
    for start in range(0, len(wanted), _CHUNK):
        part = wanted[start : start + _CHUNK]
        query = select(streams).where(tuple_(streams.c.job, streams.c.attempt).in_(part))
        for row in (await connection.execute(query)).mappings():
            stream, cursor = codec.cursor_of(row)
            found[AttemptKey(row["job"], row["attempt"])][stream] = cursor
    return found


def _moved(appends: Sequence[Append], stored: _CursorRows) -> list[dict[str, Any]]:
    """The new cursor rows. Raises Conflict when a cursor is not at the version that the caller read."""
    rows: dict[tuple[AttemptKey, Stream], dict[str, Any]] = {}
    for one in appends:
        for stream, (version, covered) in one.cursors.items():
            known = stored[one.attempt]
            if known.get(stream, Cursor()).version != version:
                raise Conflict(f"stream {stream.source} of {one.attempt.job}/{one.attempt.number} has moved on")
            known[stream] = Cursor(covered, version + 1)
            rows[one.attempt, stream] = _cursor_row(one.attempt, stream, known[stream])
    return list(rows.values())


def _cursor_row(attempt: AttemptKey, stream: Stream, cursor: Cursor) -> dict[str, Any]:
    return {
        "job": attempt.job,
        "attempt": attempt.number,
        "source": stream.source,
        "node": stream.node,
        "rank": stream.rank,
        "covered": codec.ranges_text(cursor.covered),
        "version": cursor.version,
    }


def _touched(one: Append) -> dict[str, Any]:
    fatal = one.fatal and not one.attempt.job.startswith(NODE_LOG)  # a node's log is never due by itself
    return {
        "job": one.attempt.job,
        "number": one.attempt.number,
        "opened": one.received,
        "last_line": one.received,
        "fatal": one.received if fatal else None,
        "fatal_revision": 1 if fatal else 0,
        "ended": None,
        "revision": 1,
        "dirty": one.received,
        "deltas": 1,
    }


def _delta_row(attempt: AttemptKey, data: bytes) -> dict[str, Any]:
    return {"job": attempt.job, "attempt": attempt.number, "data": data}


def _is(attempt: AttemptKey) -> Any:
    return and_(deltas.c.job == attempt.job, deltas.c.attempt == attempt.number)
