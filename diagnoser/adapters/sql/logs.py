"""Streams, deltas and what they do to an attempt."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    case,
    delete,
    exists,
    func,
    literal,
    or_,
    select,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from diagnoser.adapters.sql import codec
from diagnoser.adapters.sql.archive import add_segments
from diagnoser.adapters.sql.database import Repository, dialect_insert, insert
from diagnoser.adapters.sql.statements import has_key, matches, of_attempt
from diagnoser.adapters.sql.tables import HAS_RAW, allocations, attempts, deltas, source_offsets
from diagnoser.adapters.sql.tables import jobs as job_rows
from diagnoser.adapters.sql.tables import streams as stream_rows
from diagnoser.model import NODE_LOG, AttemptKey, Job, Stream, spoken_job_id
from diagnoser.model.access import Viewer
from diagnoser.model.errors import BadInput, Conflict, OffsetsMoved, OwnerMoved
from diagnoser.model.logs import (
    Append,
    ArchivedSegment,
    CompactionClaim,
    CompactionTiming,
    Cursor,
    OffsetAdvance,
    Partition,
    StoredPiece,
)

_CursorRows = dict[AttemptKey, dict[Stream, Cursor]]

_PLACE = ("job", "attempt", "source", "node", "rank", "provenance")

_REORDERED = 300.0
"""Seconds by which what arrived earlier may be stored later; further back, the database's clock was set back."""
STREAMS_LIMIT = 65_536
"""Of one attempt: each costs a cursor, and lines that are kept because they are its first and last."""

_NEW_PIECES = deltas.insert()

_CHUNK = 4_000
"""Attempts or streams a query; both databases bound the number of values in a statement to about 32,000."""

_ENDS = 100
"""Attempts whose newest pieces one query reads."""


class LogRepository(Repository):
    """The compressed logs of attempts, their streams and how far each was read."""

    async def cursors(self, attempts: Sequence[AttemptKey]) -> _CursorRows:
        """The cursors of all streams of these attempts; an unknown attempt has none."""
        async with self._db.reading() as connection:
            return await _cursors(connection, attempts)

    async def stream_cursors(self, streams: Mapping[AttemptKey, Collection[Stream]]) -> _CursorRows:
        """The cursors of these streams, as far as there are any: an attempt may have thousands."""
        places = [_place(key, stream) for key, own in streams.items() for stream in own]
        cursors: _CursorRows = {key: {} for key in streams}
        async with self._db.reading() as connection:
            for start in range(0, len(places), _CHUNK):
                mine = has_key(tuple(stream_rows.c[_PLACE]), places[start : start + _CHUNK])
                await _add_cursors(connection, select(stream_rows).where(mine), cursors)
        return cursors

    async def append(self, appends: Sequence[Append], advances: Sequence[OffsetAdvance] = ()) -> None:
        """Commit all or nothing; creates unknown jobs and attempts. Raises Conflict when a cursor moved, or when two
        appends are to one stream; OwnerMoved when a job is not its senders' any more; BadInput when an attempt would
        have too many streams.

        advances: where the lines were read; stored with them, so that each message counts once. Raises OffsetsMoved
        when one of these partitions has been read further meanwhile.

        Locks the rows of partitions first, then those of all attempts, each in one order: writers of one attempt
        never wait for each other's cursors.
        """
        if not appends and not advances:
            return
        ordered = sorted(appends, key=lambda append: append.attempt)
        first_seen = {append.attempt.job: append.received for append in ordered}
        touched, cursors = list(map(_attempt_row, ordered)), _cursor_rows(ordered)
        stored = [_piece_row(append.attempt, append.data, append.raw) for append in ordered]
        senders = [(append.attempt.job, sender) for append in ordered for sender in append.senders]

        def work(connection: Connection) -> None:
            for advance in sorted(advances, key=lambda advance: advance.partition):
                _advance(connection, advance)
            if not ordered:
                return
            check_owners(connection, senders)
            create_jobs(connection, first_seen)
            touch_attempts(connection, touched)
            _check_streams(connection, [append.attempt for append in ordered if append.new_streams])
            _write_cursors(connection, cursors)
            connection.execute(_NEW_PIECES, stored)

        await self._db.write(work)

    async def source_offsets(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The offset of the first message that is not stored, of those partitions that anything is stored of."""
        row = source_offsets.c
        mine = tuple_(row.cluster, row.consumer_group, row.topic, row.partition).in_(list(map(tuple, partitions)))
        query = select(source_offsets).where(mine)
        async with self._db.reading() as connection:
            rows = await connection.execute(query) if partitions else ()
            return {Partition(row.cluster, row.consumer_group, row.topic, row.partition): row.next for row in rows}

    async def pieces(self, attempt: AttemptKey) -> list[StoredPiece]:
        """The whole log, oldest first."""
        async with self._db.reading() as connection:
            return await _pieces(connection, of_attempt(deltas, attempt))

    async def stored_size(self, attempt: AttemptKey) -> int:
        """Bytes of all pieces of the log as they are stored."""
        query = select(func.coalesce(func.sum(func.length(deltas.c.data)), 0)).where(of_attempt(deltas, attempt))
        return int(await self._db.value(query))

    async def newest_pieces(
        self, attempts: Collection[AttemptKey], count: int, size: int
    ) -> dict[AttemptKey, list[StoredPiece]]:
        """The end of each log: its newest ``count`` pieces without those of more than ``size`` stored bytes, oldest
        first.

        One query for many attempts; each part of it is one range of an index.
        """
        row, keys = deltas.c, sorted(attempts)
        newest: dict[AttemptKey, list[StoredPiece]] = {key: [] for key in keys}
        async with self._db.reading() as connection:
            for start in range(0, len(keys), _ENDS):
                ends = []
                for key in keys[start : start + _ENDS]:
                    query = select(row.job, row.attempt, row.id, row.data, row.raw).where(of_attempt(deltas, key))
                    last = query.order_by(row.id.desc()).limit(count).subquery()
                    ends.append(select(*last.c).where(func.length(last.c.data) <= size))
                for piece in await connection.execute(union_all(*ends)):
                    stored = StoredPiece(piece.id, bytes(piece.data), piece.raw)
                    newest[AttemptKey(piece.job, piece.attempt)].append(stored)
        return {key: sorted(pieces, key=lambda piece: piece.id) for key, pieces in newest.items()}

    async def raw_pieces(self, attempt: AttemptKey, size: int, after: int = 0) -> list[StoredPiece]:
        """The oldest raw pieces behind the one with the id ``after``, up to ``size`` bytes of log text (at least one
        piece, if there is any)."""
        is_raw = and_(of_attempt(deltas, attempt), deltas.c.raw > 0, deltas.c.id > after)
        sizes = select(deltas.c.id, deltas.c.raw).where(is_raw).order_by(deltas.c.id)
        async with self._db.reading() as connection:
            newest, total = 0, 0
            for row in await connection.execute(sizes):
                if newest and total + row.raw > size:
                    break
                newest, total = row.id, total + row.raw
            return await _pieces(connection, and_(is_raw, deltas.c.id <= newest))

    async def jobs_with_raw(self, size: int) -> list[str]:
        """Jobs with an attempt that has more than ``size`` bytes of log text in raw pieces."""
        crowded = select(attempts.c.job).distinct().where(HAS_RAW, attempts.c.raw_bytes > size)
        return await self._db.values(crowded, str)

    async def claim_compaction(self, now: float, timing: CompactionTiming, until: float) -> CompactionClaim | None:
        """An attempt whose pieces shall become fewer, for the caller alone until then. None when there is none."""
        row = attempts.c
        is_free, is_crowded = row.compacting <= now, row.deltas > timing.crowd
        is_window = and_(HAS_RAW, or_(row.raw_bytes >= timing.window, row.last_line <= now - timing.idle))
        columns = (row.job, row.number, row.deltas)
        raw = select(*columns).where(is_window, is_free).order_by(row.raw_bytes.desc()).limit(1)
        crowd = select(*columns).where(is_crowded, is_free).order_by(row.deltas.desc()).limit(1)
        for query in (raw, crowd):
            if not await self._db.any(query):
                continue
            async with self._db.writing() as connection:
                locked = query.with_for_update(skip_locked=True, key_share=True)
                if due := (await connection.execute(locked)).first():
                    key = AttemptKey(due.job, due.number)
                    await connection.execute(update(attempts).where(of_attempt(attempts, key)).values(compacting=until))
                    return CompactionClaim(key, merges_deltas=due.deltas > timing.crowd)
        return None

    async def put_off_compaction(self, attempt: AttemptKey, until: float) -> None:
        await self._db.execute(update(attempts).where(of_attempt(attempts, attempt)).values(compacting=until))

    async def compact(
        self,
        attempt: AttemptKey,
        merged: bytes,
        replaced: Sequence[StoredPiece],
        archived: Sequence[ArchivedSegment] = (),
        now: float = 0.0,
    ) -> bool:
        """Replace pieces by the delta ``merged`` and end the claim; False when one of them is already gone. archived:
        where the lines of the raw ones are from now on.

        Of two callers the one that deletes all of ``replaced`` wins; the other finds rows missing and rolls back.
        """
        pieces = {piece.id: piece.raw for piece in replaced}

        def work(connection: Connection) -> None:
            changes = {
                "deltas": attempts.c.deltas + 1 - len(pieces),
                "raw_bytes": attempts.c.raw_bytes - sum(pieces.values()),
                "compacting": 0.0,
            }
            connection.execute(update(attempts).where(of_attempt(attempts, attempt)).values(changes))
            ids = sorted(pieces)
            for start in range(0, len(ids), _CHUNK):
                chunk = ids[start : start + _CHUNK]
                deleted = connection.execute(delete(deltas).where(of_attempt(deltas, attempt), deltas.c.id.in_(chunk)))
                if deleted.rowcount != len(chunk):
                    raise _Gone
            connection.execute(_NEW_PIECES, _piece_row(attempt, merged))
            add_segments(connection, attempt, archived, now)

        try:
            await self._db.write(work)
        except _Gone:
            return False
        return True

    async def current_attempt(self, job: str) -> int:
        """The highest attempt number of the job, 1 for an unknown job."""
        return (await self.current_attempts([job]))[job]

    async def current_attempts(self, jobs: Collection[str]) -> dict[str, int]:
        names, newest = sorted(jobs), dict.fromkeys(jobs, 1)
        async with self._db.reading() as connection:
            for start in range(0, len(names), _CHUNK):
                mine = attempts.c.job.in_(names[start : start + _CHUNK])
                query = (
                    select(attempts.c.job, func.max(attempts.c.number).label("number"))
                    .where(mine)
                    .group_by(attempts.c.job)
                )
                newest |= {row.job: row.number for row in await connection.execute(query)}
        return newest

    async def newest_of_registered(self, jobs: Collection[str]) -> dict[str, int]:
        """The highest attempt number that an agent told of, of each of the jobs that one registered."""
        names, registered = sorted(jobs), set[str]()
        async with self._db.reading() as connection:
            for start in range(0, len(names), _CHUNK):
                bodies = select(job_rows.c.body).where(job_rows.c.id.in_(names[start : start + _CHUNK]))
                known = map(codec.job_of, (await connection.execute(bodies)).scalars())
                registered |= {job.id for job in known if job.registered}
            column = allocations.c
            newest_told = select(column.job, func.max(column.attempt).label("number")).group_by(column.job)
            told = newest_told.where(column.job.in_(sorted(registered)))
            newest = {row.job: row.number for row in await connection.execute(told)}
        return await self.current_attempts(registered - newest.keys()) | newest

    async def revisit(self, log: str, since: float, now: float) -> int:
        """Make attempts due again that ran on this log's node and failed or ended after ``since``; returns how many.

        Only attempts that were diagnosed: the others will see the log anyway.

        Finds attempts by the nodes that the scheduler gave them, or their job where nobody told of this attempt:
        what the streams of a job are called is for the job to say. Host names there may be short or full.
        """
        node = log.rpartition("/")[2]
        nodes = literal(" ") + allocations.c.nodes + " "
        of_job, own = allocations.c.job == attempts.c.job, allocations.alias()
        is_allocated = (
            exists().where(own.c.job == attempts.c.job, own.c.attempt == attempts.c.number).correlate(attempts)
        )
        allocated = exists().where(
            of_job,
            or_(allocations.c.attempt == attempts.c.number, ~is_allocated),
            or_(*(nodes.contains(f" {node}{end}", autoescape=True) for end in (" ", "."))),
        )
        diagnosed = and_(attempts.c.diagnosed > 0, attempts.c.revision == attempts.c.diagnosed)
        recent = func.coalesce(attempts.c.ended, attempts.c.fatal) >= since
        is_job = attempts.c.job.not_like(f"{NODE_LOG}%")
        bump = update(attempts).where(recent, diagnosed, is_job, allocated)
        return await self._db.execute(bump.values(revision=attempts.c.revision + 1, dirty=now))


def _advance(connection: Connection, advance: OffsetAdvance) -> None:
    """Compare and set. The loser waits for the winner's commit, then finds another value than it has read."""
    cluster, group, topic, number = advance.partition
    key = {"cluster": cluster, "consumer_group": group, "topic": topic, "partition": number}
    if advance.read is None:
        row = {**key, "next": advance.next}
        done = connection.execute(insert(connection, source_offsets).values(row).on_conflict_do_nothing())
    else:
        same = matches(source_offsets, key)
        unmoved = source_offsets.c.next == advance.read
        done = connection.execute(update(source_offsets).where(same, unmoved).values(next=advance.next))
    if done.rowcount != 1:
        raise OffsetsMoved(f"partition {number} of {topic} has been read further by another member of {group}")


def create_jobs(connection: Connection, first_seen: dict[str, float]) -> None:
    """Creates the jobs that nobody registered. first_seen: job id -> time."""
    rows = [{"id": job, "body": codec.job_text(Job(job, created=time))} for job, time in sorted(first_seen.items())]
    if rows:
        connection.execute(_new_jobs(connection.dialect.name), rows)


def touch_attempts(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Create attempts, or grow their revision by one with the news of each row. Locks them."""
    connection.execute(_touched(connection.dialect.name), rows)


def _write_cursors(connection: Connection, rows: list[dict[str, Any]]) -> None:
    """Compare and set: a row at another version than the one read is left as it is, and missing in the answer."""
    if rows and len(connection.execute(_swapped_cursors(connection.dialect.name), rows).all()) != len(rows):
        raise Conflict("a stream of this commit has moved on")


@cache
def _new_jobs(dialect: str) -> Any:
    return dialect_insert(dialect, job_rows).on_conflict_do_nothing()


@cache
def _touched(dialect: str) -> Any:
    statement = dialect_insert(dialect, attempts)
    new = statement.excluded
    grown = attempts.c.revision + 1
    last = attempts.c.last_line
    is_older = or_(new.last_line == 0.0, new.last_line.between(last - _REORDERED, last))
    changes = {
        "revision": grown,
        "deltas": attempts.c.deltas + new.deltas,
        "raw_bytes": attempts.c.raw_bytes + new.raw_bytes,
        "streams": attempts.c.streams + new.streams,
        "last_line": case((is_older, attempts.c.last_line), else_=new.last_line),
        "fatal": func.coalesce(attempts.c.fatal, new.fatal),
        "fatal_revision": case((new.fatal.is_not(None), grown), else_=attempts.c.fatal_revision),
        "ended": func.coalesce(attempts.c.ended, new.ended),
        "dirty": case((attempts.c.revision == attempts.c.diagnosed, new.dirty), else_=attempts.c.dirty),
    }
    return statement.on_conflict_do_update(index_elements=["job", "number"], set_=changes)


@cache
def _swapped_cursors(dialect: str) -> Any:
    statement = dialect_insert(dialect, stream_rows)
    new = statement.excluded
    swapped = statement.on_conflict_do_update(
        index_elements=_PLACE,
        set_={"covered": new.covered, "version": new.version},
        where=stream_rows.c.version == new.version - 1,
    )
    return swapped.returning(stream_rows.c.version)


def check_owners(connection: Connection, senders: Sequence[tuple[str, Viewer]]) -> None:
    """senders: jobs, as the store calls them, each with one who speaks of it for one tenant. Raises OwnerMoved.

    A registration that gives the tenant its job renames what was its own until then: it waits for these locks, or the
    row is gone when it has ended.
    """
    if not senders:
        return
    names = sorted({name for job, _ in senders for name in (job, spoken_job_id(job))})
    owned = select(job_rows.c.id, job_rows.c.tenant).where(job_rows.c.id.in_(names)).order_by(job_rows.c.id)
    rows = connection.execute(owned.with_for_update(read=True, key_share=True))
    tenants = {row.id: row.tenant for row in rows}
    for job, sender in senders:
        spoken = spoken_job_id(job)
        is_given = spoken != job and tenants.get(spoken) == sender.tenant
        if tenants.get(job) != sender.tenant or is_given:
            raise OwnerMoved(f"the job {spoken!r} was given to its owner meanwhile")


def _check_streams(connection: Connection, keys: Sequence[AttemptKey]) -> None:
    """Raises BadInput when one of these attempts has too many streams now."""
    for start in range(0, len(keys), _CHUNK):
        pairs = [(key.job, key.number) for key in keys[start : start + _CHUNK]]
        mine = has_key((attempts.c.job, attempts.c.number), pairs)
        crowded = select(attempts.c.job).where(mine, attempts.c.streams > STREAMS_LIMIT).limit(1)
        if job := connection.execute(crowded).scalar():
            raise BadInput(f"an attempt of {job} would have more than {STREAMS_LIMIT} streams (node, rank, source)")


class _Gone(Exception):
    """A piece to be replaced no longer exists."""


async def _pieces(connection: AsyncConnection, which: ColumnElement[bool]) -> list[StoredPiece]:
    query = select(deltas.c.id, deltas.c.data, deltas.c.raw).where(which).order_by(deltas.c.id)
    return [StoredPiece(row.id, bytes(row.data), row.raw) for row in await connection.execute(query)]


async def _cursors(connection: AsyncConnection, keys: Iterable[AttemptKey]) -> _CursorRows:
    cursors: _CursorRows = {key: {} for key in keys}
    pairs = [(key.job, key.number) for key in cursors]
    for start in range(0, len(pairs), _CHUNK):
        mine = has_key((stream_rows.c.job, stream_rows.c.attempt), pairs[start : start + _CHUNK])
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
    news = {"last_line": append.received, "deltas": 1, "raw_bytes": append.raw, "streams": append.new_streams}
    if fatal:
        news |= {"fatal": append.received, "fatal_revision": 1}
    return new_attempt_row(append.attempt, append.received) | news


def new_attempt_row(attempt: AttemptKey, time: float) -> dict[str, Any]:
    """An attempt of which nothing but this time is known."""
    row: dict[str, Any] = {"job": attempt.job, "number": attempt.number, "opened": time, "dirty": time, "revision": 1}
    nothing = dict.fromkeys(("fatal_revision", "deltas", "raw_bytes", "streams"), 0)
    return row | nothing | {"last_line": 0.0, "fatal": None, "ended": None}


def _piece_row(attempt: AttemptKey, data: bytes, raw: int = 0) -> dict[str, Any]:
    return {"job": attempt.job, "attempt": attempt.number, "data": data, "raw": raw}
