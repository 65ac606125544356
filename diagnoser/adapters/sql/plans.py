"""Plans and the history they are decided by. Every decision runs under the lock of its cluster."""

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import ColumnElement, and_, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from diagnoser.adapters.sql import codec
from diagnoser.adapters.sql.audit import note_change
from diagnoser.adapters.sql.database import Repository, insert_new, put_rows
from diagnoser.adapters.sql.jobs import find_allocation, find_completed, job_names
from diagnoser.adapters.sql.nodes import add_mark, find_marks, find_places
from diagnoser.adapters.sql.outbox import add_messages
from diagnoser.adapters.sql.tables import breakers, nodes, plans
from diagnoser.model import AttemptKey, BreakerState, ClusterHistory, Plan, PlanState, TransitionResult
from diagnoser.model.errors import NotFound
from diagnoser.model.plans import ClaimTransition, PlanTransition, PlanUpdate
from diagnoser.model.queries import PlanFilter
from diagnoser.model.taxonomy import Action
from diagnoser.recovery.plan_states import ACTING, RUNNABLE, claimable

DAY = 86_400.0
PAST_DAYS = 7
PAST_LIMIT = 2_000
"""Number of plans that a decision considers, the newest first."""


class PlanRepository(Repository):
    async def page(self, where: PlanFilter, after: str, limit: int) -> list[Plan]:
        """Newest first; ``after`` is the id of the last one already seen, "" for the first page."""
        query = select(plans.c.body).order_by(plans.c.id.desc()).limit(limit)
        if where.state:
            query = query.where(plans.c.state == where.state)
        if where.job:
            query = query.where(plans.c.job.in_(job_names(where.job, self._db.viewer)))
        if after:
            query = query.where(plans.c.id < after)
        return await self._db.values(query, codec.plan_of)

    async def checked(self, limit: int) -> list[Plan]:
        """Those with a check of nodes among the newest, the newest first."""
        row = plans.c
        newest = select(row.body, row.id, row.action).order_by(row.id.desc()).limit(10 * limit).cte("newest")
        query = select(newest.c.body).where(newest.c.action == Action.CHECK_AND_RESUBMIT.value)
        return await self._db.values(query.order_by(newest.c.id.desc()).limit(limit), codec.plan_of)

    async def find(self, id: str) -> Plan | None:
        body = await self._db.value(select(plans.c.body).where(plans.c.id == id))
        return codec.plan_of(body) if body is not None else None

    async def change(self, id: str, update: PlanUpdate) -> TransitionResult:
        """Read the plan under the cluster's lock; store the result in the same transaction. When ``update`` raises,
        nothing changes. Raises NotFound."""
        async with self._db.writing() as connection:
            plan = await _find_locked(connection, id)
            return await _store_result(connection, plan, update(plan))

    async def decide(self, id: str, now: float, transition: PlanTransition) -> TransitionResult:
        """As ``change``, with the history of the cluster, which may be thousands of plans."""
        async with self._db.writing() as connection:
            return await _decide(connection, await _find_locked(connection, id), now, transition)

    async def claim(self, cluster: str, now: float, transition: ClaimTransition) -> TransitionResult | None:
        """Claim the oldest plan of the cluster that can be claimed; None when there is none.

        Checks cheaply first: executors poll, and mostly there is nothing to claim.
        """
        query = select(plans.c.body).where(_is_claimable(cluster, now)).order_by(plans.c.created, plans.c.id).limit(20)
        async with self._db.reading() as connection:
            if (await connection.execute(query.limit(1))).first() is None:
                return None
        async with self._db.writing() as connection:
            bodies = (await connection.execute(query.with_for_update(skip_locked=True))).scalars().all()
            plan = next((candidate for candidate in map(codec.plan_of, bodies) if claimable(candidate, now)), None)
            if plan is None:
                return None
            result = transition(plan, await find_allocation(connection, AttemptKey(plan.job, plan.attempt)))
            assert result.plan is not None, "a transition of a stored plan keeps it"
            await _write(connection, result.plan)
            await note_change(connection, "plan", plan.id, plan, result.plan)
            await add_messages(connection, result.messages)
        return replace(result, before=plan)

    async def completed_attempt(self, key: AttemptKey) -> int:
        """The number of the newest attempt of the job after this one that ended well; 0 when there is none."""
        async with self._db.reading() as connection:
            return await find_completed(connection, key)

    async def expired(self, now: float, limit: int) -> list[str]:
        """Ids of plans that have expired and that no executor holds."""
        waits = or_(
            plans.c.state == PlanState.WAITING.value,
            and_(plans.c.state == PlanState.SENT.value, plans.c.action.in_(sorted(RUNNABLE))),
        )
        expired = and_(waits, plans.c.expires <= now, plans.c.lease <= now)
        return await self._db.values(select(plans.c.id).where(expired).limit(limit), str)


async def decide(connection: AsyncConnection, plan: Plan, now: float, transition: PlanTransition) -> TransitionResult:
    """Decide about a plan that is not stored yet, in the caller's transaction."""
    await _lock_cluster(connection, plan.cluster)
    return await _decide(connection, plan, now, transition)


async def _decide(connection: AsyncConnection, plan: Plan, now: float, transition: PlanTransition) -> TransitionResult:
    history = await _history(connection, plan, now)
    return await _store_result(connection, plan, transition(plan, history), history.past)


async def _store_result(
    connection: AsyncConnection, plan: Plan, result: TransitionResult, past: Sequence[Plan] = ()
) -> TransitionResult:
    """Write what becomes of a plan. past: stored plans that the result may change as well."""
    known = {stored.id: stored for stored in (*past, plan)}
    for changed in (*result.others, *((result.plan,) if result.plan else ())):
        await put_plan(connection, changed)
        await note_change(connection, "plan", changed.id, known.get(changed.id), changed)
    for state in result.trips:
        await put_rows(connection, breakers, [codec.breaker_row(state, plan.cluster)])
        await note_change(connection, "breaker", state.scope, None, state)
    for event in sorted(result.node_events, key=lambda event: event.node):  # rows are locked in one order
        await add_mark(connection, event)
    await add_messages(connection, result.messages)
    return replace(result, before=plan)


async def _find_locked(connection: AsyncConnection, id: str) -> Plan:
    """Find the plan, and lock its cluster. Raises NotFound."""
    cluster = (await connection.execute(select(plans.c.cluster).where(plans.c.id == id))).scalar()
    if cluster is None:
        raise NotFound(f"there is no plan {id!r}")
    await _lock_cluster(connection, cluster)
    # Claims do not take the lock of the cluster: without the row's own lock one could be overwritten.
    body = await connection.execute(select(plans.c.body).where(plans.c.id == id).with_for_update())
    return codec.plan_of(body.scalar_one())


async def _lock_cluster(connection: AsyncConnection, cluster: str) -> None:
    """Lock the row of the whole cluster, which is created on first use."""
    new = codec.breaker_row(BreakerState(cluster, False, 0.0), cluster)
    await insert_new(connection, breakers, [new])
    await connection.execute(select(breakers.c.scope).where(breakers.c.scope == cluster).with_for_update())


async def _history(connection: AsyncConnection, plan: Plan, now: float) -> ClusterHistory:
    """Read what a decision about the plan looks at. Where there are too many plans, those that act or acted go before
    advice: else a flood of failures would make the rails forget what was launched and taken out."""
    row, since = plans.c, now - PAST_DAYS * DAY
    near = or_(
        and_(row.cluster == plan.cluster, row.created > now - DAY),
        and_(row.cluster == plan.cluster, row.fingerprint == plan.fingerprint, row.created > since),
        *(
            and_(row.cluster == plan.cluster, row.suspect == suspect, row.created > since)
            for suspect in plan.suspects[:1]
        ),
        row.job == plan.job,
    )
    acted = or_(row.job == plan.job, row.lease > 0, row.state.in_(sorted(ACTING)))
    query = select(row.body).where(near, row.id != plan.id)
    newest = query.order_by(acted.desc(), row.created.desc(), row.id.desc()).limit(PAST_LIMIT)
    past = list(map(codec.plan_of, (await connection.execute(newest)).scalars()))
    past.sort(key=lambda plan: (plan.created, plan.id))
    tripped = select(breakers.c.scope).where(breakers.c.cluster == plan.cluster, breakers.c.tripped)
    return ClusterHistory(
        past=tuple(past),
        marks={mark.node: mark for mark in await find_marks(connection, plan.cluster)},
        fleet=await _fleet(connection, plan.cluster),
        open=frozenset((await connection.execute(tripped)).scalars()),
        completed=await find_completed(connection, AttemptKey(plan.job, plan.attempt)),
        places=await find_places(connection, plan.cluster),
    )


async def _fleet(connection: AsyncConnection, cluster: str) -> dict[str, int]:
    """Scope -> number of known nodes, for the cluster and for each of its partitions."""
    counts = select(nodes.c.partition, func.count()).where(nodes.c.cluster == cluster).group_by(nodes.c.partition)
    by_partition: dict[str, int] = {row[0]: row[1] for row in await connection.execute(counts)}
    return {f"{cluster}:{partition}": count for partition, count in by_partition.items() if partition} | {
        cluster: sum(by_partition.values())
    }


async def put_plan(connection: AsyncConnection, plan: Plan) -> None:
    if not await insert_new(connection, plans, [codec.plan_row(plan)]):
        await _write(connection, plan)


def _is_claimable(cluster: str, now: float) -> ColumnElement[bool]:
    row = plans.c
    return and_(
        row.state == PlanState.SENT.value,
        row.cluster == cluster,
        row.action.in_(sorted(RUNNABLE)),
        row.expires > now,
        row.lease <= now,
    )


async def _write(connection: AsyncConnection, plan: Plan) -> None:
    await connection.execute(update(plans).where(plans.c.key == plan.key).values(codec.plan_row(plan)))
