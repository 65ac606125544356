"""Feedback on diagnoses, and the confirmed failures learned from it."""

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from diagnoser.adapters.sql import codec
from diagnoser.adapters.sql.audit import note_change
from diagnoser.adapters.sql.database import Repository, insert_new
from diagnoser.adapters.sql.learned import add_proposal, judge_rule_hits, withdraw_rules
from diagnoser.adapters.sql.statements import excluded
from diagnoser.adapters.sql.tables import confirmed_failures, diagnoses, feedback, jobs
from diagnoser.model import ConfirmedFailure, Feedback, FeedbackVerdict, LearnedRule
from diagnoser.model.errors import NotFound
from diagnoser.model.taxonomy import FailureType
from diagnoser.model.work import DiagnosisRecord


class FeedbackRepository(Repository):
    """Feedback of people on diagnoses, and the failures that it confirmed."""

    async def add(self, given: Feedback, confirmed: ConfirmedFailure, wanted: LearnedRule | None = None) -> None:
        """Store what a person said, and what can be learned from it, in one transaction. Raises NotFound.

        The confirmed failure replaces an earlier one of the same diagnosis; rules that were learned from that one with
        another cause are retired. Rule hits in the attempt are judged. wanted: the rule to be written; not stored when
        one that is on trial was right.
        """
        about = select(diagnoses.c.id).where(diagnoses.c.id == given.diagnosis)
        row = codec.confirmed_failure_row(confirmed)
        new = self._db.insert(confirmed_failures).values(row)
        names = list(row)
        names.remove("diagnosis")
        changed = excluded(new, names)
        async with self._db.writing() as connection:
            if (await connection.execute(about)).first() is None:
                raise NotFound(f"there is no diagnosis {given.diagnosis!r}")
            await connection.execute(feedback.insert(), codec.feedback_row(given))
            await connection.execute(new.on_conflict_do_update(index_elements=["diagnosis"], set_=changed))
            await note_change(connection, "diagnosis", given.diagnosis, None, given)
            await withdraw_rules(connection, confirmed)
            await _learn_from(connection, confirmed, wanted)

    async def add_confirmed_failure(self, confirmed: ConfirmedFailure, wanted: LearnedRule | None = None) -> bool:
        """The same without feedback of a person; False, and nothing is stored, when the diagnosis has one."""
        async with self._db.writing() as connection:
            new = await insert_new(connection, confirmed_failures, [codec.confirmed_failure_row(confirmed)])
            if new:
                await _learn_from(connection, confirmed, wanted)
            return bool(new)

    async def confirmed(self, limit: int) -> list[str]:
        """Diagnoses that have a confirmed failure, those that changed last first."""
        newest = (
            select(confirmed_failures.c.diagnosis)
            .order_by(confirmed_failures.c.changed.desc(), confirmed_failures.c.diagnosis)
            .limit(limit)
        )
        return await self._db.values(newest, str)

    async def tenant_of(self, job: str) -> str:
        """Whose job it is, "" where that is not known."""
        return await self._db.value(select(jobs.c.tenant).where(jobs.c.id == job)) or ""

    async def confirmed_failures(self, since: float, after: str, limit: int) -> list[ConfirmedFailure]:
        """Those that changed at or after ``since``, by diagnosis; ``after``: the last one of the page before."""
        of_job = select(jobs.c.tenant).join(diagnoses, diagnoses.c.job == jobs.c.id)
        tenant = of_job.where(diagnoses.c.id == confirmed_failures.c.diagnosis).scalar_subquery().label("tenant")
        query = select(confirmed_failures, tenant).where(
            confirmed_failures.c.changed >= since, confirmed_failures.c.diagnosis > after
        )
        page = query.order_by(confirmed_failures.c.diagnosis).limit(limit)
        return await self._db.rows(page, codec.confirmed_failure_of)


async def _learn_from(connection: AsyncConnection, confirmed: ConfirmedFailure, proposal: LearnedRule | None) -> None:
    """Judge the rules that hit by the confirmed cause, and propose a rule if none had it right."""
    known = confirmed.type is not FailureType.UNKNOWN
    right = await judge_rule_hits(connection, confirmed.attempt, confirmed.type) if known else []
    if proposal and not right:
        await add_proposal(connection, proposal)


async def find_feedback(
    connection: AsyncConnection, records: Sequence[DiagnosisRecord]
) -> dict[str, tuple[Feedback, ...]]:
    """Diagnosis id -> feedback on it and on earlier diagnoses of the same attempt, newest first."""
    by_attempt: dict[tuple[str, int], list[tuple[str, FailureType, Feedback]]] = {}
    for record in records:
        by_attempt[record.attempt.job, record.attempt.number] = []
    about = (diagnoses.c.id, diagnoses.c.job, diagnoses.c.attempt, diagnoses.c.type)
    query = select(feedback.c.body, *about).join(diagnoses, feedback.c.diagnosis == diagnoses.c.id)
    mine = query.where(tuple_(diagnoses.c.job, diagnoses.c.attempt).in_(by_attempt)).order_by(feedback.c.id.desc())
    for row in (await connection.execute(mine)).mappings():
        about_type = FailureType(row["type"])
        by_attempt[row["job"], row["attempt"]].append((row["id"], about_type, codec.feedback_of(row["body"])))
    by_record = {}
    for record in records:
        given: list[Feedback] = []
        for diagnosis, about_type, entry in by_attempt[record.attempt.job, record.attempt.number]:
            if diagnosis <= record.id:  # later ones are of a later diagnosis
                given.append(_for_attempt(entry, about_type, record))
        by_record[record.id] = tuple(given)
    return by_record


def _for_attempt(entry: Feedback, about: FailureType, record: DiagnosisRecord) -> Feedback:
    """Feedback holds for the attempt: a confirmed cause corrects a later diagnosis that names another one."""
    if entry.verdict is FeedbackVerdict.CONFIRMED and about is not record.diagnosis.type:
        return replace(entry, verdict=FeedbackVerdict.CORRECTED, type=entry.type or about)
    return entry
