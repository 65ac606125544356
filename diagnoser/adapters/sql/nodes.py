"""Nodes, what happened to them, and the breakers that bound how many may be taken out."""

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import and_, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from diagnoser.adapters.sql import codec
from diagnoser.adapters.sql.audit import note_change
from diagnoser.adapters.sql.database import Repository, insert_new, put_rows
from diagnoser.adapters.sql.tables import attempts, breakers, deltas, node_events, nodes
from diagnoser.model import BreakerState, NodeEvent
from diagnoser.model.errors import NotFound
from diagnoser.recovery.breaker import with_feedback

_CHUNK = 1_000


class NodeRepository(Repository):
    async def add_event(self, mark: NodeEvent) -> NodeEvent:
        """Store what happened to a node, with the feedback that it implies. Idempotent for an equal event."""
        async with self._db.writing() as connection:
            return await add_mark(connection, mark)

    async def marks(self, cluster: str) -> list[NodeEvent]:
        """The last event of each node that had one, by name. cluster: "" for all."""
        async with self._db.reading() as connection:
            return await find_marks(connection, cluster)

    async def history(self, cluster: str, node: str, limit: int) -> list[NodeEvent]:
        """What happened to one node, the newest first."""
        row = node_events.c
        query = select(row.body).where(row.cluster == cluster, row.node == node).order_by(row.time.desc(), row.digest)
        return await self._db.values(query.limit(limit), codec.mark_of)

    async def events(self, cluster: str, nodes: Collection[str], since: float) -> list[NodeEvent]:
        """What happened to these nodes from a time on, the oldest first."""
        row, names, found = node_events.c, sorted(nodes), list[NodeEvent]()
        async with self._db.reading() as connection:
            for start in range(0, len(names), _CHUNK):
                mine = and_(row.cluster == cluster, row.node.in_(names[start : start + _CHUNK]), row.time >= since)
                query = select(row.body).where(mine).order_by(row.time, row.node, row.digest)
                found += map(codec.mark_of, (await connection.execute(query)).scalars())
        return found

    async def set_places(self, cluster: str, places: Mapping[str, Sequence[str]]) -> None:
        """Where the nodes of a cluster stand: all of them, others stand nowhere."""
        row = nodes.c
        stored = select(row.node, row.places).where(row.cluster == cluster, row.places != "")
        given = {node: " ".join(names) for node, names in places.items()}
        async with self._db.writing() as connection:
            before = {row.node: row.places for row in await connection.execute(stored)}
            changed = [node for node in sorted({*before, *given}) if before.get(node, "") != given.get(node, "")]
            for node in changed:
                await insert_new(connection, nodes, [{"cluster": cluster, "node": node}])
                mine = and_(row.cluster == cluster, row.node == node)
                await connection.execute(update(nodes).where(mine).values(places=given.get(node, "")))
            if changed:
                await note_change(connection, "node", cluster, None, {"places": len(changed)})

    async def breakers(self) -> list[BreakerState]:
        query = select(breakers.c.body).order_by(breakers.c.scope)
        return await self._db.values(query, codec.breaker_of)

    async def trip_breaker(self, state: BreakerState) -> BreakerState:
        """Trip one by hand, whether it tripped before or not."""
        row = codec.breaker_row(state, state.scope.partition(":")[0])
        async with self._db.writing() as connection:
            before = select(breakers.c.body).where(breakers.c.scope == state.scope)
            stored = (await connection.execute(before.with_for_update())).scalar()
            await put_rows(connection, breakers, [row])
            await note_change(connection, "breaker", state.scope, codec.breaker_of(stored) if stored else None, state)
        return state

    async def reset_breaker(self, state: BreakerState) -> BreakerState:
        """Close a breaker that has tripped. Raises NotFound for one that never did."""
        mine = breakers.c.scope == state.scope
        async with self._db.writing() as connection:
            columns = select(breakers.c.cluster, breakers.c.body).where(mine)
            stored = (await connection.execute(columns.with_for_update())).first()
            if stored is None:
                raise NotFound(f"there is no breaker {state.scope!r}")
            await connection.execute(update(breakers).where(mine).values(codec.breaker_row(state, stored.cluster)))
            await note_change(connection, "breaker", state.scope, codec.breaker_of(stored.body), state)
        return state


async def add_mark(connection: AsyncConnection, mark: NodeEvent) -> NodeEvent:
    """Append the event; it becomes the node's state unless a newer one is there."""
    await insert_new(connection, nodes, [{"cluster": mark.cluster, "node": mark.node}])
    mine = (nodes.c.cluster == mark.cluster) & (nodes.c.node == mark.node)
    body = (await connection.execute(select(nodes.c.body).where(mine).with_for_update())).scalar_one()
    previous = codec.mark_of(body) if body else None
    event = with_feedback(previous, mark)
    row = codec.mark_row(event)
    await insert_new(connection, node_events, [row])
    if previous is None or previous.time <= event.time:
        await connection.execute(update(nodes).where(mine).values(body=row["body"]))
    await note_change(connection, "node", f"{mark.cluster}/{mark.node}", previous, event)
    return event


async def find_places(connection: AsyncConnection, cluster: str, node: str = "") -> dict[str, tuple[str, ...]]:
    """Where each node stands that has a place. node: only this one, "" for all of the cluster."""
    query = select(nodes.c.node, nodes.c.places).where(nodes.c.cluster == cluster, nodes.c.places != "")
    if node:
        query = query.where(nodes.c.node == node)
    return {name: tuple(words.split()) for name, words in await connection.execute(query)}


async def find_marks(connection: AsyncConnection, cluster: str) -> list[NodeEvent]:
    query = select(nodes.c.body).where(nodes.c.body != "").order_by(nodes.c.cluster, nodes.c.node)
    if cluster:
        query = query.where(nodes.c.cluster == cluster)
    return list(map(codec.mark_of, (await connection.execute(query)).scalars()))


_LOGS_AT_ONCE = 5_000


class NodeLogRepository(Repository):
    async def parts(self, logs: Sequence[str], least: int, newest: int | None = None) -> dict[str, list[bytes]]:
        """Of these logs (``model.node_log_id``) the deltas of all parts from number ``least`` on, oldest first.

        newest: at most this many deltas in all, the newest ones.
        """
        parts: dict[str, list[bytes]] = {}
        async with self._db.reading() as connection:
            for start in range(0, len(logs), _LOGS_AT_ONCE):
                mine = and_(deltas.c.job.in_(logs[start : start + _LOGS_AT_ONCE]), deltas.c.attempt >= least)
                query = select(deltas.c.job, deltas.c.data).where(mine).order_by(deltas.c.id.desc()).limit(newest)
                for row in reversed((await connection.execute(query)).all()):
                    parts.setdefault(row.job, []).append(bytes(row.data))
        return parts

    async def drop_parts(self, kind: str, below: int) -> int:
        """Drop parts with numbers under ``below``; how many. kind: ``model.NODE_LOG`` or ``model.CLEAN_RUNS``."""
        old = and_(attempts.c.job.startswith(kind, autoescape=True), attempts.c.number < below)
        return await self._db.execute(delete(attempts).where(old))
