"""Jobs, and what the cluster says about their attempts."""

from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from typing import Any

from sqlalchemy import ColumnElement, Select, Update, and_, case, delete, func, literal, not_, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from diagnoser.adapters.sql import codec
from diagnoser.adapters.sql.audit import note_change
from diagnoser.adapters.sql.database import Repository, insert, insert_new, put_rows, scalar
from diagnoser.adapters.sql.logs import check_owners, create_jobs, new_attempt_row, touch_attempts
from diagnoser.adapters.sql.statements import has_key, of_attempt
from diagnoser.adapters.sql.tables import (
    agents,
    allocations,
    attempts,
    diagnoses,
    events,
    jobs,
    metadata,
    nodes,
    outbox,
    plans,
)
from diagnoser.localize.checkpoints import EVENTS_MAX, surplus
from diagnoser.model import (
    ENDS,
    Attempt,
    AttemptKey,
    CheckpointPhase,
    Event,
    EventKind,
    Job,
    PlanReason,
    PlanState,
    Provenance,
    is_made_by_agent,
    own_job_id,
)
from diagnoser.model.access import EVERYTHING, Owner, Viewer
from diagnoser.model.choice import first
from diagnoser.model.ids import first_id
from diagnoser.model.jobs import stored_cluster
from diagnoser.model.taxonomy import Outcome
from diagnoser.recovery.plan_states import DIAGNOSER, OPEN, with_state

_CHUNK = 10_000
"""Rows of one call of the driver; other requests have their turn in between."""


_NOT_SAVED = (CheckpointPhase.STAGED, CheckpointPhase.BAD)
OF_CHECKPOINT = events.c.digest.startswith(codec.CHECKPOINT)
_OWNED = select(jobs.c.id, jobs.c.cluster, jobs.c.tenant)


class JobRepository(Repository):
    async def register(self, job: Job, attempt: int | None = None) -> Job:
        """Insert or update a job: fields that are set win, empty ones keep what is stored.

        Its nodes become those of the attempt (the latest one by default). When an agent registers it for its tenant,
        it becomes what tokens of that tenant have sent under its id before (``model.own_job_id``), and no more than
        that: what tokens of others have sent stays theirs. An end that no scheduler told does not count any more, and
        plans that were made for it are withdrawn.
        """
        async with self._db.writing() as connection:
            await connection.run_sync(create_jobs, {job.id: job.created})
            if job.registered and job.tenant:
                await _take_over(connection, job)
            mine = select(jobs.c.body).where(jobs.c.id == job.id).with_for_update(key_share=True)
            stored = codec.job_of((await connection.execute(mine)).scalar_one())
            if _is_reused(stored, job):
                await _set_aside(connection, stored)
                stored = Job(job.id, created=job.created)
            merged = completed(stored, job)
            await connection.execute(update(jobs).where(jobs.c.id == job.id).values(body=codec.job_text(merged)))
            if merged.registered and not stored.registered:
                await _withdraw_ends(connection, job.id)
                why = "it was made before the scheduler told of the job"
                await withdraw_plans(connection, plans.c.job == job.id, why, merged.created)
            await _know_nodes(connection, job, merged)
            await _allocate(connection, job, attempt)
            await note_change(connection, "job", job.id, stored, merged)
        return merged

    async def assign_owner(self, ids: Collection[str], owner: Owner, now: float) -> dict[str, Owner]:
        """Job -> whose it is. One that is not known is made, and is this owner's. One that belongs to no cluster
        becomes one of this one's; the tenant of a known job stays, also none: what others have sent is not given
        away."""
        async with self._db.reading() as connection:
            owners = await _owners(connection, _OWNED, ids)
        if missing := [job for job in ids if _is_incomplete(owners.get(job), owner)]:
            new = []
            for job in sorted(missing):
                made = Job(job, owner.cluster, created=now, tenant=owner.tenant)
                new.append({"id": job, "body": codec.job_text(made)})
            async with self._db.writing() as connection:
                await connection.execute(self._db.insert(jobs).on_conflict_do_nothing(), new)
                locked = _OWNED.order_by(jobs.c.id).with_for_update(key_share=True)
                owners |= await _owners(connection, locked, missing)  # another may have been faster
                for job in missing:
                    if not _is_incomplete(owners[job], owner):
                        continue
                    mine = jobs.c.id == job
                    known = codec.job_of((await connection.execute(select(jobs.c.body).where(mine))).scalar_one())
                    text = codec.job_text(replace(known, cluster=owner.cluster))
                    await connection.execute(update(jobs).where(mine).values(body=text))
                    owners[job] = Owner(owner.cluster, known.tenant)
        return owners

    async def owners(self, ids: Collection[str]) -> dict[str, Owner]:
        """Of those of the jobs that are known."""
        async with self._db.reading() as connection:
            return await _owners(connection, _OWNED, ids)

    async def add_event(self, attempt: AttemptKey, event: Event, sender: Viewer = EVERYTHING) -> bool:
        """Whether it is new: idempotent for an equal event, and for a phase of a checkpoint that is known. Creates job
        and attempt when needed. Of an attempt with very many checkpoints, the oldest are dropped.

        Where a scheduler has an agent, an end that it did not tell ends nothing: it only makes the attempt be looked at
        after a shorter silence. Raises OwnerMoved when the job is not the sender's any more.

        A heartbeat and a checkpoint that is not written out are no news for a diagnosis: the revision stays.
        """
        row = _attempt_row(attempt, event)
        async with self._db.writing() as connection:
            await connection.run_sync(check_owners, [(attempt.job, sender)] if sender.tenant else [])
            await connection.run_sync(create_jobs, {attempt.job: event.time})
            await insert_new(connection, attempts, [row | {"revision": 0, "ended": None}])
            new = await insert_new(connection, events, [codec.event_row(attempt, event)])
            if new:
                await _look_again(connection, attempt, event)
                await _note_times(connection, attempt, event)
                if event.kind is EventKind.CHECKPOINT:
                    await _drop_surplus(connection, attempt)
            await note_change(connection, "attempt", f"{attempt.job}/{attempt.number}", None, event)
        return bool(new)

    async def checkpoint_events(self, before: AttemptKey) -> list[tuple[Event, ...]]:
        """The checkpoint events of the job's attempts before this one, the oldest attempt first."""
        mine = select(events).where(events.c.job == before.job, events.c.attempt < before.number, OF_CHECKPOINT)
        newest = mine.order_by(events.c.attempt.desc(), events.c.time.desc(), events.c.digest).limit(EVENTS_MAX)
        by_attempt: dict[int, list[Event]] = {}
        async with self._db.reading() as connection:
            for row in (await connection.execute(newest)).mappings():
                by_attempt.setdefault(row["attempt"], []).append(codec.event_of(row["body"]))
        return [tuple(reversed(told)) for _, told in sorted(by_attempt.items())]

    async def diagnose_again(self, attempt: AttemptKey, now: float) -> None:
        """Make an attempt due again whose diagnosis rests on what does not hold any more."""
        row = attempts.c
        mine = of_attempt(attempts, attempt)
        values = {"revision": row.revision + 1, "dirty": case((row.revision == row.diagnosed, now), else_=row.dirty)}
        await self._db.execute(update(attempts).where(mine).values(values))

    async def find(self, id: str) -> Job | None:
        body = await self._db.value(select(jobs.c.body).where(jobs.c.id == id))
        return codec.job_of(body) if body is not None else None

    async def attempts(self, job: str) -> list[Attempt]:
        """Those of a job, in their order."""
        return await self._attempts(job, attempts.c.job == job)

    async def attempt(self, key: AttemptKey) -> Attempt | None:
        return first(await self._attempts(key.job, and_(attempts.c.job == key.job, attempts.c.number == key.number)))

    async def _attempts(self, job: str, which: ColumnElement[bool]) -> list[Attempt]:
        query = select(attempts).where(which).order_by(attempts.c.number)
        async with self._db.reading() as connection:
            rows = (await connection.execute(query)).mappings().all()
            keys = [AttemptKey(job, row["number"]) for row in rows]
            by_attempt = await find_events(connection, keys)
            found = []
            for key, row in zip(keys, rows, strict=True):
                found.append(codec.attempt_of(row, by_attempt[key], await find_allocation(connection, key)))
        return found


async def _look_again(connection: AsyncConnection, attempt: AttemptKey, event: Event) -> None:
    """Have the attempt looked at for what the event tells. A hint is none where a scheduler tells the end."""
    row = _attempt_row(attempt, event)
    is_news = event.kind is not EventKind.HEARTBEAT and event.phase is not CheckpointPhase.STAGED
    job = await find_job(connection, attempt.job) if is_hint(event) else None
    if job and await has_scheduler(connection, job):
        await connection.run_sync(touch_attempts, [row | {"ended": None}])
        await connection.execute(_looked_at_soon(attempt))
    elif is_news:
        await connection.run_sync(touch_attempts, [row])


async def _note_times(connection: AsyncConnection, attempt: AttemptKey, event: Event) -> None:
    """Keep the times that the report of impact reads of every attempt: looking up their events would take longer than
    all else that it does."""
    mine = update(attempts).where(of_attempt(attempts, attempt))
    if (event.kind, event.provenance) == (EventKind.STARTED, Provenance.SCHEDULER):
        await connection.execute(mine.values(submitted=event.submitted, started=event.time))
    if event.kind is EventKind.CHECKPOINT and event.phase not in _NOT_SAVED:
        is_newer = or_(attempts.c.saved.is_(None), attempts.c.saved < event.time)
        await connection.execute(mine.where(is_newer).values(saved=event.time))


async def _know_nodes(connection: AsyncConnection, job: Job, merged: Job) -> None:
    """Breaker limits are shares of the nodes that jobs ran on. A node's partition is that of its latest job."""
    names = sorted({*job.nodes, *job.rank_nodes.values()})
    cluster, partition = stored_cluster(merged.cluster), merged.labels.get("partition", "")
    rows = [{"cluster": cluster, "node": node, "partition": partition, "body": ""} for node in names]
    new = insert(connection, nodes)
    changed = new.excluded.partition
    upsert = new.on_conflict_do_update(
        index_elements=["cluster", "node"], set_={"partition": changed}, where=nodes.c.partition != changed
    )
    for start in range(0, len(rows), _CHUNK):  # the driver repeats one row's statement: a long one takes seconds
        await connection.execute(upsert, rows[start : start + _CHUNK])


async def _allocate(connection: AsyncConnection, job: Job, attempt: int | None) -> None:
    """The registered nodes are those of one attempt: a job that is launched again may run elsewhere."""
    names = sorted({*job.nodes, *job.rank_nodes.values()})
    if not names:
        return
    if attempt is None:
        newest = select(func.max(attempts.c.number)).where(attempts.c.job == job.id)
        attempt = (await connection.execute(newest)).scalar() or 1
    opened = _attempt_row(AttemptKey(job.id, attempt), Event(EventKind.STARTED, job.created))
    await insert_new(connection, attempts, [opened | {"revision": 0}])
    await put_rows(connection, allocations, [{"job": job.id, "attempt": attempt, "nodes": " ".join(names)}])


def job_names(id: str, viewer: Viewer) -> list[str]:
    """What the store may call a job that the viewer asks for."""
    return [id, own_job_id(id, viewer.tenant)] if viewer.tenant else [id]


async def has_scheduler(connection: AsyncConnection, job: Job) -> bool:
    """Whether an agent tells how the job ends: it has registered it, or makes ids of this form."""
    if job.registered:
        return True
    clusters = (await connection.execute(select(agents.c.cluster))).scalars()
    return any(is_made_by_agent(job.id, cluster) for cluster in clusters)


def is_hint(event: Event) -> bool:
    """Whether it is an end that no scheduler told: where one has an agent, it is no more than a hint."""
    return event.kind in ENDS and event.provenance is not Provenance.SCHEDULER


def _looked_at_soon(attempt: AttemptKey) -> Update:
    """After the shortest silence, whatever was put off."""
    row = attempts.c
    mine = of_attempt(attempts, attempt)
    return update(attempts).where(mine).values(patience=0.0, lease=case((row.token == "", 0.0), else_=row.lease))


async def _take_over(connection: AsyncConnection, job: Job) -> None:
    """What tokens of the job's tenant have sent under its id before it was registered becomes the job's, unless tokens
    that speak for all have opened a launch of it already."""
    own = own_job_id(job.id, job.tenant)
    locked = select(jobs.c.body).where(jobs.c.id == own).with_for_update()
    body = (await connection.execute(locked)).scalar()
    opened = select(attempts.c.number).where(attempts.c.job == job.id).limit(1)
    if body is None:
        return
    if (await connection.execute(opened)).first():
        return
    await connection.execute(delete(plans).where(plans.c.job == own))  # they name a job that does not exist
    await _move(connection, own, job.id)
    await connection.execute(delete(jobs).where(jobs.c.id == own))  # with its attempts, which are empty now


def _is_reused(stored: Job, job: Job) -> bool:
    """Whether a scheduler whose count began anew gives the id to the job of somebody else: jobs do not change hands. A
    number stands for a user whose name cannot be looked up for now."""
    if not all((stored.registered, job.registered, stored.tenant, job.tenant)):
        return False
    if stored.tenant == job.tenant:
        return False
    return not any(tenant.startswith("uid ") for tenant in (stored.tenant, job.tenant))


async def _set_aside(connection: AsyncConnection, stored: Job) -> None:
    """Leave what a job was to its tenant, so that another may have its id."""
    aside = own_job_id(stored.id, stored.tenant)
    if (await connection.execute(select(jobs.c.id).where(jobs.c.id == aside))).first():
        aside = f"{aside}.{first_id(stored.created)}"
    await connection.execute(insert(connection, jobs), {"id": aside, "body": codec.job_text(replace(stored, id=aside))})
    await _move(connection, stored.id, aside)
    made = select(plans.c.body).where(plans.c.job == stored.id).with_for_update()
    for plan in map(codec.plan_of, (await connection.execute(made)).scalars().all()):
        moved = update(plans).where(plans.c.key == plan.key)
        await connection.execute(moved.values(codec.plan_row(replace(plan, job=aside))))
    await connection.execute(delete(attempts).where(attempts.c.job == stored.id))


async def _move(connection: AsyncConnection, source: str, target: str) -> None:
    """Make all that belongs to a job another's, but for plans."""
    names = attempts.c.keys()
    names.remove("job")
    copied = select(literal(target), *attempts.c[tuple(names)]).where(attempts.c.job == source)
    await connection.execute(attempts.insert().from_select(["job", *names], copied))
    for table in metadata.sorted_tables:
        if "job" in table.c and table not in (attempts, plans):
            await connection.execute(update(table).where(table.c.job == source).values(job=target))


async def _withdraw_ends(connection: AsyncConnection, job: str) -> None:
    """What ended the job's attempts so far was no scheduler."""
    row = attempts.c
    ended = select(row.number).where(row.job == job, row.ended.is_not(None))
    keys = [AttemptKey(job, number) for number in (await connection.execute(ended)).scalars()]
    for key, known in (await find_events(connection, keys)).items():
        if not any(event.kind in ENDS and not is_hint(event) for event in known):
            mine = and_(row.job == job, row.number == key.number)
            await connection.execute(update(attempts).where(mine).values(ended=None))


async def withdraw_plans(connection: AsyncConnection, which: ColumnElement[bool], why: str, now: float) -> None:
    """Withdraw those plans that nobody carries out yet. The webhook is not told."""
    states = (*OPEN, PlanState.SENT, PlanState.HELD)
    made = select(plans.c.body).where(which, plans.c.state.in_(states), plans.c.lease == 0.0)
    for body in (await connection.execute(made.with_for_update())).scalars().all():
        reason = PlanReason.LATER_DIAGNOSIS
        plan = with_state(codec.plan_of(body), PlanState.SUPERSEDED, reason, by=DIAGNOSER, why=why, now=now)
        await connection.execute(update(plans).where(plans.c.key == plan.key).values(codec.plan_row(plan)))
        told = and_(outbox.c.key == plan.key, outbox.c.state == "pending")
        await connection.execute(update(outbox).where(told).values(state="withheld", error=why))


async def find_allocation(connection: AsyncConnection, key: AttemptKey) -> tuple[str, ...]:
    """The nodes that the scheduler gave an attempt, sorted; empty when nobody told."""
    row = allocations.c
    query = select(row.nodes).where(of_attempt(allocations, key))
    return tuple((await scalar(connection, query, "")).split())


async def find_completed(connection: AsyncConnection, key: AttemptKey) -> int:
    """The number of the newest attempt after this one that ended well, by its exit or by its verdict; 0 for none."""
    row = diagnoses.c
    later = and_(row.job == key.job, row.attempt > key.number, row.current, row.outcome == Outcome.COMPLETED.value)
    judged = await scalar(connection, select(func.max(row.attempt)).where(later), 0)
    reported = select(events.c.attempt, events.c.body).where(events.c.job == key.job, events.c.attempt > key.number)
    rows = (await connection.execute(reported.where(not_(OF_CHECKPOINT)))).all()
    exited = [number for number, body in rows if codec.event_of(body).is_clean_end]
    return int(max(judged, *exited, 0))


async def find_job(connection: AsyncConnection, id: str) -> Job | None:
    body = (await connection.execute(select(jobs.c.body).where(jobs.c.id == id))).scalar()
    return codec.job_of(body) if body is not None else None


def _is_incomplete(known: Owner | None, owner: Owner) -> bool:
    """Whether the job is not known, or belongs to no cluster where the owner has one."""
    if known is None:
        return True
    return bool(owner.cluster and not known.cluster)


async def _owners(connection: AsyncConnection, query: Select[Any], ids: Collection[str]) -> dict[str, Owner]:
    """The locks of ``query`` are taken in the order of the names."""
    names, owners = sorted(ids), dict[str, Owner]()
    for start in range(0, len(names), _CHUNK):
        mine = query.where(jobs.c.id.in_(names[start : start + _CHUNK]))
        owners |= {row.id: Owner(row.cluster, row.tenant) for row in await connection.execute(mine)}
    return owners


async def find_events(connection: AsyncConnection, keys: Sequence[AttemptKey]) -> dict[AttemptKey, tuple[Event, ...]]:
    pairs = [(key.job, key.number) for key in keys]
    query = select(events).where(has_key((events.c.job, events.c.attempt), pairs))
    by_attempt: dict[AttemptKey, tuple[Event, ...]] = dict.fromkeys(keys, ())
    for row in (await connection.execute(query.order_by(events.c.time, events.c.digest))).mappings():
        by_attempt[AttemptKey(row["job"], row["attempt"])] += (codec.event_of(row["body"]),)
    return by_attempt


async def _drop_surplus(connection: AsyncConnection, key: AttemptKey) -> None:
    """Bounds the checkpoint events of an attempt."""
    mine = and_(of_attempt(events, key), OF_CHECKPOINT)
    count = (await connection.execute(select(func.count()).select_from(events).where(mine))).scalar_one()
    if count <= EVENTS_MAX:
        return
    stored = list(map(codec.event_of, (await connection.execute(select(events.c.body).where(mine))).scalars()))
    digests = [codec.event_row(key, event)["digest"] for event in surplus(stored)]
    await connection.execute(delete(events).where(mine, events.c.digest.in_(digests)))


def completed(stored: Job, new: Job) -> Job:
    """Non-empty fields of ``new`` replace stored ones; the creation time stays."""
    changes = {}
    for field in fields(Job):
        if value := getattr(new, field.name):
            changes[field.name] = value
    if stored.created:
        changes["created"] = stored.created
    return replace(stored, **changes)


def _attempt_row(attempt: AttemptKey, event: Event) -> dict[str, Any]:
    return new_attempt_row(attempt, event.time) | {"ended": event.time if event.kind in ENDS else None}
