"""Feedback on diagnoses, and the confirmed failures learned from it."""

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import ColumnElement, RowMapping, and_, delete, distinct, exists, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from diagnoser.adapters.sql import codec
from diagnoser.adapters.sql.audit import note_change
from diagnoser.adapters.sql.database import Repository, insert_new, put_rows, scalar
from diagnoser.adapters.sql.learned import add_proposal, judge_rule_hits, reopen_rule_hits, withdraw_rules
from diagnoser.adapters.sql.statements import has_key
from diagnoser.adapters.sql.tables import attempts, case_replays, confirmed_failures, diagnoses, feedback, jobs
from diagnoser.model import CaseMark, CaseReplay, ConfirmedFailure, Feedback, FeedbackVerdict, Judgement, LearnedRule
from diagnoser.model.errors import Conflict, NotFound
from diagnoser.model.record_json import RecordJson
from diagnoser.model.taxonomy import FailureType
from diagnoser.model.work import DiagnosisRecord

_TICK = 1e-6
"""Seconds between two changes, as far as a time in seconds since 1970 can tell them apart."""


class FeedbackRepository(Repository):
    """Feedback of people on diagnoses, and the failures that it confirmed."""

    async def add(
        self, given: Feedback, confirmed: ConfirmedFailure, wanted: LearnedRule | None = None, after: str | None = None
    ) -> bool:
        """Store what a person said, and what can be learned from it, in one transaction. False, and nothing is stored,
        where the same words of the same person are the newest already.

        The confirmed failure replaces an earlier one of the same diagnosis; rules that were learned from that one with
        another cause are retired, and attempts that it decided are diagnosed again. Rule hits in the attempt are
        judged. wanted: the rule to be written; not stored when one that is on trial was right. after: id of the newest
        feedback that the person knew, "" for none. Raises NotFound, Conflict where there is a newer one.
        """
        async with self._db.writing() as connection:
            newest = await _newest(connection, given.diagnosis)
            if newest and replace(given, id=newest.id, created=newest.created) == newest:
                return False
            if after not in (None, newest.id if newest else ""):
                by = newest.by if newest else "Somebody"
                raise Conflict(f"{by} changed what is said about this diagnosis in the meantime: read it again")
            await connection.execute(feedback.insert(), codec.feedback_row(given))
            await note_change(connection, "diagnosis", given.diagnosis, None, given)
            confirmed = await self._put(connection, confirmed)
            await _learn_from(connection, confirmed, wanted)
            return True

    async def take_back(self, given: Feedback, remains: ConfirmedFailure) -> None:
        """Remove the newest feedback on a diagnosis; the audit log keeps it. Raises NotFound, Conflict as ``add``.

        remains: what is confirmed without it, of the type unknown where nothing is.
        """
        async with self._db.writing() as connection:
            newest = await _newest(connection, given.diagnosis)
            if newest is None or newest.id < given.id:
                raise NotFound(f"the feedback {given.id!r} was taken back already")
            if newest.id != given.id:
                raise Conflict(f"{newest.by} said something else about this diagnosis in the meantime")
            await connection.execute(delete(feedback).where(feedback.c.id == given.id))
            await note_change(connection, "diagnosis", given.diagnosis, given, {})
            await reopen_rule_hits(connection, remains.attempt)
            await _learn_from(connection, await self._put(connection, remains), None)

    async def _put(self, connection: AsyncConnection, confirmed: ConfirmedFailure) -> ConfirmedFailure:
        """Store a confirmed failure in place of an earlier one, and undo what only that one decided.

        ``changed`` grows with each, whatever the clocks of the replicas say: readers ask for what is newer.
        """
        latest = await scalar(connection, select(func.max(confirmed_failures.c.changed)), 0.0)
        confirmed = replace(confirmed, changed=max(confirmed.changed, latest + _TICK))
        await put_rows(connection, confirmed_failures, [codec.confirmed_failure_row(confirmed)])
        await withdraw_rules(connection, confirmed)
        await _diagnose_again(connection, confirmed)
        return confirmed

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
        return await self._db.value(select(jobs.c.tenant).where(jobs.c.id == job), "")

    async def family_of(self, diagnosis: str) -> str:
        """Family of the job of a diagnosis, "" where there is none."""
        return await self._db.value(select(diagnoses.c.family).where(diagnoses.c.id == diagnosis), "")

    async def confirmed_failures(self, since: float, after: str, limit: int) -> list[ConfirmedFailure]:
        """Those that changed at or after ``since``, by diagnosis; ``after``: the last one of the page before."""
        of_job = select(jobs.c.tenant).join(diagnoses, diagnoses.c.job == jobs.c.id)
        tenant = of_job.where(diagnoses.c.id == confirmed_failures.c.diagnosis).scalar_subquery().label("tenant")
        query = select(confirmed_failures, tenant).where(
            confirmed_failures.c.changed >= since, confirmed_failures.c.diagnosis > after
        )
        page = query.order_by(confirmed_failures.c.diagnosis).limit(limit)
        return await self._db.rows(page, codec.confirmed_failure_of)


async def _newest(connection: AsyncConnection, diagnosis: str) -> Feedback | None:
    """The newest feedback on the attempt of a diagnosis, none that came after a later diagnosis. Locks the diagnosis.

    Raises NotFound."""
    about = select(diagnoses.c.job, diagnoses.c.attempt).where(diagnoses.c.id == diagnosis)
    attempt = (await connection.execute(about.with_for_update())).first()
    if attempt is None:
        raise NotFound(f"there is no diagnosis {diagnosis!r}")
    of_attempt = and_(diagnoses.c.job == attempt.job, diagnoses.c.attempt == attempt.attempt)
    given = select(feedback.c.body).join(diagnoses, feedback.c.diagnosis == diagnoses.c.id)
    newest = given.where(of_attempt, diagnoses.c.id <= diagnosis).order_by(feedback.c.id.desc()).limit(1)
    body = (await connection.execute(newest)).scalar()
    return codec.feedback_of(body) if body else None


async def _diagnose_again(connection: AsyncConnection, confirmed: ConfirmedFailure) -> None:
    """Make attempts due that an earlier word on this failure decided, where it names another cause now."""
    mine = and_(diagnoses.c.job == attempts.c.job, diagnoses.c.attempt == attempts.c.number, diagnoses.c.current)
    decided = and_(diagnoses.c.decided_by == f"incident:{confirmed.diagnosis}", diagnoses.c.type != str(confirmed.type))
    stale = and_(exists().where(mine, decided), attempts.c.revision == attempts.c.diagnosed)
    values = {"revision": attempts.c.revision + 1, "dirty": confirmed.changed}
    await connection.execute(update(attempts).where(stale).values(values))


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
    mine = query.where(has_key((diagnoses.c.job, diagnoses.c.attempt), by_attempt)).order_by(feedback.c.id.desc())
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
    if entry.verdict is not FeedbackVerdict.CONFIRMED:
        return entry
    if about is not record.diagnosis.type:
        return replace(entry, verdict=FeedbackVerdict.CORRECTED, type=entry.type or about)
    return entry


_REPLAY = RecordJson(CaseReplay)


class CaseRepository(Repository):
    """Failures that people judged, and how the rules do on them over time. Both are kept for ever."""

    async def mark(self) -> CaseMark:
        """Changes with every judgement; cheap to query."""
        query = (
            select(func.count(), func.max(confirmed_failures.c.changed))
            .select_from(confirmed_failures)
            .where(_judged())
        )
        async with self._db.reading() as connection:
            count, changed = (await connection.execute(query)).one()
            return CaseMark(int(count), float(changed or 0.0))

    async def judged(self, after: str, limit: int) -> list[str]:
        """Diagnoses that a person confirmed or corrected, oldest first; ``after``: the last one of the page before."""
        query = select(confirmed_failures.c.diagnosis).where(_judged(), confirmed_failures.c.diagnosis > after)
        return await self._db.values(query.order_by(confirmed_failures.c.diagnosis).limit(limit), str)

    async def number(self, diagnosis: str) -> int | None:
        """How many diagnoses people had judged when they first judged this one, with it; None where nobody did.

        Ids of feedback sort by time.
        """
        first = select(func.min(feedback.c.id)).where(feedback.c.diagnosis == diagnosis).scalar_subquery()
        earlier = select(func.count(distinct(feedback.c.diagnosis))).where(feedback.c.id <= first)
        return await self._db.value(earlier) or None

    async def judgements(self, since: float, limit: int) -> list[Judgement]:
        """Verdicts made at or after ``since`` that people judged, those judged last first.

        Who judged a verdict did so after it was made.
        """
        confirmed = confirmed_failures.c
        query = (
            select(confirmed.diagnosis, diagnoses.c.created, diagnoses.c.type, diagnoses.c.decided_by)
            .add_columns(self._db.json_text(confirmed.body, "type").label("known"))
            .join(diagnoses, diagnoses.c.id == confirmed.diagnosis)
            .where(_judged(), confirmed.changed >= since, diagnoses.c.created >= since)
            .order_by(confirmed.changed.desc(), confirmed.diagnosis)
            .limit(limit)
        )
        return await self._db.rows(query, _judgement)

    async def add_replay(self, replay: CaseReplay) -> bool:
        """False, and nothing is stored, when the same rules were replayed on the same cases already."""
        key = f"{replay.version} {replay.ruleset} {replay.mark.count} {replay.mark.changed!r}"
        row = {"key": key, "time": replay.time, "body": _REPLAY.dump(replay)}
        async with self._db.writing() as connection:
            return bool(await insert_new(connection, case_replays, [row]))

    async def replays(self, limit: int) -> list[CaseReplay]:
        """The newest first."""
        query = select(case_replays.c.body).order_by(case_replays.c.time.desc(), case_replays.c.key).limit(limit)
        return await self._db.values(query, _REPLAY.load)


def _judgement(row: RowMapping) -> Judgement:
    made, known = FailureType(row["type"]), FailureType(row["known"])
    return Judgement(row["diagnosis"], row["created"], made, known, row["decided_by"])


def _judged() -> ColumnElement[bool]:
    """A person spoke about the diagnosis; what only a recovery confirmed is no case."""
    return exists().where(feedback.c.diagnosis == confirmed_failures.c.diagnosis)
