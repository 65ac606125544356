"""What people say about diagnoses, and the incidents that are learned from it."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from diagnoser.adapters.sql import codec
from diagnoser.adapters.sql.learned import LearnedRules
from diagnoser.adapters.sql.tables import diagnoses, feedback, incidents
from diagnoser.errors import NotFound
from diagnoser.model import Feedback, Incident, LearnedRule
from diagnoser.taxonomy import FailureType


class FeedbackRows(LearnedRules):
    """``ports.FeedbackStore``."""

    async def add_feedback(self, given: Feedback, incident: Incident, wanted: LearnedRule | None = None) -> None:
        about = select(diagnoses.c.id).where(diagnoses.c.id == given.diagnosis)
        row = codec.incident_row(incident)
        new = self.insert(incidents).values(row)
        changed = {name: new.excluded[name] for name in row if name != "diagnosis"}
        async with self.writing() as connection:
            if (await connection.execute(about)).first() is None:
                raise NotFound(f"there is no diagnosis {given.diagnosis!r}")
            await connection.execute(feedback.insert(), codec.feedback_row(given))
            await connection.execute(new.on_conflict_do_update(index_elements=["diagnosis"], set_=changed))
            await self.withdraw_in(connection, incident)
            await self._learned(connection, incident, wanted)

    async def add_incident(self, incident: Incident, wanted: LearnedRule | None = None) -> bool:
        async with self.writing() as connection:
            new = await self.insert_new(connection, incidents, [codec.incident_row(incident)])
            if new:
                await self._learned(connection, incident, wanted)
            return bool(new)

    async def _learned(self, connection: AsyncConnection, incident: Incident, wanted: LearnedRule | None) -> None:
        """The cause is known now: who had it right, and what rule would know it next time."""
        if incident.type is not FailureType.UNKNOWN:
            await self.settle_in(connection, incident.attempt, incident.type)
        if wanted:
            await self.propose_in(connection, wanted)

    async def incidents(self, since: float, after: str, limit: int) -> list[Incident]:
        found = select(incidents).where(incidents.c.changed >= since, incidents.c.diagnosis > after)
        async with self.reading() as connection:
            rows = await connection.execute(found.order_by(incidents.c.diagnosis).limit(limit))
            return [codec.incident_of(row) for row in rows.mappings()]


async def find_feedback(connection: AsyncConnection, ids: Sequence[str]) -> dict[str, tuple[Feedback, ...]]:
    """Diagnosis -> what was said about it, the newest first."""
    told: dict[str, tuple[Feedback, ...]] = dict.fromkeys(ids, ())
    found = select(feedback).where(feedback.c.diagnosis.in_(ids)).order_by(feedback.c.id.desc())
    for row in (await connection.execute(found)).mappings():
        told[row["diagnosis"]] += (codec.feedback_of(row["body"]),)
    return told
