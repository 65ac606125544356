"""What the report of impact is made from: the attempts of a window of time, with verdict, plan and incident."""

from typing import Any

from sqlalchemy import Select, and_, func, or_, select

from diagnoser.adapters.sql.database import Repository
from diagnoser.adapters.sql.tables import IS_JOB, attempts, diagnoses, incident_attempts, incidents, jobs, plans
from diagnoser.impact.columns import Attempts

PART = 1_000
"""Rows that are read at a time."""


class ImpactRepository(Repository):
    async def attempts(self, since: float, limit: int) -> Attempts:
        """Read the attempts that ran, or were judged, since then: the ``limit`` that began last, ordered by job."""
        query = self._query(since, limit)
        return await self._db.read(lambda connection: Attempts.of(connection.execute(query).partitions(PART)))

    def _query(self, since: float, limit: int) -> Select[Any]:
        """Its columns are the fields of an outcome, in their order."""
        row, verdict, plan, incident = attempts.c, diagnoses.c, plans.c, incidents.c
        of_verdict = and_(verdict.job == row.job, verdict.attempt == row.number, verdict.current)
        # by the index of the attempt, which holds all that is read: a condition on the key itself would take its own
        of_plan = and_(plan.job == row.job, plan.attempt == row.number, plan.key.concat("") == verdict.plan)
        in_incident = and_(incident_attempts.c.job == row.job, incident_attempts.c.attempt == row.number)
        ran = or_(row.opened >= since, row.ended >= since, and_(row.ended.is_(None), row.last_line >= since))
        judged = select(verdict.id).where(of_verdict, verdict.created >= since).correlate(attempts).exists()
        counted = and_(IS_JOB, or_(ran, judged))
        oldest = select(row.opened).where(counted).order_by(row.opened.desc()).offset(limit - 1).limit(1)
        since_oldest = row.opened + 0.0 >= func.coalesce(oldest.correlate(None).scalar_subquery(), 0.0)
        return (
            select(
                *row["job", "number", "opened", "ended", "last_line", "fatal", "saved"],
                (row.started - row.submitted).label("waited"),
                (row.first_step - func.coalesce(row.started, row.opened)).label("startup"),
                func.coalesce(func.nullif(verdict.cluster, ""), jobs.c.cluster).label("cluster"),
                jobs.c.tenant.label("user"),
                self._db.json_text(jobs.c.body, "labels", "gpus").label("gpus"),
                *verdict["outcome", "category", "type", "created"],
                *plan["state", "created", "mode", "reason", "has_waited", "is_vouched"],
                incident.id.label("incident"),
                incident.node,
            )
            .select_from(attempts)
            .join(jobs, jobs.c.id == row.job)
            .outerjoin(diagnoses, of_verdict)
            .outerjoin(plans, of_plan)
            .outerjoin(incident_attempts, in_incident)
            .outerjoin(incidents, incident.id == incident_attempts.c.incident)
            .where(counted, since_oldest)
            .order_by(row.job, row.number)
            .limit(limit)
        )
