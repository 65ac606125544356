"""Parts of node logs. They are stored as attempts of a name that no job can have, and are never due."""

from collections.abc import Sequence

from sqlalchemy import and_, delete, exists, func, literal, or_, select, update

from diagnoser.adapters.sql.database import Database
from diagnoser.adapters.sql.tables import allocations, attempts, deltas
from diagnoser.model import NODE_LOG

_CHUNK = 5_000


class NodeLogRows(Database):
    """The node logs of ``ports.LogStore``."""

    async def node_parts(self, logs: Sequence[str], least: int, newest: int | None = None) -> dict[str, list[bytes]]:
        parts: dict[str, list[bytes]] = {}
        async with self.reading() as connection:
            for start in range(0, len(logs), _CHUNK):
                mine = and_(deltas.c.job.in_(logs[start : start + _CHUNK]), deltas.c.attempt >= least)
                query = select(deltas.c.job, deltas.c.data).where(mine).order_by(deltas.c.id.desc()).limit(newest)
                for row in reversed((await connection.execute(query)).all()):
                    parts.setdefault(row.job, []).append(bytes(row.data))
        return parts

    async def revisit(self, log: str, since: float, now: float) -> int:
        """Finds attempts by the nodes that the scheduler gave them, or their job where nobody told of this attempt:
        what the streams of a job are called is for the job to say. Host names there may be short or full."""
        node = log.rpartition("/")[2]
        nodes = literal(" ") + allocations.c.nodes + " "
        of_job, own = allocations.c.job == attempts.c.job, allocations.alias()
        is_allocated = (
            exists().where(own.c.job == attempts.c.job, own.c.attempt == attempts.c.number).correlate(attempts)
        )
        allocated = exists().where(
            of_job,
            or_(allocations.c.attempt == attempts.c.number, ~is_allocated),
            or_(*(nodes.contains(f" {node}{end}", autoescape=True) for end in (" ", "."))),
        )
        diagnosed = and_(attempts.c.diagnosed > 0, attempts.c.revision == attempts.c.diagnosed)
        recent = func.coalesce(attempts.c.ended, attempts.c.fatal) >= since
        is_job = attempts.c.job.not_like(f"{NODE_LOG}%")
        bump = update(attempts).where(recent, diagnosed, is_job, allocated)
        async with self.writing() as connection:
            return (await connection.execute(bump.values(revision=attempts.c.revision + 1, dirty=now))).rowcount

    async def drop_parts(self, kind: str, below: int) -> int:
        old = and_(attempts.c.job.startswith(kind, autoescape=True), attempts.c.number < below)
        async with self.writing() as connection:
            return (await connection.execute(delete(attempts).where(old))).rowcount
