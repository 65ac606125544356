"""What was last heard and what waits, each by an index: asked for every few seconds, however much is stored."""

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import ColumnElement, and_, case, delete, exists, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.pool import QueuePool

from diagnoser.adapters.sql.database import Repository, insert_new, scalar
from diagnoser.adapters.sql.outbox import add_messages
from diagnoser.adapters.sql.tables import (
    HAS_ENDED,
    HAS_RAW,
    IS_NODE_LOG,
    IS_OPEN,
    IS_RUNNING,
    IS_UNENDED,
    agents,
    allocations,
    attempts,
    blind_spots,
    breakers,
    events,
    outbox,
)
from diagnoser.model import NODE_LOG, OutboxMessage, node_log_id
from diagnoser.model.jobs import stored_cluster
from diagnoser.model.vitals import HEARD_SECONDS, AgentSeen, BlindSpot, PoolUse, Vitals, Waiting

NAMES = 20
"""Jobs that are named, of those that wait."""
BUSY_SECONDS = 3600.0
"""A run that printed within this time is busy on its nodes."""
TOGETHER_SECONDS = 120.0
AGENTS_KEPT_SECONDS = 7 * 86_400.0
"""An agent that is silent for longer is gone."""


class VitalRepository(Repository):
    """What the service last heard, what waits in it, and its blind spots."""

    async def read(self, now: float, silent_seconds: float, begin_seconds: float) -> Vitals:
        """begin_seconds: how long an attempt that began may go without a line before it counts as mute."""
        row = attempts.c
        heard = and_(IS_UNENDED, row.last_line > now - HEARD_SECONDS)
        runs = and_(IS_RUNNING, row.last_line > now - HEARD_SECONDS, _was_announced())
        mute = and_(
            IS_UNENDED,
            row.last_line == 0.0,
            row.opened > now - HEARD_SECONDS,
            row.opened <= now - begin_seconds,
            _was_announced(),
        )
        silent = and_(runs, row.last_line <= now - silent_seconds)
        is_pending, was_tried = outbox.c.state == "pending", outbox.c.tries > 0
        async with self._db.reading() as connection:
            newest = await _newest_line(connection, now)
            return Vitals(
                time=now,
                newest_line=newest,
                together=await _count(connection, and_(heard, row.last_line > newest - TOGETHER_SECONDS)),
                running=await _count(connection, runs),
                silent=await _waiting(connection, silent, row.last_line, row.job),
                mute=await _waiting(connection, mute, row.opened, row.job),
                agents=await _agents(connection, now),
                node_logs=await _node_logs(connection, now),
                busy=await _busy_nodes(connection, now),
                due=await _waiting(connection, IS_OPEN, _waits_since(), row.job),
                messages=await _waiting(
                    connection,
                    and_(is_pending, outbox.c.due <= now, outbox.c.lease <= now),
                    outbox.c.due,
                    outbox.c.target,
                ),
                undelivered=await _waiting(connection, and_(is_pending, was_tried), outbox.c.created, outbox.c.target),
                raw_bytes=int(await scalar(connection, select(func.sum(row.raw_bytes)).where(HAS_RAW), 0)),
                leased={
                    "attempt": await _count(connection, and_(IS_OPEN, row.lease > now, row.token != "")),
                    "compaction": await _count(connection, and_(HAS_RAW, row.compacting > now)),
                    "message": await scalar(
                        connection,
                        select(func.count()).select_from(outbox).where(is_pending, outbox.c.lease > now),
                        0,
                    ),
                },
                tripped=await scalar(
                    connection, select(func.count()).select_from(breakers).where(breakers.c.tripped), 0
                ),
            )

    def pool_use(self) -> PoolUse:
        pool = self._db.pool
        return PoolUse(pool.checkedout(), pool.checkedin()) if isinstance(pool, QueuePool) else PoolUse(0, 0)

    async def record_agent(self, cluster: str, executor: str, now: float) -> None:
        await self._db.upsert(agents, {"cluster": cluster, "executor": executor, "last_seen": now})

    async def blind_spots(self) -> list[BlindSpot]:
        """Those that were told, and whose end was not."""
        query = select(blind_spots).order_by(blind_spots.c.since, blind_spots.c.kind, blind_spots.c.subject)
        return await self._db.records(query, BlindSpot)

    async def begin_blind_spot(self, spot: BlindSpot, messages: Sequence[OutboxMessage]) -> bool:
        """Store it with what tells of it, in one transaction. False, and nothing is stored, where it is there."""
        async with self._db.writing() as connection:
            if not await insert_new(connection, blind_spots, [asdict(spot) | {"kind": spot.kind.value}]):
                return False
            await add_messages(connection, messages)
            return True

    async def end_blind_spot(self, spot: BlindSpot, messages: Sequence[OutboxMessage]) -> bool:
        """Forget it and store what tells of that. False, and nothing is stored, where it is not there any more."""
        mine = and_(blind_spots.c.kind == spot.kind.value, blind_spots.c.subject == spot.subject)
        async with self._db.writing() as connection:
            if not (await connection.execute(delete(blind_spots).where(mine))).rowcount:
                return False
            await add_messages(connection, messages)
            return True


def _was_announced() -> ColumnElement[bool]:
    """A scheduler or launcher said that it begins: without that nobody will say that it has ended."""
    of_events = and_(events.c.job == attempts.c.job, events.c.attempt == attempts.c.number)
    of_allocations = and_(allocations.c.job == attempts.c.job, allocations.c.attempt == attempts.c.number)
    return or_(exists().where(of_events), exists().where(of_allocations))


def _waits_since() -> ColumnElement[float]:
    """What was diagnosed and has news waits since the news."""
    row = attempts.c
    begun = func.coalesce(row.ended, row.fatal)
    return case((row.dirty > begun, row.dirty), else_=begun)


async def _count(connection: AsyncConnection, which: ColumnElement[bool]) -> int:
    return await scalar(connection, select(func.count()).select_from(attempts).where(which), 0)


async def _waiting(
    connection: AsyncConnection, which: ColumnElement[bool], since: ColumnElement[float], name: ColumnElement[str]
) -> Waiting:
    count, first = (await connection.execute(select(func.count(), func.min(since)).where(which))).one()
    if not count:
        return Waiting()
    names = await connection.execute(select(name).where(which).order_by(since).limit(NAMES))
    return Waiting(count, first, tuple(names.scalars()))


async def _newest_line(connection: AsyncConnection, now: float) -> float:
    """Of running and of ended attempts, as far as these ended lately."""
    row = attempts.c
    heard, newest = row.last_line > now - HEARD_SECONDS, select(func.max(row.last_line))
    unended = await scalar(connection, newest.where(IS_UNENDED, heard), 0.0)
    ended = await scalar(connection, newest.where(HAS_ENDED, row.ended > now - HEARD_SECONDS, heard), 0.0)
    return max(unended, ended)


async def _agents(connection: AsyncConnection, now: float) -> tuple[AgentSeen, ...]:
    query = select(agents).where(agents.c.last_seen > now - AGENTS_KEPT_SECONDS).order_by(agents.c.cluster)
    rows = (await connection.execute(query)).mappings()
    return tuple(AgentSeen(**row) for row in rows)


async def _node_logs(connection: AsyncConnection, now: float) -> dict[str, dict[str, float]]:
    row = attempts.c
    newest = select(row.job, func.max(row.last_line)).group_by(row.job)
    newest = newest.where(IS_NODE_LOG, row.last_line > now - HEARD_SECONDS)
    logs: dict[str, dict[str, float]] = {}
    for log, last in await connection.execute(newest):
        cluster, _, node = log.removeprefix(NODE_LOG).partition("/")
        logs.setdefault(stored_cluster(cluster), {})[node] = last
    return logs


async def _busy_nodes(connection: AsyncConnection, now: float) -> frozenset[str]:
    of_attempt = and_(allocations.c.job == attempts.c.job, allocations.c.attempt == attempts.c.number)
    printing = and_(IS_UNENDED, attempts.c.last_line > now - BUSY_SECONDS)
    query = select(allocations.c.nodes).join(attempts, of_attempt).where(printing)
    lists = (await connection.execute(query)).scalars()
    return frozenset(node_log_id("", node).removeprefix(f"{NODE_LOG}/") for names in lists for node in names.split())
