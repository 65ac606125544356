"""The outbox's rows."""

import secrets
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from diagnoser.adapters.sql import codec
from diagnoser.adapters.sql.audit import note_change
from diagnoser.adapters.sql.database import Repository, insert_new
from diagnoser.adapters.sql.statements import has_key, pick
from diagnoser.adapters.sql.tables import outbox
from diagnoser.model import OutboxMessage
from diagnoser.model.errors import Conflict, NotFound
from diagnoser.model.plans import DueMessage, OutboxRecord

GIVEN_UP = frozenset({"dead", "expired"})


class OutboxRepository(Repository):
    async def claim(self, now: float, lease: float, limit: int) -> list[DueMessage]:
        due = select(outbox).where(outbox.c.state == "pending", outbox.c.due <= now, outbox.c.lease <= now)
        due = due.order_by(outbox.c.due, outbox.c.key).limit(limit)
        if not await self._db.any(due):
            return []
        token = secrets.token_hex(16)
        async with self._db.writing() as connection:
            rows = (await connection.execute(due.with_for_update(skip_locked=True))).mappings().all()
            if rows:
                mine = update(outbox).where(outbox.c.key.in_(list(map(itemgetter("key"), rows))))
                await connection.execute(mine.values(token=token, lease=now + lease, tries=outbox.c.tries + 1))
        return [DueMessage(codec.message_of(row), row["tries"] + 1, token) for row in rows]

    async def extend(self, due: Sequence[DueMessage], until: float) -> None:
        """Renew the leases; those that are recorded by now, or lost, stay as they are."""
        mine = [(message.message.key, message.token) for message in due]
        held = update(outbox).where(has_key((outbox.c.key, outbox.c.token), mine))
        await self._db.execute(held.values(lease=until))

    async def record_delivery(self, due: DueMessage, state: str, *, retry_at: float = 0.0, error: str = "") -> None:
        """state: ``sent``, ``dead``, ``expired``, ``withheld``, ``pending`` with ``retry_at`` after a failed try, or
        ``deferred``: pending with ``retry_at``, without a try. Ignored when the lease was lost."""
        values: dict[str, Any] = {"state": state, "due": retry_at or outbox.c.due, "error": error}
        values |= {"token": "", "lease": 0.0}
        if state in ("expired", "deferred"):  # the claim was not a try
            values["tries"] = outbox.c.tries - 1
        if state == "deferred":
            values["state"] = "pending"
        mine = update(outbox).where(outbox.c.key == due.message.key, outbox.c.token == due.token)
        await self._db.execute(mine.values(values))

    async def add(self, message: OutboxMessage, *, audited: bool = False) -> None:
        """Ignored when its key is there. audited: the message is what the current call is about."""
        async with self._db.writing() as connection:
            row = codec.message_row(message)
            await insert_new(connection, outbox, [row])
            if audited:
                await note_change(connection, "message", message.key, None, pick(row, ("kind", "state", "created")))

    async def messages(self, keys: Sequence[str] | None = None) -> list[OutboxRecord]:
        query = select(outbox).order_by(outbox.c.created, outbox.c.key)
        if keys is not None:
            query = query.where(outbox.c.key.in_(keys))
        return await self._db.rows(query, codec.outbox_record_of)

    async def page(self, state: str, after: str, limit: int) -> list[OutboxRecord]:
        """By key; ``after`` is the last key of the page before, "" for the first page. state: "" for all."""
        query = select(outbox).where(outbox.c.key > after).order_by(outbox.c.key).limit(limit)
        if state:
            query = query.where(outbox.c.state == state)
        return await self._db.rows(query, codec.outbox_record_of)

    async def retry(self, key: str, now: float, expires: float) -> OutboxRecord:
        """Make a dead or expired message due again, until ``expires`` at least. Raises NotFound, Conflict."""
        mine = select(outbox).where(outbox.c.key == key)
        async with self._db.writing() as connection:
            row = (await connection.execute(mine.with_for_update())).mappings().first()
            if row is None:
                raise NotFound(f"there is no effect {key!r}")
            if row["state"] not in GIVEN_UP:
                raise Conflict(f"effect {key} is {row['state']}: only a dead or expired one can be retried")
            values = {"state": "pending", "due": now, "expires": max(row["expires"], expires), "error": ""}
            await connection.execute(update(outbox).where(outbox.c.key == key).values(values))
            was = pick(row, values)
            await note_change(connection, "message", key, was, was | values)
            return codec.outbox_record_of((await connection.execute(mine)).mappings().one())


async def add_messages(connection: AsyncConnection, messages: Sequence[OutboxMessage]) -> None:
    """Within the transaction that decides what they tell. One whose key is there stays as it is."""
    await insert_new(connection, outbox, list(map(codec.message_row, messages)))
