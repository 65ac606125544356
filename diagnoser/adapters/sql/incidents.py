"""Incidents: each failure joins one in the transaction that stores its diagnosis."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    RowMapping,
    Select,
    and_,
    delete,
    exists,
    func,
    literal,
    not_,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from diagnoser.adapters.sql import codec
from diagnoser.adapters.sql.audit import note_change
from diagnoser.adapters.sql.database import Repository, insert_new, put_rows
from diagnoser.adapters.sql.jobs import find_allocation
from diagnoser.adapters.sql.nodes import find_places
from diagnoser.adapters.sql.outbox import add_messages
from diagnoser.adapters.sql.statements import WITH_PLAN, is_behind, of_attempt, ordered, pick
from diagnoser.adapters.sql.tables import (
    IS_ESCALATED,
    IS_OPERATORS,
    IS_UNRESOLVED,
    alert_silences,
    alert_threads,
    allocations,
    diagnoses,
    incident_attempts,
    incidents,
    jobs,
    nodes,
)
from diagnoser.model import AttemptKey, Incident, IncidentState, Job, OutboxMessage
from diagnoser.model.errors import BadInput, NotFound
from diagnoser.model.incidents import IncidentTransition
from diagnoser.model.queries import UNRESOLVED, IncidentFilter
from diagnoser.model.sorting import LAST_SEEN, Sort
from diagnoser.model.work import DiagnosisRecord
from diagnoser.recovery.incidents import PLACE_SECONDS, joined, new_incident, of_place, place_id, shared_place

IncidentAnnouncement = Callable[[Incident, Incident], tuple[OutboxMessage, ...]]
"""The incident before and after a change -> messages that are stored with it."""

PLACE_FAILURES = 200
"""Failures on nodes that are looked at for a place, the newest."""
_MUTED = select(alert_silences.c.until).where(alert_silences.c.incident == incidents.c.id).scalar_subquery()
SHOWN = (*incidents.c, _MUTED.label("muted_until"))


def is_muted(now: float) -> ColumnElement[bool]:
    row = alert_silences.c
    return exists().where(row.incident == incidents.c.id, row.until > now)


class IncidentRepository(Repository):
    """Incidents and the attempts whose failures they are. ``WorkRepository`` puts failures into them."""

    async def page(self, where: IncidentFilter, after: str, limit: int, sort: Sort = LAST_SEEN) -> list[Incident]:
        """sort: by one of ``INCIDENT_SORTS``. after: ``position_of`` the last one already seen, "" for the first page.
        Raises BadInput for any other text."""
        row = incidents.c
        order = row[sort.by], row.id
        query = select(*SHOWN).where(*_conditions(where)).order_by(*ordered(order, sort)).limit(limit)
        if after:
            query = query.where(is_behind(order, _parse_cursor(after, sort), sort))
        return await self._shown(query)

    async def costly(self, where: IncidentFilter, limit: int) -> list[Incident]:
        """Unresolved ones among which are those that cost most, in no order: the escalated ones, the newest that are no
        script errors, those with most failures, and the newest. limit: of each."""
        row = incidents.c
        picks = []
        for condition, order in (
            (IS_ESCALATED, row.escalated),
            (IS_OPERATORS, row.last_seen),
            (IS_UNRESOLVED, row.failures),
            (IS_UNRESOLVED, row.last_seen),
        ):
            pick_ids = select(row.id).where(condition, *_conditions(where)).order_by(order.desc()).limit(limit)
            picks.append(select(pick_ids.subquery()))
        return await self._shown(select(*SHOWN).where(row.id.in_(union_all(*picks))))

    async def owners(self, ids: Collection[str]) -> dict[str, str]:
        """Incident -> the tenant of a job that failed in it, "" where none is known."""
        row = incident_attempts.c
        query = select(row.incident, jobs.c.tenant).join(jobs, jobs.c.id == row.job).where(row.incident.in_(ids))
        async with self._db.reading() as connection:
            return {row.incident: row.tenant or "" for row in await connection.execute(query)}

    async def find(self, id: str) -> Incident | None:
        return next(iter(await self._shown(select(*SHOWN).where(incidents.c.id == id))), None)

    async def of_diagnosis(self, diagnosis: str) -> Incident | None:
        same_attempt = and_(
            incident_attempts.c.job == diagnoses.c.job, incident_attempts.c.attempt == diagnoses.c.attempt
        )
        joined_id = (
            select(incident_attempts.c.incident).join(diagnoses, same_attempt).where(diagnoses.c.id == diagnosis)
        )
        query = select(*SHOWN).where(incidents.c.id == joined_id.scalar_subquery())
        return next(iter(await self._shown(query)), None)

    async def failures(self, id: str, after: str, limit: int) -> list[DiagnosisRecord]:
        """The current diagnoses of its attempts, the newest first. after: id of the last one already seen."""
        row = incident_attempts.c
        newest = select(row.diagnosis).where(row.incident == id).order_by(row.diagnosis.desc()).limit(limit)
        newest = newest.where(row.diagnosis < after) if after else newest
        query = select(*WITH_PLAN).where(diagnoses.c.id.in_(newest)).order_by(diagnoses.c.id.desc())
        return await self._db.rows(query, codec.record_of)

    async def worst_nodes(self, since: float, limit: int, least: int = 2) -> list[Incident]:
        """Incidents of nodes with at least so many failures, one after ``since``; most failures first."""
        row = incidents.c
        again = and_(row.node != "", row.last_seen > since, row.failures >= least)
        return await self._shown(select(*SHOWN).where(again).order_by(row.failures.desc(), row.id).limit(limit))

    async def count_unresolved(self, now: float) -> dict[IncidentState, int]:
        """How many are open and how many acknowledged, without those that are muted."""
        awake = and_(IS_UNRESOLVED, not_(is_muted(now)))
        query = select(incidents.c.state, func.count()).where(awake).group_by(incidents.c.state)
        counts = dict.fromkeys(sorted(UNRESOLVED.states), 0)
        async with self._db.reading() as connection:
            return counts | {IncidentState(state): count for state, count in (await connection.execute(query)).all()}

    async def change(
        self, id: str, transition: IncidentTransition, announce: IncidentAnnouncement = lambda before, after: ()
    ) -> Incident:
        """When ``transition`` raises, nothing changes. announce: what people are told of it. Raises NotFound."""
        async with self._db.writing() as connection:
            incident = await _find(connection, incidents.c.id == id, lock=True)
            if incident is None:
                raise NotFound(f"there is no incident {id!r}")
            changed = transition(incident)
            await connection.execute(update(incidents).where(incidents.c.id == id).values(codec.incident_row(changed)))
            await _mute(connection, incident, changed)
            await add_messages(connection, announce(incident, changed))
            await note_change(connection, "incident", id, incident, changed)
        return changed

    async def _shown(self, query: Select[Any]) -> list[Incident]:
        """As the viewer may see them: each as its own failures tell it (see ``visibility``)."""
        async with self._db.reading() as connection:
            rows = (await connection.execute(query)).mappings().all()
            if self._db.viewer.sees_all:
                return list(map(codec.incident_of, rows))
            newest = select(diagnoses, literal(None).label("plan_body"))
            newest = newest.where(diagnoses.c.id.in_([row["body"] for row in rows]))
            by_id = {row["id"]: row for row in (await connection.execute(newest)).mappings()}
        return [_visible_part(row, by_id[row["body"]]) for row in rows]


async def join_incident(connection: AsyncConnection, record: DiagnosisRecord, job: Job | None) -> None:
    """Put the attempt into the incident of its new verdict, and take it out of that of an earlier one."""
    facets = codec.facets_of(record.diagnosis, job)
    failure = new_incident(record.id, record.created, record.diagnosis, facets["cluster"], facets["family"])
    if failure is None:
        await leave_incident(connection, record.attempt)
        return
    before = await _incident_of(connection, record.attempt)
    absorbed = list[Incident]()
    if failure.node:
        failure, absorbed = await _at_place(connection, failure, record.attempt, before)
    await insert_new(connection, incidents, [codec.incident_row(failure)])
    by_id = await _find_locked(connection, {before, failure.id})
    if failure.id not in by_id:  # it was old, and has been dropped at this moment
        await insert_new(connection, incidents, [codec.incident_row(failure)])
        by_id |= await _find_locked(connection, {failure.id})
    if before != failure.id:
        await _leave(connection, record.attempt, before)
    await _enter(connection, record, failure, by_id[failure.id], is_new=before != failure.id)
    for earlier in absorbed:
        await _absorb(connection, failure.id, earlier)


async def leave_incident(connection: AsyncConnection, attempt: AttemptKey) -> None:
    """Take the attempt out of its incident, if it has one: it did not fail."""
    before = await _incident_of(connection, attempt)
    await _find_locked(connection, {before})
    await _leave(connection, attempt, before)


async def _incident_of(connection: AsyncConnection, attempt: AttemptKey) -> str | None:
    query = select(incident_attempts.c.incident).where(of_attempt(incident_attempts, attempt))
    return (await connection.execute(query)).scalar()


async def _leave(connection: AsyncConnection, attempt: AttemptKey, incident: str | None) -> None:
    """Take the attempt out of the incident that it belonged to so far, if it did."""
    if incident is not None:
        await connection.execute(delete(incident_attempts).where(of_attempt(incident_attempts, attempt)))
        await _recount(connection, incident)


async def _enter(
    connection: AsyncConnection, record: DiagnosisRecord, failure: Incident, known: Incident, *, is_new: bool
) -> None:
    """Let the attempt's verdict count in the incident.

    failure: what the verdict says of the incident.
    known: the incident as it is stored, and locked.
    is_new: the attempt was not in it before.
    """
    is_mine, row = of_attempt(incident_attempts, record.attempt), {"incident": failure.id, "diagnosis": record.id}
    if is_new:
        key = {"job": record.attempt.job, "attempt": record.attempt.number}
        await connection.execute(incident_attempts.insert(), key | row)
    else:
        await connection.execute(update(incident_attempts).where(is_mine).values(row))
    changed = joined(known, failure, is_new=is_new)
    await connection.execute(update(incidents).where(incidents.c.id == failure.id).values(codec.incident_row(changed)))
    await _mute(connection, known, changed)
    if is_new:
        await _count_one_more(connection, failure.id, record.attempt)


async def _at_place(
    connection: AsyncConnection, failure: Incident, attempt: AttemptKey, before: str | None
) -> tuple[Incident, list[Incident]]:
    """(the failure, as one of a place where several nodes fail; incidents of nodes there, to be absorbed). Only nodes
    that the scheduler gave the attempt count: whoever names others groups nothing.

    before: incident that the attempt belonged to so far.
    """
    mine = await find_places(connection, failure.cluster, failure.node)
    if not mine or failure.node not in await find_allocation(connection, attempt):
        return failure, []
    since, row = failure.last_seen - PLACE_SECONDS, incidents.c
    ids = [place_id(failure.cluster, place) for place in mine[failure.node]]
    goes_on = or_(and_(row.last_seen >= since, IS_UNRESOLVED), row.id == before)
    open_ones = select(*SHOWN).where(row.id.in_(ids), goes_on)
    for known in map(codec.incident_of, (await connection.execute(open_ones)).mappings()):
        return of_place(failure, known.place), []
    recent = await _recent_of_nodes(connection, failure.cluster, since)
    places = await find_places(connection, failure.cluster)
    place = shared_place(failure.node, [incident.node for incident in recent], places)
    if not place:
        return failure, []
    untouched = [incident for incident in recent if incident.first_seen >= since and not incident.history]
    return of_place(failure, place), [incident for incident in untouched if place in places.get(incident.node, ())]


async def _recent_of_nodes(connection: AsyncConnection, cluster: str, since: float) -> list[Incident]:
    """Unresolved incidents of nodes that have a place, of failures of jobs which ran on them."""
    row, newest = incidents.c, incident_attempts.c
    placed = select(nodes.c.node).where(nodes.c.cluster == cluster, nodes.c.places != "")
    same_attempt = and_(allocations.c.job == newest.job, allocations.c.attempt == newest.attempt)
    query = select(*SHOWN, allocations.c.nodes.label("given")).join(incident_attempts, newest.incident == row.id)
    query = query.join(allocations, same_attempt).where(IS_UNRESOLVED, row.node.in_(placed), row.last_seen >= since)
    rows = (await connection.execute(query.order_by(newest.diagnosis.desc()).limit(PLACE_FAILURES))).mappings()
    found = {row["id"]: codec.incident_of(row) for row in rows if row["node"] in row["given"].split()}
    return [incident for incident in found.values() if incident.cluster == cluster]


async def _absorb(connection: AsyncConnection, place: str, earlier: Incident) -> None:
    """Move the failures of a node, and what receivers of alerts were told of it, to the incident of its place."""
    row, threads = incident_attempts.c, alert_threads
    both: set[str | None] = {place, earlier.id}
    locked = await _find_locked(connection, both)
    if not both <= locked.keys():
        return
    await connection.execute(update(incident_attempts).where(row.incident == earlier.id).values(incident=place))
    joint = joined(locked[place], of_place(locked[earlier.id], locked[place].place), is_new=False)
    await connection.execute(update(incidents).where(incidents.c.id == place).values(codec.incident_row(joint)))
    told = (await connection.execute(select(threads).where(threads.c.incident == earlier.id))).mappings().all()
    await insert_new(connection, threads, [{**thread, "incident": place} for thread in told])
    await _recount(connection, earlier.id)
    await _recount(connection, place)


def _conditions(where: IncidentFilter) -> list[ColumnElement[bool]]:
    row, conditions = incidents.c, list[ColumnElement[bool]]()
    if where.states == UNRESOLVED.states:
        conditions.append(IS_UNRESOLVED)  # type: ignore[arg-type]
    elif where.states:
        conditions.append(row.state.in_(sorted(where.states)))
    for name in ("node", "assignee"):
        if getattr(where, name):
            conditions.append(row[name] == getattr(where, name))
    if where.is_muted is not None:
        muted = is_muted(where.now)
        conditions.append(muted if where.is_muted else not_(muted))
    return conditions


def _visible_part(row: RowMapping, newest: RowMapping) -> Incident:
    """What an incident is for a viewer of some of its failures. Who works on it, and what people noted, is for those
    who see all of it. newest: its newest diagnosis."""
    record = codec.record_of(newest)
    part = new_incident(record.id, record.created, record.diagnosis, newest["cluster"], newest["family"])
    if part is None:
        raise ValueError(f"diagnosis {record.id} is of an incident without a fault")
    counts = pick(row, ("failures", "jobs", "first_seen", "last_seen"))
    return replace(part, id=row["id"], node=row["node"], state=IncidentState(row["state"]), **counts)


async def _find(connection: AsyncConnection, which: ColumnElement[bool], *, lock: bool = False) -> Incident | None:
    query = select(*SHOWN).where(which)
    row = (await connection.execute(query.with_for_update() if lock else query)).mappings().first()
    return codec.incident_of(row) if row else None


async def _find_locked(connection: AsyncConnection, ids: set[str | None]) -> dict[str, Incident]:
    """Lock incidents, in the order of their ids: two attempts may move between the same two."""
    query = select(*SHOWN).where(incidents.c.id.in_(sorted(filter(None, ids)))).order_by(incidents.c.id)
    rows = (await connection.execute(query.with_for_update())).mappings()
    return {row["id"]: codec.incident_of(row) for row in rows}


async def _mute(connection: AsyncConnection, before: Incident, after: Incident) -> None:
    """Store until when alerts are silenced, if the change mutes the incident or ends that."""
    if after.muted_until == before.muted_until:
        return
    row = {"incident": after.id, "until": after.muted_until, "by": after.history[-1].by}
    await put_rows(connection, alert_silences, [row])


async def _count_one_more(connection: AsyncConnection, id: str, attempt: AttemptKey) -> None:
    """Add the attempt without counting the others: a cause may have failed thousands."""
    row = incident_attempts.c
    other = exists().where(row.incident == id, row.job == attempt.job, row.attempt != attempt.number)
    is_known = (await connection.execute(select(other))).scalar_one()
    more = {"failures": incidents.c.failures + 1, "jobs": incidents.c.jobs + (0 if is_known else 1)}
    await connection.execute(update(incidents).where(incidents.c.id == id).values(more))


async def _recount(connection: AsyncConnection, id: str) -> None:
    """Count the failures anew after an attempt left, which is rare. An incident without any, and that nobody touched,
    is deleted."""
    row = incident_attempts.c
    query = select(func.count(), func.count(row.job.distinct()), func.max(row.diagnosis)).where(row.incident == id)
    failures, jobs, newest = (await connection.execute(query)).one()
    mine = incidents.c.id == id
    incident = await _find(connection, mine)
    if incident is None:
        return
    if not failures and not incident.history:
        await connection.execute(delete(incidents).where(mine))
        return
    values = codec.incident_row(replace(incident, diagnosis=newest or incident.diagnosis))
    await connection.execute(update(incidents).where(mine).values(values | {"failures": failures, "jobs": jobs}))


def _parse_cursor(after: str, sort: Sort) -> tuple[float | str, str]:
    """(value of the sorted column, id) of the last incident that was seen. Raises BadInput."""
    by, _, place = after.partition(":")
    value, _, incident = place.rpartition(":")
    try:
        if by == sort.by and value:
            return value if sort.by == "category" else float(value), incident
    except ValueError:
        pass
    raise BadInput(f"cursor: {after!r} is not the `next` of a page of incidents in this order")
