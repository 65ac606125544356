"""The audit log: each entry is written in the transaction of what it tells."""

from collections.abc import Mapping
from typing import Any

import orjson
from pydantic_core import to_jsonable_python
from sqlalchemy import RowMapping, Select, select
from sqlalchemy.ext.asyncio import AsyncConnection

from diagnoser.adapters.sql.database import Repository
from diagnoser.adapters.sql.statements import read_record
from diagnoser.adapters.sql.tables import audit_log
from diagnoser.model.audit import Actor, ActorKind, AuditEntry, changed_fields
from diagnoser.model.queries import AuditFilter
from diagnoser.ports.audit import current_call

UNKNOWN = Actor("", ActorKind.ANONYMOUS)


class AuditRepository(Repository):
    """The audit log. Entries are added and, at their age, dropped; nothing changes one."""

    async def add(self, entry: AuditEntry) -> None:
        """Of something that left no entry in a transaction of its own."""
        await self._db.execute(audit_log.insert().values(_row(entry)))

    async def page(self, where: AuditFilter, before: int, limit: int) -> list[AuditEntry]:
        """The newest first. before: id of the last entry already seen, 0 for the first page."""
        query = _matching(where).order_by(audit_log.c.id.desc()).limit(limit)
        if before:
            query = query.where(audit_log.c.id < before)
        return await self._db.rows(query, _entry)

    async def drop(self, before: float, limit: int) -> int:
        row = audit_log.c
        return await self._db.drop_rows(select(row.id).where(row.time < before).order_by(row.time), limit, row.id)


async def note_change(
    connection: AsyncConnection, object_kind: str, object_id: str, before: object | None, after: object | None
) -> None:
    """Write down, within this transaction, what the current call does to an object; nothing where nobody calls.

    before, after: the object as a dataclass or mapping, None where it is not there. No secrets, and no hash of one.
    """
    call = current_call()
    if call is None:
        return
    was, becomes = changed_fields(_fields(before), _fields(after))
    entry = AuditEntry(call.time, call.actor or UNKNOWN, call.action, object_kind, object_id, before=was, after=becomes)
    await connection.execute(audit_log.insert(), _row(entry))
    call.entries += 1


def _fields(value: object | None) -> dict[str, object] | None:
    if value is None:
        return None
    fields = to_jsonable_python(value, serialize_unknown=True)
    return fields if isinstance(fields, dict) else {"value": fields}


def _matching(where: AuditFilter) -> Select[Any]:
    row = audit_log.c
    exact = {
        row.actor: where.actor,
        row.actor_kind: where.kind,
        row.object_kind: where.object_kind,
        row.result: where.result,
    }
    query = select(audit_log).where(*(column == str(value) for column, value in exact.items() if value))
    for column, part in ((row.action, where.action), (row.object_id, where.object_id)):
        if part:
            query = query.where(column.contains(part, autoescape=True))
    if where.since is not None:
        query = query.where(row.time >= where.since)
    if where.until is not None:
        query = query.where(row.time < where.until)
    return query


def _row(entry: AuditEntry) -> dict[str, Any]:
    return {
        "time": entry.time,
        "actor": _stored(entry.actor.name),
        "actor_kind": entry.actor.kind.value,
        "address": _stored(entry.actor.address),
        "action": _stored(entry.action),
        "object_kind": entry.object_kind,
        "object_id": _stored(entry.object_id),
        "result": entry.result.value,
        "detail": _stored(entry.detail),
        "before": _text(entry.before),
        "after": _text(entry.after),
    }


def _stored(text: str) -> str:
    """PostgreSQL holds no NUL and no lone surrogate."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()[:1000]


def _text(fields: Mapping[str, object] | None) -> str | None:
    return None if fields is None else orjson.dumps(fields).decode()


def _entry(row: RowMapping) -> AuditEntry:
    sides = {name: orjson.loads(row[name]) if row[name] is not None else None for name in ("before", "after")}
    actor = Actor(row["actor"], ActorKind(row["actor_kind"]), row["address"])
    return read_record(AuditEntry, row, actor=actor, **sides)
