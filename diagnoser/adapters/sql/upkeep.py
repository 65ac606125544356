"""Fills in what versions before 0013 did not store, a few rows a commit."""

from sqlalchemy import null, select, update

from diagnoser.adapters.sql import codec
from diagnoser.adapters.sql.database import Database
from diagnoser.adapters.sql.jobs import find_job
from diagnoser.adapters.sql.tables import IS_UNINDEXED, diagnoses, diagnosis_words


class UpkeepRows(Database):
    """The filling of ``ports.RetentionStore``."""

    async def index_earlier(self, limit: int) -> int:
        """The newest first: people look at those. Rows that another replica works on are skipped."""
        query = (
            select(diagnoses, null().label("plan_body"))
            .where(IS_UNINDEXED)
            .order_by(diagnoses.c.id.desc())
            .limit(limit)
        )
        async with self.reading() as connection:
            if (await connection.execute(query.limit(1))).first() is None:
                return 0
        async with self.writing() as connection:
            rows = (await connection.execute(query.with_for_update(skip_locked=True))).mappings().all()
            words = []
            for row in rows:
                record = codec.record_of(row)
                values = codec.facets_of(record.diagnosis, await find_job(connection, record.attempt.job))
                mine = update(diagnoses).where(diagnoses.c.id == record.id)
                await connection.execute(mine.values(search="", **values))
                words += [codec.words_row(record)] if record.current else []
            await self.insert_new(connection, diagnosis_words, words)
        return len(rows)
