"""Parts of node logs. They are stored as attempts of a name that no job can have, and are never due."""

from collections.abc import Sequence

from sqlalchemy import and_, delete, select

from diagnoser.adapters.sql.database import Repository
from diagnoser.adapters.sql.tables import attempts, deltas

_CHUNK = 5_000


class NodeLogRepository(Repository):
    async def parts(self, logs: Sequence[str], least: int, newest: int | None = None) -> dict[str, list[bytes]]:
        """Of these logs (``model.node_log_id``) the deltas of all parts from number ``least`` on, oldest first.

        newest: at most this many deltas in all, the newest ones.
        """
        parts: dict[str, list[bytes]] = {}
        async with self._db.reading() as connection:
            for start in range(0, len(logs), _CHUNK):
                mine = and_(deltas.c.job.in_(logs[start : start + _CHUNK]), deltas.c.attempt >= least)
                query = select(deltas.c.job, deltas.c.data).where(mine).order_by(deltas.c.id.desc()).limit(newest)
                for row in reversed((await connection.execute(query)).all()):
                    parts.setdefault(row.job, []).append(bytes(row.data))
        return parts

    async def drop_parts(self, kind: str, below: int) -> int:
        """Drop parts with numbers under ``below``; how many. kind: ``model.NODE_LOG`` or ``model.CLEAN_RUNS``."""
        old = and_(attempts.c.job.startswith(kind, autoescape=True), attempts.c.number < below)
        return await self._db.execute(delete(attempts).where(old))
