"""What the report of impact is made from: the attempts of a window of time, with verdict, plan and incident."""

import asyncio
from collections.abc import Iterable
from itertools import zip_longest
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import Row, Select, and_, or_, select

from diagnoser.adapters.sql.codec import start_digest
from diagnoser.adapters.sql.database import Repository
from diagnoser.adapters.sql.tables import (
    IS_JOB,
    IS_SAVED,
    attempts,
    diagnoses,
    events,
    incident_attempts,
    incidents,
    jobs,
    plans,
    submitted_of,
)
from diagnoser.model import (
    AttemptKey,
    AttemptOutcome,
    FailedRun,
    Mode,
    PlanOutcome,
    PlanState,
    Provenance,
)
from diagnoser.model.queries import FAILURES
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.recovery.downtime import failed_at, gpus_of

_FAILURES = frozenset(outcome.value for outcome in FAILURES)
_MODES, _STATES = {str(mode): mode for mode in Mode}, {str(state): state for state in PlanState}
_CATEGORIES, _TYPES = {str(known): known for known in Category}, {str(known): known for known in FailureType}
_START = start_digest(Provenance.SCHEDULER)


class _Row(NamedTuple):
    """The columns of the query, in its order. A row of SQLAlchemy takes five times as long to be asked for one."""

    job: str
    number: int
    opened: float
    ended: float | None
    last_line: float
    fatal: float | None
    first_step: float | None
    cluster_of_job: str
    user: str
    gpus: str | None
    saved: float | None
    started: float | None
    submitted: float | None
    outcome: str | None
    category: str | None
    type: str | None
    diagnosed: float
    cluster: str | None
    plan_state: str | None
    planned: float
    mode: str
    reason: str
    has_waited: bool
    is_vouched: bool
    incident: str | None
    node: str | None


class ImpactRepository(Repository):
    async def outcomes(self, since: float, limit: int) -> list[AttemptOutcome]:
        """List the attempts that ran, or were judged, since then: the ``limit`` that began last, ordered by job."""
        async with self._db.reading() as connection:
            rows = (await connection.execute(self._query(since, limit))).all()
        return await asyncio.to_thread(_outcomes, rows)  # a second for 50,000 of them

    def _query(self, since: float, limit: int) -> Select[Any]:
        """What is wide is joined to the rows that were chosen: the database sorts their keys alone."""
        row, verdict, plan, incident = attempts.c, diagnoses.c, plans.c, incidents.c
        of_verdict = and_(verdict.job == row.job, verdict.attempt == row.number, verdict.current)
        mine = select(events.c.time).where(events.c.job == row.job, events.c.attempt == row.number, IS_SAVED)
        saved = mine.order_by(events.c.time.desc()).limit(1)  # the order of its index; max() may read another
        start = events.alias("start")
        of_start = and_(start.c.job == row.job, start.c.attempt == row.number, start.c.digest == _START)
        ran = or_(row.opened >= since, row.ended >= since, and_(row.ended.is_(None), row.last_line >= since))
        # by the index of the attempt, which holds all that is read: a condition on the key itself would take its own
        of_plan = and_(plan.job == row.job, plan.attempt == row.number, plan.key.concat("") == verdict.plan)
        in_incident = and_(incident_attempts.c.job == row.job, incident_attempts.c.attempt == row.number)
        known = select(row.job, row.number).outerjoin(diagnoses, of_verdict)
        began = known.where(IS_JOB, or_(ran, verdict.created >= since))
        newest = began.order_by(row.opened.desc(), row.job, row.number).limit(limit).subquery("newest")
        # in the order of the indexes that are read next
        chosen = select(newest).order_by(newest.c.job, newest.c.number).limit(limit).cte("chosen")
        return (
            select(
                *row["job", "number", "opened", "ended", "last_line", "fatal", "first_step"],
                jobs.c.cluster.label("cluster_of_job"),
                jobs.c.tenant.label("user"),
                self._db.json_text(jobs.c.body, "labels", "gpus").label("gpus"),
                saved.correlate(attempts).scalar_subquery().label("saved"),
                start.c.time.label("started"),
                submitted_of(start.c.body).label("submitted"),
                *verdict["outcome", "category", "type", "created", "cluster"],
                *plan["state", "created", "mode", "reason", "has_waited", "is_vouched"],
                incident.id.label("incident"),
                incident.node,
            )
            .select_from(chosen)
            .join(attempts, and_(row.job == chosen.c.job, row.number == chosen.c.number))
            .join(jobs, jobs.c.id == row.job)
            .outerjoin(start, of_start)
            .outerjoin(diagnoses, of_verdict)
            .outerjoin(plans, of_plan)
            .outerjoin(incident_attempts, in_incident)
            .outerjoin(incidents, incident.id == incident_attempts.c.incident)
        )


def _outcomes(read: Iterable[Row[Any]]) -> list[AttemptOutcome]:
    rows = sorted(map(_Row._make, read), key=itemgetter(0, 1))  # job and number
    gpus = {label: gpus_of(label) for label in {row.gpus for row in rows}}
    outcomes = []
    for row, following in zip_longest(rows, rows[1:]):
        if following is not None and following.job != row.job:
            following = None
        outcomes.append(_outcome(row, following, gpus[row.gpus]))
    return outcomes


def _outcome(row: _Row, following: _Row | None, gpus: int | None) -> AttemptOutcome:
    key = AttemptKey(row.job, row.number)
    until, cluster = row.ended or row.last_line or row.opened, row.cluster or row.cluster_of_job
    waited, startup = _waits(row)
    if row.outcome not in _FAILURES:
        return AttemptOutcome(
            key, row.opened, until, cluster, row.user, gpus, row.saved, waited=waited, startup=startup
        )
    plan = None
    if row.plan_state:
        mode, state = _MODES[row.mode], _STATES[row.plan_state]
        plan = PlanOutcome(row.planned, mode, state, row.reason, bool(row.has_waited), bool(row.is_vouched))
    return AttemptOutcome(
        key,
        row.opened,
        until,
        cluster,
        row.user,
        gpus,
        row.saved,
        _failed_run(key, row, following, plan, gpus),
        _CATEGORIES[row.category or ""],
        _TYPES[row.type or ""],
        plan,
        row.incident or "",
        row.node or "",
        waited,
        startup,
    )


def _waits(row: _Row) -> tuple[float | None, float | None]:
    """Seconds that a launch waited in the queue, and for its first step."""
    started, waited, startup = row.started, None, None
    if started is not None and row.submitted is not None:
        waited = max(0.0, started - row.submitted)
    if row.first_step is not None:
        startup = max(0.0, row.first_step - (row.opened if started is None else started))
    return waited, startup


def _failed_run(
    key: AttemptKey, row: _Row, following: _Row | None, plan: PlanOutcome | None, gpus: int | None
) -> FailedRun:
    relaunched, is_success = None, None
    if following is not None:
        relaunched = following.opened
        if following.category:
            is_success = following.category == Category.NONE.value
    is_hung = row.outcome == Outcome.HUNG.value
    failed = failed_at(hung=is_hung, fatal=row.fatal, ended=row.ended, last_line=row.last_line)
    by_plan = plan is not None and plan.state is PlanState.REACHED
    return FailedRun(key, failed, row.diagnosed, gpus, relaunched, by_plan, is_success)
