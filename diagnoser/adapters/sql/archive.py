"""Which object of the archive holds which lines."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, func, select

from diagnoser.adapters.sql.database import Repository
from diagnoser.adapters.sql.tables import archive_segments
from diagnoser.adapters.sql.tables import streams as stream_rows
from diagnoser.model import AttemptKey, Provenance, Stream
from diagnoser.ports import ArchivedSegment


class ArchiveRepository(Repository):
    """Which object of the archive holds which lines. ``LogRepository.compact`` adds to it."""

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
        query = select(*named).where(row.job == attempt.job, row.attempt == attempt.number)
        query = query.where(*(column == value for column, value in named.items() if value is not None))
        async with self._db.reading() as connection:
            rows = await connection.execute(query.order_by(*named).limit(limit))
            return [Stream(source, node, rank, Provenance(provenance)) for source, node, rank, provenance in rows]

    async def archived_segments(
        self, attempt: AttemptKey, stream: bytes, first: int, last: int
    ) -> list[ArchivedSegment]:
        """Those that may hold lines first..last (closed) of a stream, by their lowest line."""
        row = archive_segments.c
        holds = and_(
            row.first_stream <= stream, row.last_stream >= stream, row.first_line <= last, row.last_line >= first
        )
        query = select(archive_segments).where(_is(attempt), holds).order_by(row.first_line, row.key, row.start)
        async with self._db.reading() as connection:
            return [
                ArchivedSegment(
                    found.key,
                    found.start,
                    found.size,
                    (bytes(found.first_stream), bytes(found.last_stream)),
                    (found.first_line, found.last_line),
                )
                for found in await connection.execute(query)
            ]

    async def archived_bytes(self) -> int:
        """Of all segments that are not dropped."""
        async with self._db.reading() as connection:
            return int((await connection.execute(select(func.sum(archive_segments.c.size)))).scalar() or 0)

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
        async with self._db.reading() as connection:
            return set((await connection.execute(query)).scalars())


def add_segments(
    connection: Connection, attempt: AttemptKey, segments: Sequence[ArchivedSegment], stored: float
) -> None:
    """Within the transaction that replaces the raw pieces which hold the same lines."""
    rows: list[dict[str, Any]] = [
        {
            "job": attempt.job,
            "attempt": attempt.number,
            "key": segment.key,
            "start": segment.start,
            "size": segment.size,
            "first_stream": segment.streams[0],
            "last_stream": segment.streams[1],
            "first_line": segment.lines[0],
            "last_line": segment.lines[1],
            "stored": stored,
        }
        for segment in segments
    ]
    if rows:
        connection.execute(archive_segments.insert(), rows)


def _is(attempt: AttemptKey) -> ColumnElement[bool]:
    return and_(archive_segments.c.job == attempt.job, archive_segments.c.attempt == attempt.number)
