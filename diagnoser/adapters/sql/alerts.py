"""What receivers of alerts were told, and which incidents are silenced."""

from dataclasses import asdict

from sqlalchemy import and_, delete, exists, func, not_, select

from diagnoser.adapters.sql.audit import note_change
from diagnoser.adapters.sql.database import Repository, put_rows
from diagnoser.adapters.sql.tables import alert_silences, alert_threads, attempts, incident_attempts
from diagnoser.model.alerts import ON_ITS_WAY, AlertSilence, AlertThread


class AlertRepository(Repository):
    async def thread(self, receiver: str, incident: str) -> AlertThread | None:
        query = select(alert_threads).where(alert_threads.c.receiver == receiver, alert_threads.c.incident == incident)
        row = await self._db.row(query)
        return AlertThread(**row) if row else None

    async def thread_at(self, place: str) -> AlertThread | None:
        """The thread whose handle begins so: each channel begins it with where the first message stands."""
        begins = func.substr(alert_threads.c.handle, 1, len(place)) == place
        row = await self._db.row(select(alert_threads).where(begins))
        return AlertThread(**row) if row else None

    async def save_thread(self, thread: AlertThread) -> None:
        await self._db.upsert(alert_threads, asdict(thread))

    async def jobs_down(self, incident: str) -> frozenset[str]:
        """Jobs of an incident that were not launched again since they failed, or have not printed since."""
        failed, later = incident_attempts.c, attempts.c
        again = exists().where(later.job == failed.job, later.number > failed.attempt, later.last_line > 0)
        query = select(failed.job).where(failed.incident == incident, not_(again)).distinct()
        return frozenset(await self._db.rows(query, lambda row: str(row["job"])))

    async def claim_head(self, receiver: str, incident: str, now: float, seconds: float) -> bool:
        """Whether the caller, and nobody else, may post the first alert of an incident. seconds: a claim that is so far
        from now has failed, or is of a clock that is wrong."""
        row = AlertThread(receiver, incident, ON_ITS_WAY, told=now)
        new = self._db.insert(alert_threads).values(asdict(row))
        held = alert_threads.c
        claim = new.on_conflict_do_update(
            index_elements=["receiver", "incident"],
            set_={"told": now},
            where=and_(held.handle.in_(("", ON_ITS_WAY)), not_(held.told.between(now - seconds, now + seconds))),
        )
        return bool(await self._db.write(lambda connection: connection.execute(claim).rowcount))

    async def release_head(self, receiver: str, incident: str) -> None:
        """The first alert could not be posted: the next one may try at once."""
        row = alert_threads.c
        mine = delete(alert_threads).where(row.receiver == receiver, row.incident == incident, row.handle == ON_ITS_WAY)
        await self._db.write(lambda connection: connection.execute(mine))

    async def silence(self, incident: str) -> AlertSilence | None:
        """The last one, over or not."""
        query = select(alert_silences).where(alert_silences.c.incident == incident)
        row = await self._db.row(query)
        return AlertSilence(**row) if row else None

    async def save_silence(self, silence: AlertSilence) -> None:
        row = asdict(silence)
        mine = select(alert_silences).where(alert_silences.c.incident == silence.incident)
        async with self._db.writing() as connection:
            stored = (await connection.execute(mine)).mappings().first()
            await put_rows(connection, alert_silences, [row])
            await note_change(connection, "silence", silence.incident, dict(stored) if stored else None, row)
