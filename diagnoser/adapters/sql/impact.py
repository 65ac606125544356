"""What the report of impact is made from: the attempts of a window of time, with verdict, plan and incident."""

import asyncio
from collections.abc import Sequence
from itertools import zip_longest
from operator import itemgetter
from typing import Any

from sqlalchemy import Row, Select, and_, func, or_, select

from diagnoser.adapters.sql.codec import event_of, start_digest
from diagnoser.adapters.sql.database import Repository
from diagnoser.adapters.sql.jobs import OF_CHECKPOINT
from diagnoser.adapters.sql.tables import (
    IS_JOB,
    PHASE,
    attempts,
    diagnoses,
    events,
    incident_attempts,
    incidents,
    jobs,
    plans,
)
from diagnoser.model import (
    AttemptKey,
    AttemptOutcome,
    CheckpointPhase,
    FailedRun,
    Mode,
    PlanOutcome,
    PlanState,
    ProofKind,
    Provenance,
)
from diagnoser.model.queries import FAILURES
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.recovery.downtime import failed_at, gpus_of

_FAILURES = frozenset(outcome.value for outcome in FAILURES)
_HAS_WAITED = f'"state":"{PlanState.WAITING.value}"'
_IS_VOUCHED = f'"kind":"{ProofKind.PERSON.value}"'
"""Parts of the JSON of a plan. No text in it can look like that: its quotes are escaped. Reading whole plans, with the
results of node checks, takes a hundred times as long."""
_MODES, _STATES = {str(mode): mode for mode in Mode}, {str(state): state for state in PlanState}
_CATEGORIES, _TYPES = {str(known): known for known in Category}, {str(known): known for known in FailureType}
_START = start_digest(Provenance.SCHEDULER)
_NOT_DURABLE = (CheckpointPhase.STAGED.value, CheckpointPhase.BAD.value)


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
        saved = select(func.max(events.c.time)).where(events.c.job == row.job, events.c.attempt == row.number)
        durable = saved.where(OF_CHECKPOINT, PHASE.not_in(_NOT_DURABLE)).correlate(attempts)
        start = events.alias("start")
        of_start = and_(start.c.job == row.job, start.c.attempt == row.number, start.c.digest == _START)
        ran = or_(row.opened >= since, row.ended >= since, and_(row.ended.is_(None), row.last_line >= since))
        in_incident = and_(incident_attempts.c.job == row.job, incident_attempts.c.attempt == row.number)
        newest = select(row.job, row.number).outerjoin(diagnoses, of_verdict)
        newest = newest.where(IS_JOB, or_(ran, verdict.created >= since))
        chosen = newest.order_by(row.opened.desc(), row.job, row.number).limit(limit).cte("chosen")
        return (
            select(
                *row["job", "number", "opened", "ended", "last_line", "fatal"],
                jobs.c.cluster.label("cluster_of_job"),
                jobs.c.tenant.label("user"),
                self._db.json_text(jobs.c.body, "labels", "gpus").label("gpus"),
                durable.scalar_subquery().label("saved"),
                start.c.body.label("start"),
                *verdict["outcome", "category", "type", "cluster"],
                verdict.created.label("diagnosed"),
                plan.state.label("plan_state"),
                plan.created.label("planned"),
                self._db.json_text(plan.body, "mode").label("mode"),
                self._db.json_text(plan.body, "reason").label("reason"),
                plan.body.contains(_HAS_WAITED).label("has_waited"),
                plan.body.contains(_IS_VOUCHED).label("is_vouched"),
                incident.id.label("incident"),
                incident.node,
            )
            .select_from(chosen)
            .join(attempts, and_(row.job == chosen.c.job, row.number == chosen.c.number))
            .join(jobs, jobs.c.id == row.job)
            .outerjoin(start, of_start)
            .outerjoin(diagnoses, of_verdict)
            .outerjoin(plans, plan.key == verdict.plan)
            .outerjoin(incident_attempts, in_incident)
            .outerjoin(incidents, incident.id == incident_attempts.c.incident)
        )


def _outcomes(rows: Sequence[Row[Any]]) -> list[AttemptOutcome]:
    ordered = sorted(rows, key=itemgetter(0, 1))  # job and number
    outcomes = []
    for row, following in zip_longest(ordered, ordered[1:]):
        if following is not None and following.job != row.job:
            following = None
        outcomes.append(_outcome(row, following))
    return outcomes


def _outcome(row: Row[Any], following: Row[Any] | None) -> AttemptOutcome:
    key, gpus = AttemptKey(row.job, row.number), gpus_of(row.gpus)
    until, cluster = row.ended or row.last_line or row.opened, row.cluster or row.cluster_of_job
    waited = event_of(row.start).waited if row.start else None
    if row.outcome not in _FAILURES:
        return AttemptOutcome(key, row.opened, until, cluster, row.user, gpus, row.saved, waited=waited)
    plan = None
    if row.plan_state:
        mode, state = _MODES[row.mode], _STATES[row.plan_state]
        plan = PlanOutcome(row.planned, mode, state, row.reason, row.has_waited, row.is_vouched)
    return AttemptOutcome(
        key,
        row.opened,
        until,
        cluster,
        row.user,
        gpus,
        row.saved,
        _failed_run(key, row, following, plan),
        _CATEGORIES[row.category],
        _TYPES[row.type],
        plan,
        row.incident or "",
        row.node or "",
        waited,
    )


def _failed_run(key: AttemptKey, row: Row[Any], following: Row[Any] | None, plan: PlanOutcome | None) -> FailedRun:
    relaunched, is_success = None, None
    if following is not None:
        relaunched = following.opened
        if following.category:
            is_success = following.category == Category.NONE.value
    is_hung = row.outcome == Outcome.HUNG.value
    failed = failed_at(hung=is_hung, fatal=row.fatal, ended=row.ended, last_line=row.last_line)
    by_plan = plan is not None and plan.state is PlanState.REACHED
    return FailedRun(key, failed, row.diagnosed, gpus_of(row.gpus), relaunched, by_plan, is_success)
