"""Which attempts are due, who works on them, and what came out."""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from itertools import filterfalse
from typing import Any

from sqlalchemy import (
    ColumnElement,
    RowMapping,
    Select,
    Update,
    and_,
    case,
    delete,
    false,
    func,
    literal,
    not_,
    or_,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from diagnoser.adapters.sql import codec
from diagnoser.adapters.sql.database import Repository, insert_new
from diagnoser.adapters.sql.incidents import join_incident, leave_incident
from diagnoser.adapters.sql.jobs import find_allocation, find_events, find_job, has_scheduler, is_hint, withdraw_plans
from diagnoser.adapters.sql.outbox import add_messages
from diagnoser.adapters.sql.plans import decide
from diagnoser.adapters.sql.statements import of_attempt
from diagnoser.adapters.sql.tables import (
    IS_OPEN,
    IS_RUNNING,
    attempts,
    diagnoses,
    diagnosis_nodes,
    diagnosis_words,
    plans,
)
from diagnoser.model import LOSS_SERIES, AttemptKey, OutboxMessage, Plan, TransitionResult
from diagnoser.model.errors import Conflict
from diagnoser.model.plans import PlanTransition
from diagnoser.model.taxonomy import Outcome
from diagnoser.model.work import Claim, DiagnosisRecord, Timing

_FORGOTTEN = 86_400.0
"""Seconds without lines after which a run counts as abandoned."""


class WorkRepository(Repository):
    async def claim_attempts(self, now: float, timing: Timing, lease: float, limit: int) -> list[Claim]:
        waiting_since = case((attempts.c.ended.is_not(None), attempts.c.ended), else_=attempts.c.fatal)
        free = or_(attempts.c.lease <= now, attempts.c.token == "")  # without a holder the lease only keeps silence
        due = select(attempts).where(IS_OPEN, free, _is_due(now, timing))
        return await self._claimed(due.order_by(waiting_since).limit(limit), now + lease)

    async def next_end(self, timing: Timing) -> float | None:
        """When the first of the attempts that have ended and that nobody works on becomes due; None without one."""
        row = attempts.c
        newest = case((row.last_line > row.ended, row.last_line), else_=row.ended)
        wait = case((_awaits_verdict(), timing.exit_grace_after_fatal), else_=timing.exit_grace)
        query = select(func.min(newest + wait)).where(IS_OPEN, row.ended.is_not(None), row.token == "")
        due: float | None = await self._db.value(query)
        return due

    async def next_silence(self, now: float, silent: float, within: float) -> float | None:
        """When ``claim_silent`` will have something to claim unless a run prints; None where that is not within so many
        seconds. Runs that print are not read. silent: as there."""
        row = attempts.c
        quiet = and_(row.last_line <= now + within - silent, row.last_line > now - _FORGOTTEN)
        soonest, patient = row.last_line + silent, row.last_line + row.patience
        put_off_until = case((row.looked_at < row.revision, patient), else_=row.lease)
        due = case((put_off_until > soonest, put_off_until), else_=soonest)
        query = select(func.min(due)).where(IS_RUNNING, quiet, row.token == "", due <= now + within)
        earliest: float | None = await self._db.value(query)
        return earliest

    async def claim_silent(self, now: float, silent: float, lease: float, limit: int) -> list[Claim]:
        """Running attempts without a fatal line that have printed nothing for ``silent`` seconds, nor for their own
        patience: they may hang. Longest silent first.

        Not those whose silence was put off until later, and none that fell silent more than a day ago.

        An index by the last line leads to those that are silent; of these, few are due.
        """
        row = attempts.c
        quiet = and_(row.last_line <= now - silent, row.last_line > now - _FORGOTTEN)
        is_new = row.looked_at < row.revision  # lines that came since end what was put off
        free = or_(row.lease <= now, and_(is_new, row.token == ""))
        long_enough = or_(not_(is_new), row.last_line <= now - row.patience)
        query = select(attempts).where(IS_RUNNING, quiet, free, long_enough).order_by(row.last_line).limit(limit)
        return await self._claimed(query, now + lease)

    async def printing(self, since: float, limit: int) -> dict[AttemptKey, int]:
        """The revisions of running attempts that have printed since then; of many those that printed last."""
        row = attempts.c
        query = select(row.job, row.number, row.revision).where(IS_RUNNING, row.last_line > since)
        async with self._db.reading() as connection:
            rows = await connection.execute(query.order_by(row.last_line.desc()).limit(limit))
            return {AttemptKey(row.job, row.number): row.revision for row in rows}

    async def went_on(self, since: float) -> list[DiagnosisRecord]:
        """The current verdicts, that they hang or that their loss diverged, on running attempts that have printed since
        then."""
        row = attempts.c
        prints = and_(IS_RUNNING, row.last_line > since, row.diagnosed > 0)
        of_verdict = and_(diagnoses.c.job == row.job, diagnoses.c.attempt == row.number, diagnoses.c.current)
        query = select(diagnoses, literal(None).label("plan_body")).join(attempts, of_verdict)
        ends = or_(diagnoses.c.outcome == Outcome.HUNG.value, diagnoses.c.decided_by == LOSS_SERIES)
        return await self._db.rows(query.where(prints, ends), codec.record_of)

    async def withdraw_verdict(
        self, record: DiagnosisRecord, why: str, now: float, told: Sequence[OutboxMessage]
    ) -> bool:
        """The run went on: its verdict says so and counts no more, nor do the plans that wait for it. Whether it was
        the current one."""
        noted = replace(record, diagnosis=replace(record.diagnosis, notes=(why, *record.diagnosis.notes)))
        body = codec.diagnosis_row(noted, None, None)["body"]
        async with self._db.writing() as connection:
            if not await _replace(connection, and_(diagnoses.c.id == record.id, diagnoses.c.current)):
                return False
            await connection.execute(update(diagnoses).where(diagnoses.c.id == record.id).values(body=body))
            await connection.execute(update(attempts).where(of_attempt(attempts, record.attempt)).values(diagnosed=0))
            await leave_incident(connection, record.attempt)
            await withdraw_plans(connection, of_attempt(plans, record.attempt), why, now)
            await add_messages(connection, told)
        return True

    async def claim_running(self, now: float, keys: Sequence[AttemptKey], lease: float) -> list[Claim]:
        """Those of these attempts that run and that nobody works on."""
        row = attempts.c
        mine = or_(*(of_attempt(attempts, key) for key in keys)) if keys else false()
        free = or_(row.lease <= now, row.token == "")
        return await self._claimed(select(attempts).where(IS_RUNNING, mine, free), now + lease)

    async def _claimed(self, query: Select[Any], until: float) -> list[Claim]:
        """The rows are locked while they are claimed; other workers skip them instead of waiting."""
        if not await self._db.any(query):
            return []
        async with self._db.writing() as connection:
            locked = query.with_for_update(skip_locked=True, key_share=True)
            rows = (await connection.execute(locked)).mappings().all()
            return [await _claim(connection, row, until) for row in rows]

    async def save_diagnosis(
        self,
        claim: Claim,
        record: DiagnosisRecord,
        plan: Plan | None,
        messages: Sequence[OutboxMessage],
        transition: PlanTransition | None = None,
    ) -> TransitionResult:
        """One transaction: diagnosis, plan, messages, attempt marked as diagnosed at the claim's revision, lease ended.

        Without ``transition`` a plan whose key exists already is left as it is; with it, its result is stored.
        A message whose key exists already is left as it is. Raises Conflict when the lease was lost.
        """
        async with self._db.writing() as connection:
            await _change_claimed(connection, claim, _diagnosed_values(claim, record))
            return await _store(connection, record, plan, messages, transition)

    async def replace_diagnosis(
        self,
        replaced: str,
        record: DiagnosisRecord,
        plan: Plan | None,
        messages: Sequence[OutboxMessage],
        transition: PlanTransition | None = None,
    ) -> TransitionResult | None:
        """Replace the diagnosis ``replaced`` (an id) by a better one of the same revision, with plan and messages.

        None, and nothing is stored, when ``replaced`` is not the current one any more.

        The row that is replaced is the lock.
        """
        is_current = and_(diagnoses.c.id == replaced, diagnoses.c.current)
        async with self._db.writing() as connection:
            if not await _replace(connection, is_current):
                return None
            return await _store(connection, record, plan, messages, transition)

    async def release(self, claim: Claim, until: float = 0.0, patience: float | None = None) -> None:
        """The log shows no failure: no diagnosis is stored, and the attempt's fatal mark is cleared.

        A fatal line that came after the claim keeps the mark. Ignored when the lease was lost. until: when this silence
        may be checked again; an end, a fatal line, a dump or a new silence after new lines makes it due earlier.
        patience: shortest silence, in seconds, that is checked from now on; None leaves it as it is.
        """
        no_news = attempts.c.fatal_revision <= claim.attempt.revision
        values = {"fatal": case((no_news, None), else_=attempts.c.last_line), "token": "", "lease": until, "tries": 0}
        values |= {"looked_at": claim.attempt.revision} if until else {}
        values |= {} if patience is None else {"patience": patience}
        await self._db.execute(_update_claimed(claim).values(values))

    async def put_off(self, claim: Claim, until: float, timing: Timing) -> None:
        """A running attempt gets no verdict before ``until``; its fatal line stays marked, and its end makes it due at
        once. Ignored when the lease was lost."""
        values = {"token": "", "lease": 0.0, "tries": 0, "dirty": until - timing.fatal_debounce}
        await self._db.execute(_update_claimed(claim).values(values))

    async def hand_back_ended(self, claim: Claim) -> bool:
        """Where the attempt has ended since it was claimed, end the lease without a verdict and keep its fatal mark.
        Whether it has; False as well when the lease was lost."""
        ended = _update_claimed(claim).where(attempts.c.ended.is_not(None))
        return await self._db.execute(ended.values(token="", lease=0.0, tries=0)) > 0

    async def extend(self, claim: Claim, until: float) -> None:
        """Move the end of the lease: to keep it during long work, or to put off the next try. Raises Conflict."""
        async with self._db.writing() as connection:
            await _change_claimed(connection, claim, {"lease": until})


async def _replace(connection: AsyncConnection, which: ColumnElement[bool]) -> bool:
    """Whether there was one. It is found by its id from now on, not by its text."""
    replaced = update(diagnoses).where(which).values(current=False).returning(diagnoses.c.id)
    ids = (await connection.execute(replaced)).scalars().all()
    if ids:
        await connection.execute(delete(diagnosis_words).where(diagnosis_words.c.diagnosis.in_(ids)))
    return bool(ids)


async def _store(
    connection: AsyncConnection,
    record: DiagnosisRecord,
    plan: Plan | None,
    outgoing: Sequence[OutboxMessage],
    transition: PlanTransition | None,
) -> TransitionResult:
    result = TransitionResult(plan)
    if plan and transition:
        result = await decide(connection, plan, record.created, transition)
    elif plan:
        await insert_new(connection, plans, [codec.plan_row(plan)])
    job = await find_job(connection, record.attempt.job)
    row = codec.diagnosis_row(record, result.plan, job)
    earlier = and_(diagnoses.c.job == row["job"], diagnoses.c.attempt == row["attempt"], diagnoses.c.current)
    await _replace(connection, earlier)
    await connection.execute(diagnoses.insert(), row)
    await connection.execute(diagnosis_words.insert(), codec.words_row(record))
    nodes = [{"node": node, "diagnosis": record.id} for node in codec.diagnosis_nodes(record.diagnosis)]
    await insert_new(connection, diagnosis_nodes, nodes)
    await add_messages(connection, outgoing)
    await join_incident(connection, record, job)
    return result


def _is_due(now: float, timing: Timing) -> ColumnElement[bool]:
    """``settle_max`` also bounds the wait after the end, for a log that never falls silent.

    News after a diagnosis count from ``dirty``: an old fatal line must not make every new line due at once.
    """
    row = attempts.c
    ended = or_(
        and_(
            _awaits_verdict(),
            row.ended <= now - timing.exit_grace_after_fatal,
            row.last_line <= now - timing.exit_grace_after_fatal,
        ),
        and_(row.ended <= now - timing.exit_grace, row.last_line <= now - timing.exit_grace),
        and_(row.ended <= now - timing.fatal_debounce_max, row.dirty <= now - timing.fatal_debounce_max),
    )
    quiet = and_(row.last_line <= now - timing.fatal_debounce, row.dirty <= now - timing.fatal_debounce)
    overdue = and_(row.fatal <= now - timing.fatal_debounce_max, row.dirty <= now - timing.fatal_debounce_max)
    return or_(ended, and_(row.fatal.is_not(None), or_(quiet, overdue)))


def _awaits_verdict() -> ColumnElement[bool]:
    """The log holds a fatal line that has no verdict yet."""
    return and_(attempts.c.fatal.is_not(None), attempts.c.diagnosed == 0)


async def _claim(connection: AsyncConnection, row: RowMapping, until: float) -> Claim:
    key, token = AttemptKey(row["job"], row["number"]), secrets.token_hex(16)
    mine = update(attempts).where(of_attempt(attempts, key))
    await connection.execute(mine.values(token=token, lease=until, tries=attempts.c.tries + 1))
    job, events = await find_job(connection, key.job), await find_events(connection, [key])
    if job is None:
        raise Conflict(f"job {key.job} no longer exists")
    known, hinted, scheduler = events[key], 0.0, await has_scheduler(connection, job)
    if scheduler:  # only it says how the attempt ended
        hints = list(filter(is_hint, known))
        known = tuple(filterfalse(is_hint, known))
        if hints:
            hinted = hints[-1].time  # they are in order of time
    attempt = codec.attempt_of(row, known, await find_allocation(connection, key))
    return Claim(attempt, job, token, row["tries"] + 1, row["patience"], scheduler, hinted)


def _update_claimed(claim: Claim) -> Update:
    key = claim.attempt.key
    return update(attempts).where(of_attempt(attempts, key), attempts.c.token == claim.token)


async def _change_claimed(connection: AsyncConnection, claim: Claim, values: dict[str, Any]) -> None:
    """Raises Conflict when another worker has claimed the attempt since: its token is a different one."""
    result = await connection.execute(_update_claimed(claim).values(values))
    if not result.rowcount:
        raise Conflict(f"the lease on {claim.attempt.key.job}/{claim.attempt.key.number} was lost")


def _diagnosed_values(claim: Claim, record: DiagnosisRecord) -> dict[str, Any]:
    revision = claim.attempt.revision
    values = {"diagnosed": revision, "dirty": record.created, "token": "", "lease": 0.0, "tries": 0}
    if claim.attempt.first_step is not None:
        values["first_step"] = claim.attempt.first_step
    return values
