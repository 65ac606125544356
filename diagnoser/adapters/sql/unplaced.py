"""What came in and belongs to no job: a row for each set of labels."""

import hashlib
from collections.abc import Sequence
from typing import Any

import orjson
from sqlalchemy import Connection, RowMapping, case, delete, func, select

from diagnoser.adapters.sql.database import Repository
from diagnoser.adapters.sql.statements import read_record
from diagnoser.adapters.sql.tables import unplaced_streams
from diagnoser.model import UnplacedStream
from diagnoser.model.record_json import fields_of
from diagnoser.model.unplaced import UnplacedRecord

KEPT_SECONDS = 7 * 86_400.0
"""After its last line a stream is shown, and kept, for so long."""
STREAMS_OF_A_SENDER = 200
"""The newest stay: a sender whose labels never repeat fills no table."""


class UnplacedRepository(Repository):
    """Streams that belong to no job: of each sender the newest, for some days after their last line."""

    async def record_unplaced(self, streams: Sequence[UnplacedStream]) -> None:
        """Add the counts of these streams to what is known of those with the same labels, reason and sender. Bounded:
        the sink may forget the oldest.

        In one order, so that replicas never wait for each other's rows.
        """
        rows = sorted(map(_row, streams), key=lambda row: str(row["digest"]))
        if not rows:
            return
        table = unplaced_streams
        statement = self._db.insert(table)
        new = statement.excluded
        is_newer = new.last_seen >= table.c.last_seen
        grown = {
            "lines": table.c.lines + new.lines,
            "sample": case((is_newer, new.sample), else_=table.c.sample),
            "detail": case((is_newer, new.detail), else_=table.c.detail),
            "first_seen": case((new.first_seen < table.c.first_seen, new.first_seen), else_=table.c.first_seen),
            "last_seen": case((is_newer, new.last_seen), else_=table.c.last_seen),
        }
        upsert = statement.on_conflict_do_update(index_elements=["digest"], set_=grown)
        oldest = max(stream.received for stream in streams) - KEPT_SECONDS

        def work(connection: Connection) -> None:
            connection.execute(upsert, rows)
            connection.execute(delete(table).where(table.c.last_seen < oldest))
            for sender in sorted({stream.sender for stream in streams}):
                newest = select(table.c.digest).where(table.c.sender == sender)
                newest = newest.order_by(table.c.last_seen.desc(), table.c.digest).limit(STREAMS_OF_A_SENDER)
                connection.execute(delete(table).where(table.c.sender == sender, table.c.digest.not_in(newest)))

        await self._db.write(work)

    async def page(self, now: float, limit: int) -> list[UnplacedRecord]:
        """The newest ones first."""
        row = unplaced_streams.c
        query = select(unplaced_streams).where(row.last_seen >= now - KEPT_SECONDS)
        return await self._db.rows(query.order_by(row.last_seen.desc(), row.digest).limit(limit), _record)

    async def count(self, now: float) -> int:
        is_shown = unplaced_streams.c.last_seen >= now - KEPT_SECONDS
        return await self._db.value(select(func.count()).select_from(unplaced_streams).where(is_shown), 0)


def _row(stream: UnplacedStream) -> dict[str, Any]:
    """The digest is of what makes two streams one; NUL, which PostgreSQL cannot hold, becomes a replacement."""
    labels = orjson.dumps([[_text(name), _text(value)] for name, value in stream.labels]).decode()
    key = fields_of(stream, ("sender", "cluster", "protocol", "reason")) | {"labels": labels}
    return {
        **key,
        "digest": hashlib.sha256(orjson.dumps(list(key.values()))).hexdigest(),
        "detail": _text(stream.detail),
        "sample": _text(stream.sample),
        "lines": stream.lines,
        "first_seen": stream.received,
        "last_seen": stream.received,
    }


def _text(text: str) -> str:
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")


def _record(row: RowMapping) -> UnplacedRecord:
    labels = tuple(map(tuple, orjson.loads(row["labels"])))
    return UnplacedRecord(read_record(UnplacedStream, row, labels=labels, received=row["last_seen"]), row["first_seen"])
