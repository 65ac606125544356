"""Requests that wait until an agent of their cluster takes them."""

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Table, select, update

from diagnoser.adapters.sql.audit import note_change
from diagnoser.adapters.sql.database import Database

T = TypeVar("T")


async def claim_requests(
    db: Database, table: Table, is_waiting: ColumnElement[bool], until: float, limit: int, load: Callable[[Any], T]
) -> list[T]:
    """Lease the oldest requests of a table that wait, for the caller alone. load: reads the body of one."""
    row, kind = table.c, _KINDS[table.name]
    query = select(row.id, row.body).where(is_waiting).order_by(row.created, row.id).limit(limit)
    if not await db.rows(query.limit(1), dict):  # agents poll, and mostly there is nothing
        return []
    requests = []
    async with db.writing() as connection:
        for claimed in (await connection.execute(query.with_for_update(skip_locked=True))).all():
            await connection.execute(update(table).where(row.id == claimed.id).values(lease=until))
            await note_change(connection, kind, claimed.id, None, {"lease": until})
            requests.append(load(claimed.body))
    return requests


_KINDS = {"evidence_requests": "evidence request", "node_requests": "uncordon request"}
"""Table -> what the audit log calls its rows."""
