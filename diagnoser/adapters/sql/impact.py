"""What the report of impact is made from: the attempts of a window of time, with verdict, plan and incident."""

import asyncio
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import orjson
from sqlalchemy import RowMapping, Select, and_, func, or_, select

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
)
from diagnoser.model.queries import FAILURES
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.recovery.downtime import failed_at, gpus_of

_FAILURES = frozenset(outcome.value for outcome in FAILURES)
_WAITING, _PERSON = PlanState.WAITING.value, ProofKind.PERSON.value
_NOT_DURABLE = (CheckpointPhase.STAGED.value, CheckpointPhase.BAD.value)


class ImpactRepository(Repository):
    async def outcomes(self, since: float, limit: int) -> list[AttemptOutcome]:
        """List the attempts that ran, or were judged, since then: the ``limit`` that began last, ordered by job."""
        async with self._db.reading() as connection:
            rows = (await connection.execute(self._query(since, limit))).mappings().all()
        return await asyncio.to_thread(_outcomes, rows)  # a second for 20,000 of them

    def _query(self, since: float, limit: int) -> Select[Any]:
        row, verdict, plan, incident = attempts.c, diagnoses.c, plans.c, incidents.c
        of_verdict = and_(verdict.job == row.job, verdict.attempt == row.number, verdict.current)
        saved = select(func.max(events.c.time)).where(events.c.job == row.job, events.c.attempt == row.number)
        durable = saved.where(OF_CHECKPOINT, PHASE.not_in(_NOT_DURABLE)).correlate(attempts)
        ran = or_(row.opened >= since, row.ended >= since, and_(row.ended.is_(None), row.last_line >= since))
        in_incident = and_(incident_attempts.c.job == row.job, incident_attempts.c.attempt == row.number)
        return (
            select(
                *row["job", "number", "opened", "ended", "last_line", "fatal"],
                jobs.c.cluster.label("cluster_of_job"),
                jobs.c.tenant.label("user"),
                self._db.json_text(jobs.c.body, "labels", "gpus").label("gpus"),
                durable.scalar_subquery().label("saved"),
                *verdict["outcome", "category", "type", "cluster"],
                verdict.created.label("diagnosed"),
                plan.body.label("plan"),
                incident.id.label("incident"),
                incident.node,
            )
            .select_from(attempts)
            .join(jobs, jobs.c.id == row.job)
            .outerjoin(diagnoses, of_verdict)
            .outerjoin(plans, plan.key == verdict.plan)
            .outerjoin(incident_attempts, in_incident)
            .outerjoin(incidents, incident.id == incident_attempts.c.incident)
            .where(IS_JOB, or_(ran, verdict.created >= since))
            .order_by(row.opened.desc(), row.job, row.number)
            .limit(limit)
        )


def _outcomes(rows: Sequence[RowMapping]) -> list[AttemptOutcome]:
    outcomes = list[AttemptOutcome]()
    for _, of_job in groupby(sorted(rows, key=itemgetter("job", "number")), itemgetter("job")):
        outcomes += _of_job(list(of_job))
    return outcomes


def _of_job(rows: list[RowMapping]) -> Iterable[AttemptOutcome]:
    """rows: of one job, in order."""
    for row, following in pairwise([*rows, None]):
        assert row is not None, "only the last one has nothing behind it"
        yield _outcome(row, following)


def _outcome(row: RowMapping, following: RowMapping | None) -> AttemptOutcome:
    key, gpus = AttemptKey(row["job"], row["number"]), gpus_of(row["gpus"])
    common: dict[str, Any] = {
        "attempt": key,
        "opened": row["opened"],
        "until": row["ended"] or row["last_line"] or row["opened"],
        "cluster": row["cluster"] or row["cluster_of_job"],
        "user": row["user"],
        "gpus": gpus,
        "saved": row["saved"],
    }
    if row["outcome"] not in _FAILURES:
        return AttemptOutcome(**common)
    plan = _plan_outcome(row["plan"]) if row["plan"] else None
    return AttemptOutcome(
        **common,
        failure=_failed_run(row, following, plan),
        category=Category(row["category"]),
        type=FailureType(row["type"]),
        plan=plan,
        incident=row["incident"] or "",
        node=row["node"] or "",
    )


def _failed_run(row: RowMapping, following: RowMapping | None, plan: PlanOutcome | None) -> FailedRun:
    is_hung = row["outcome"] == Outcome.HUNG.value
    relaunched, is_success = None, None
    if following:
        relaunched = following["opened"]
        if following["category"]:
            is_success = following["category"] == Category.NONE.value
    return FailedRun(
        attempt=AttemptKey(row["job"], row["number"]),
        failed=failed_at(hung=is_hung, fatal=row["fatal"], ended=row["ended"], last_line=row["last_line"]),
        diagnosed=row["diagnosed"],
        gpus=gpus_of(row["gpus"]),
        relaunched=relaunched,
        by_plan=plan is not None and plan.state is PlanState.REACHED,
        next_succeeded=is_success,
    )


def _plan_outcome(body: str) -> PlanOutcome:
    """Read the few fields that count: whole plans, with the results of node checks, take a hundred times as long."""
    plan = orjson.loads(body)
    return PlanOutcome(
        created=plan["created"],
        mode=Mode(plan["mode"]),
        state=PlanState(plan["state"]),
        reason=plan["reason"],
        has_waited=any(change["state"] == _WAITING for change in plan.get("history", ())),
        is_vouched=any(proof["kind"] == _PERSON for proof in plan.get("proofs", ())),
    )
