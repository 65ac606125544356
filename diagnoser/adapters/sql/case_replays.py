"""Cases that people judged, and how their replays came out."""

from sqlalchemy import ColumnElement, distinct, exists, func, select

from diagnoser.adapters.sql.database import Database
from diagnoser.adapters.sql.tables import case_replays, confirmed_failures, diagnoses, feedback
from diagnoser.model import CaseMark, CaseReplay, Judgement
from diagnoser.model.record_json import RecordJson
from diagnoser.model.taxonomy import FailureType

_REPLAY = RecordJson(CaseReplay)


class CaseReplayRows(Database):
    """``ports.CaseStore``."""

    async def case_mark(self) -> CaseMark:
        query = (
            select(func.count(), func.max(confirmed_failures.c.changed))
            .select_from(confirmed_failures)
            .where(_judged())
        )
        async with self.reading() as connection:
            count, changed = (await connection.execute(query)).one()
            return CaseMark(int(count), float(changed or 0.0))

    async def judged(self, after: str, limit: int) -> list[str]:
        query = select(confirmed_failures.c.diagnosis).where(_judged(), confirmed_failures.c.diagnosis > after)
        async with self.reading() as connection:
            rows = await connection.execute(query.order_by(confirmed_failures.c.diagnosis).limit(limit))
            return [str(diagnosis) for diagnosis in rows.scalars()]

    async def case_number(self, diagnosis: str) -> int | None:
        """Ids of feedback sort by time."""
        first = select(func.min(feedback.c.id)).where(feedback.c.diagnosis == diagnosis).scalar_subquery()
        earlier = select(func.count(distinct(feedback.c.diagnosis))).where(feedback.c.id <= first)
        async with self.reading() as connection:
            return (await connection.execute(earlier)).scalar_one() or None

    async def judgements(self, since: float, limit: int) -> list[Judgement]:
        """Who judged a verdict did so after it was made."""
        confirmed = confirmed_failures.c
        query = (
            select(confirmed.diagnosis, diagnoses.c.created, diagnoses.c.type, diagnoses.c.decided_by)
            .add_columns(self.json_text(confirmed.body, "type").label("known"))
            .join(diagnoses, diagnoses.c.id == confirmed.diagnosis)
            .where(_judged(), confirmed.changed >= since, diagnoses.c.created >= since)
            .order_by(confirmed.changed.desc(), confirmed.diagnosis)
            .limit(limit)
        )
        async with self.reading() as connection:
            rows = (await connection.execute(query)).mappings()
            return [
                Judgement(
                    row["diagnosis"],
                    row["created"],
                    FailureType(row["type"]),
                    FailureType(row["known"]),
                    row["decided_by"],
                )
                for row in rows
            ]

    async def add_replay(self, replay: CaseReplay) -> bool:
        key = f"{replay.version} {replay.ruleset} {replay.mark.count} {replay.mark.changed!r}"
        row = {"key": key, "time": replay.time, "body": _REPLAY.dump(replay)}
        async with self.writing() as connection:
            return bool(await self.insert_new(connection, case_replays, [row]))

    async def replays(self, limit: int) -> list[CaseReplay]:
        query = select(case_replays.c.body).order_by(case_replays.c.time.desc(), case_replays.c.key).limit(limit)
        async with self.reading() as connection:
            return [_REPLAY.load(body) for body in (await connection.execute(query)).scalars()]


def _judged() -> ColumnElement[bool]:
    """A person spoke about the diagnosis; what only a recovery confirmed is no case."""
    return exists().where(feedback.c.diagnosis == confirmed_failures.c.diagnosis)
