"""Which object of the archive holds which lines. ``LogRepository.compact`` adds to it."""

from collections.abc import Sequence

from sqlalchemy import Connection, RowMapping, and_, delete, func, select

from diagnoser.adapters.sql.database import Repository
from diagnoser.adapters.sql.statements import of_attempt
from diagnoser.adapters.sql.tables import archive_segments
from diagnoser.adapters.sql.tables import streams as stream_rows
from diagnoser.model import AttemptKey, Stream
from diagnoser.model.logs import ArchivedSegment
from diagnoser.model.record_json import fields_of


class ArchiveRepository(Repository):
    async def streams(
        self,
        attempt: AttemptKey,
        limit: int,
        *,
        source: str | None = None,
        node: str | None = None,
        rank: int | None = None,
        provenance: str | None = None,
    ) -> list[Stream]:
        """The streams of an attempt that are called so, in order; None stands for any."""
        row = stream_rows.c
        named = {row.source: source, row.node: node, row.rank: rank, row.provenance: provenance}
        query = select(*named).where(of_attempt(stream_rows, attempt))
        query = query.where(*(column == value for column, value in named.items() if value is not None))
        return await self._db.records(query.order_by(*named).limit(limit), Stream)

    async def archived_segments(
        self, attempt: AttemptKey, stream: bytes, first: int, last: int
    ) -> list[ArchivedSegment]:
        """Those that may hold lines first..last (closed) of a stream, by their lowest line."""
        row = archive_segments.c
        holds = and_(
            row.first_stream <= stream, row.last_stream >= stream, row.first_line <= last, row.last_line >= first
        )
        query = (
            select(archive_segments)
            .where(of_attempt(archive_segments, attempt), holds)
            .order_by(row.first_line, row.key, row.start)
        )
        return await self._db.rows(query, _segment)

    async def newest_segments(self, attempt: AttemptKey, skipped: int, limit: int) -> list[ArchivedSegment]:
        """Those of an attempt, the ones that were archived last in front, without the first ``skipped`` ones."""
        row = archive_segments.c
        query = select(archive_segments).where(of_attempt(archive_segments, attempt))
        query = query.order_by(row.stored.desc(), row.key, row.start.desc()).offset(skipped).limit(limit)
        return await self._db.rows(query, _segment)

    async def archived_bytes(self) -> int:
        """Of all segments that are not dropped."""
        return int(await self._db.value(select(func.sum(archive_segments.c.size)), 0))

    async def drop_archived(self, before: float, limit: int) -> tuple[int, int]:
        """Forget the oldest objects that were archived before; (how many, their bytes). They are swept later."""
        row = archive_segments.c
        oldest = select(row.key, func.sum(row.size)).where(row.stored < before)
        oldest = oldest.group_by(row.stored, row.key).order_by(row.stored, row.key).limit(limit)
        async with self._db.reading() as connection:
            sizes = {key: int(size) for key, size in await connection.execute(oldest)}
        if sizes:
            async with self._db.writing() as connection:
                await connection.execute(delete(archive_segments).where(row.key.in_(sizes)))
        return len(sizes), sum(sizes.values())

    async def archived_keys(self, keys: Sequence[str]) -> set[str]:
        """Those of the keys whose lines somebody can still ask for."""
        query = select(archive_segments.c.key).where(archive_segments.c.key.in_(keys)).distinct()
        return set(await self._db.values(query, str))


def add_segments(
    connection: Connection, attempt: AttemptKey, segments: Sequence[ArchivedSegment], stored: float
) -> None:
    """Within the transaction that replaces the raw pieces which hold the same lines."""
    rows = []
    for segment in segments:
        row = {
            "job": attempt.job,
            "attempt": attempt.number,
            **fields_of(segment, ("key", "start", "size")),
            "first_stream": segment.streams[0],
            "last_stream": segment.streams[1],
            "first_line": segment.lines[0],
            "last_line": segment.lines[1],
            "stored": stored,
        }
        rows.append(row)
    if rows:
        connection.execute(archive_segments.insert(), rows)


def _segment(row: RowMapping) -> ArchivedSegment:
    lines = row["first_line"], row["last_line"]
    return ArchivedSegment(
        row["key"], row["start"], row["size"], (bytes(row["first_stream"]), bytes(row["last_stream"])), lines
    )
