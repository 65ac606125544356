"""Drops what is old: a few rows a commit."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Double,
    and_,
    cast,
    delete,
    exists,
    func,
    not_,
    or_,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from diagnoser.adapters.sql.database import Repository, scalar
from diagnoser.adapters.sql.outbox import GIVEN_UP
from diagnoser.adapters.sql.statements import has_key
from diagnoser.adapters.sql.tables import (
    IS_OPEN,
    alert_silences,
    alert_threads,
    attempts,
    confirmed_failures,
    deltas,
    diagnoses,
    feedback,
    incident_attempts,
    incidents,
    jobs,
    node_alerts,
    node_events,
    node_requests,
    node_snapshots,
    outbox,
    plans,
    revisions,
    runtime_files,
)
from diagnoser.model import PlanState

_CLOCK = "retention_clock"
_UNDER_WAY = (PlanState.WAITING.value, PlanState.SENT.value)


@dataclass(frozen=True, slots=True)
class Dropped:
    """What went with some attempts. stored: bytes of their logs and dumps."""

    attempts: int = 0
    diagnoses: int = 0
    plans: int = 0
    stored: int = 0


class RetentionRepository(Repository):
    """Drops what is old. Each call is one short transaction that all replicas may make at once.

    before: seconds since the epoch.
    """

    async def clocks(self) -> tuple[float, float]:
        """The time by which something was dropped last, and that of the database; 0.0 where nothing was, or where the
        database has the clock of its caller."""
        last = float(await self._db.value(select(revisions.c.value).where(revisions.c.name == _CLOCK), 0.0))
        return last, await self._db.clock() if self._db.has_clock else 0.0

    async def note_clock(self, now: float) -> None:
        await self._db.upsert(revisions, {"name": _CLOCK, "value": int(now)})

    async def drop_attempts(self, before: float, limit: int) -> Dropped:
        """Drop attempts to which nothing came since ``before``, the oldest first, each with all that is stored of it;
        with the last one its job goes.

        Never those that wait for a verdict, that a worker holds, whose plan waits or is under way, or that people
        judged.
        """
        query = select(attempts.c.job, attempts.c.number).where(_is_over(before)).order_by(attempts.c.opened)
        async with self._db.reading() as connection:
            if (await connection.execute(query.limit(1))).first() is None:
                return Dropped()
        async with self._db.writing() as connection:
            locked = query.limit(limit).with_for_update(skip_locked=True)
            keys = [(row.job, row.number) for row in await connection.execute(locked)]
            if not keys:
                return Dropped()
            dropped = Dropped(
                attempts=len(keys),
                diagnoses=await _count(connection, diagnoses, keys),
                plans=await _count(connection, plans, keys),
                stored=await _stored(connection, keys),
            )
            await connection.execute(delete(attempts).where(has_key((attempts.c.job, attempts.c.number), keys)))
            await _drop_empty(connection, {job for job, _ in keys})
        return dropped

    async def drop_empty_jobs(self, before: float, limit: int) -> int:
        """Drop jobs without an attempt that were registered before: nothing ever came of them.

        Jobs without an attempt are few: their bodies are looked at only when it is known which they are.
        """
        empty = select(jobs.c.id, jobs.c.body).where(_is_empty()).cte("empty")
        created = cast(self._db.json_text(empty.c.body, "created"), Double)
        query = select(empty.c.id).where(created < before).order_by(empty.c.id).limit(limit)
        async with self._db.reading() as connection:
            ids = set((await connection.execute(query)).scalars())
        if not ids:
            return 0
        async with self._db.writing() as connection:
            return await _drop_empty(connection, ids)

    async def drop_messages(self, before: float, limit: int) -> int:
        """Drop messages made before, that were sent, expired or given up."""
        over = and_(outbox.c.state.in_(("sent", "withheld", *sorted(GIVEN_UP))), outbox.c.created < before)
        dropped = await self._db.drop_rows(
            select(outbox.c.key).where(over).order_by(outbox.c.created), limit, outbox.c.key
        )
        if dropped < limit:  # what was told about them, last
            async with self._db.writing() as connection:
                await connection.execute(delete(alert_threads).where(alert_threads.c.told < before))
                await connection.execute(delete(alert_silences).where(alert_silences.c.until < before))
        return dropped

    async def drop_node_events(self, before: float, limit: int) -> int:
        """Drop what happened to nodes before; the last event of each node is stored apart, and stays."""
        row = node_events.c
        query = select(row.cluster, row.node, row.digest).where(row.time < before).order_by(row.time)
        return await self._db.drop_rows(query, limit, row.cluster, row.node, row.digest)

    async def drop_incidents(self, before: float, limit: int) -> int:
        """Drop incidents without a failure since, of which no attempt is stored any more."""
        row = incidents.c
        is_left = exists().where(incident_attempts.c.incident == row.id).correlate(incidents)
        query = select(row.id).where(row.last_seen < before, not_(is_left)).order_by(row.last_seen, row.id)
        async with self._db.reading() as connection:
            ids = list((await connection.execute(query.limit(limit))).scalars())
        if not ids:
            return 0
        async with self._db.writing() as connection:  # one that a failure is about to join is locked by it, or has it
            locked = select(row.id).where(row.id.in_(ids), row.last_seen < before).with_for_update(skip_locked=True)
            mine = list((await connection.execute(locked)).scalars())
            return (await connection.execute(delete(incidents).where(row.id.in_(mine), not_(is_left)))).rowcount

    async def drop_node_facts(self, before: float, limit: int) -> int:
        """Drop alerts of monitoring that were told before and have ended, and requests to give nodes back. Notes of
        people stay."""
        row = node_alerts.c
        key = (row.cluster, row.node, row.fingerprint, row.started)
        ended = select(*key).where(row.received < before, row.ended.is_not(None)).order_by(row.received)
        asked = select(node_requests.c.id).where(node_requests.c.created < before).order_by(node_requests.c.created)
        return await self._db.drop_rows(ended, limit, *key) + await self._db.drop_rows(asked, limit, node_requests.c.id)

    async def drop_dumps(self, before: float, limit: int) -> int:
        """Drop dumps of the runtime that were received before, but for attempts that ``drop_attempts`` spares."""
        row = runtime_files.c
        key = (row.job, row.attempt, row.kind, row.rank, row.node, row.provenance)
        of_attempt = and_(attempts.c.job == row.job, attempts.c.number == row.attempt)
        is_free = exists().where(of_attempt, not_(_is_kept())).correlate(runtime_files)
        query = select(*key).where(row.received < before, is_free).order_by(row.received)
        return await self._db.drop_rows(query, limit, *key)

    async def stored_bytes(self) -> int:
        """Of all logs and dumps, compressed as they are stored.

        Sizes stand beside what they are of: nothing is read of the logs themselves.
        """
        async with self._db.reading() as connection:
            logs = await scalar(connection, select(func.sum(func.length(deltas.c.data))), 0)
            dumps = await scalar(connection, select(func.sum(runtime_files.c.stored)), 0)
            snapshots = await scalar(connection, select(func.sum(node_snapshots.c.stored)), 0)
            return int(logs) + int(dumps) + int(snapshots)


def _is_over(before: float) -> ColumnElement[bool]:
    """Nothing came since, and nobody needs it. The last attempt of a job goes after the others, with the job, so that
    no number is given twice."""
    row, other = attempts.c, attempts.alias()
    of_job = other.c.job == row.job
    has_later = exists().where(of_job, other.c.number > row.number).correlate(attempts)
    is_alone = not_(exists().where(of_job, other.c.number != row.number).correlate(attempts))
    return and_(
        row.opened < before,
        row.last_line < before,
        func.coalesce(row.ended, 0.0) < before,
        row.job.not_like("~%"),  # logs of nodes and clean runs, which go by the hour
        not_(_is_kept()),
        or_(has_later, is_alone),
    )


def _is_kept() -> ColumnElement[bool]:
    """Attempts that wait for their verdict or that a worker holds, whose plan is under way, or that people judged."""
    row = attempts.c
    of_attempt = and_(diagnoses.c.job == row.job, diagnoses.c.attempt == row.number)
    judged = or_(
        exists().where(of_attempt, feedback.c.diagnosis == diagnoses.c.id).correlate(attempts),
        exists().where(of_attempt, confirmed_failures.c.diagnosis == diagnoses.c.id).correlate(attempts),
    )
    planned = and_(plans.c.job == row.job, plans.c.attempt == row.number, plans.c.state.in_(_UNDER_WAY))
    return or_(IS_OPEN, row.token != "", exists().where(planned).correlate(attempts), judged)


def _is_empty() -> ColumnElement[bool]:
    return not_(exists().where(attempts.c.job == jobs.c.id).correlate(jobs))


async def _drop_empty(connection: AsyncConnection, ids: Collection[str]) -> int:
    """Those of the jobs that have no attempt. They are locked before that is looked at: an attempt that another
    transaction is about to add would go with its job."""
    locked = select(jobs.c.id).where(jobs.c.id.in_(ids)).with_for_update(skip_locked=True)
    mine = list((await connection.execute(locked)).scalars())
    return (await connection.execute(delete(jobs).where(jobs.c.id.in_(mine), _is_empty()))).rowcount


async def _count(connection: AsyncConnection, table: Any, keys: list[tuple[str, int]]) -> int:
    query = select(func.count()).select_from(table).where(has_key((table.c.job, table.c.attempt), keys))
    return int((await connection.execute(query)).scalar_one())


async def _stored(connection: AsyncConnection, keys: list[tuple[str, int]]) -> int:
    """Bytes of logs and dumps."""
    logs = select(func.sum(func.length(deltas.c.data))).where(has_key((deltas.c.job, deltas.c.attempt), keys))
    row = runtime_files.c
    dumps = select(func.sum(row.stored)).where(has_key((row.job, row.attempt), keys))
    kept = node_snapshots.c
    snapshots = select(func.sum(kept.stored)).where(has_key((kept.job, kept.attempt), keys))
    return sum([int(await scalar(connection, query, 0)) for query in (logs, dumps, snapshots)])
