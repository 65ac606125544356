"""Cases that people judged, and how their replays came out."""

from sqlalchemy import ColumnElement, RowMapping, distinct, exists, func, select

from diagnoser.adapters.sql.database import Repository, insert_new
from diagnoser.adapters.sql.tables import case_replays, confirmed_failures, diagnoses, feedback
from diagnoser.model import CaseMark, CaseReplay, Judgement
from diagnoser.model.record_json import RecordJson
from diagnoser.model.taxonomy import FailureType

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
        async with self._db.reading() as connection:
            return (await connection.execute(earlier)).scalar_one() or None

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
