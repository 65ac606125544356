"""What people and monitors say of nodes, what agents are asked to do with them, and what runs there."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from operator import attrgetter, itemgetter
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    Text,
    and_,
    cast,
    delete,
    func,
    literal,
    or_,
    select,
    true,
    union_all,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from diagnoser.adapters.sql import codec
from diagnoser.adapters.sql.agent_requests import claim_requests
from diagnoser.adapters.sql.audit import note_change
from diagnoser.adapters.sql.database import Repository, insert_new
from diagnoser.adapters.sql.statements import has_key, matches, text_of
from diagnoser.adapters.sql.tables import (
    HAS_ENDED,
    IS_UNENDED,
    allocations,
    attempts,
    diagnoses,
    jobs,
    node_alerts,
    node_notes,
    node_requests,
    nodes,
)
from diagnoser.model import AttemptKey, NodeAlert, NodeNote, NodeRun, UncordonRequest, UncordonState
from diagnoser.model.jobs import stored_cluster
from diagnoser.model.node_alerts import BY_PROMETHEUS
from diagnoser.model.record_json import RecordJson, fields_of
from diagnoser.model.taxonomy import Category, FailureType

RUNS_LOOKED_AT = 1_000
"""Launches whose nodes are looked at, the newest: what each may hold is as long as its list of nodes."""
LAUNCHES_LISTED = 5_000
"""Launches that run, and launches that ended, whose nodes are listed: the newest."""
NODES_SOUGHT = 20
"""Nodes that the database looks for in each list; of more, the lists are read."""
ALERTS_OF_A_NODE = 200
"""The newest stay: a sender whose labels never repeat fills no table."""

_TRUE = ("1", "true")
"""In a JSON text, as SQLite and as PostgreSQL show it."""
_CHUNK = 500
"""Keys of one question."""
_ALERT = RecordJson(NodeAlert)
_REQUEST = RecordJson(UncordonRequest)


async def _drop_oldest_alerts(connection: AsyncConnection, changed: Collection[tuple[str, str]]) -> None:
    """changed: (cluster, node) of the nodes that may have too many."""
    row = node_alerts.c
    for cluster, node in sorted(changed):
        mine = _of(node_alerts, cluster, node)
        oldest = select(row.started).where(mine).order_by(row.started.desc()).offset(ALERTS_OF_A_NODE).limit(1)
        await connection.execute(delete(node_alerts).where(mine, row.started <= oldest.scalar_subquery()))


class NodeFactRepository(Repository):
    async def add_note(self, note: NodeNote) -> None:
        row = fields_of(note, ("id", "cluster", "node", "time", "by", "text"))
        async with self._db.writing() as connection:
            await insert_new(connection, node_notes, [row])
            await note_change(connection, "node", f"{note.cluster}/{note.node}", None, {"note": note.text})

    async def notes(self, cluster: str, node: str, limit: int) -> list[NodeNote]:
        """The newest first."""
        query = select(node_notes).where(_of(node_notes, cluster, node)).order_by(node_notes.c.id.desc()).limit(limit)
        return await self._db.records(query, NodeNote)

    async def unknown_alerts(self, alerts: Sequence[NodeAlert]) -> list[NodeAlert]:
        """Those that were not recorded before, by node, fingerprint and start."""
        row = node_alerts.c
        keys = (row.cluster, row.node, row.fingerprint, row.started)
        wanted = list(map(_identity, alerts))
        known: set[tuple[Any, ...]] = set()
        async with self._db.reading() as connection:
            for start in range(0, len(wanted), _CHUNK):
                query = select(*keys).where(has_key(keys, wanted[start : start + _CHUNK]))
                known.update(map(tuple, await connection.execute(query)))
        by_identity = {_identity(alert): alert for alert in alerts}
        return [alert for identity, alert in by_identity.items() if identity not in known]

    async def record_alerts(self, alerts: Sequence[NodeAlert]) -> None:
        """One that is known takes the end that is told. Bounded: of each node the newest are kept.

        In one order, so that replicas never wait for each other's rows. What is known already costs no write.
        """
        new = set(map(_identity, await self.unknown_alerts(alerts)))
        changing = {_identity(alert): alert for alert in alerts if alert.ended is not None or _identity(alert) in new}
        if not changing:
            return
        async with self._db.writing() as connection:
            for identity, alert in sorted(changing.items(), key=itemgetter(0)):
                await _record_alert(connection, alert, is_new=identity in new)
            await _drop_oldest_alerts(connection, {(alert.cluster, alert.node) for alert in changing.values()})

    async def nodes_like(self, cluster: str, names: Collection[str]) -> list[str]:
        """Nodes that the cluster's agents named, whose names, short or full, are one of these."""
        row = nodes.c
        found: list[str] = []
        async with self._db.reading() as connection:
            for name in sorted(names):
                short = name.partition(".")[0]
                alike = or_(row.node.in_([name, short]), row.node.startswith(f"{short}.", autoescape=True))
                query = select(row.node).where(row.cluster == cluster, alike).order_by(row.node).limit(10)
                found += (await connection.execute(query)).scalars()
        return found

    async def allocated(self, since: float) -> dict[tuple[str, str], int]:
        """(cluster, node) of the nodes that schedulers gave the newest launches -> how many run there and were heard of
        after ``since``. What a client registers for itself does not count."""
        row = attempts.c
        launch = row.job, row.number
        heard = and_(IS_UNENDED, or_(row.last_line > since, row.opened > since))
        running = select(*launch, literal(1).label("runs")).where(heard).order_by(row.last_line.desc())
        ended = select(*launch, literal(0)).where(HAS_ENDED).order_by(row.ended.desc(), row.job.desc())
        bounded = [select(part.limit(LAUNCHES_LISTED).subquery()) for part in (running, ended)]
        newest = union_all(*bounded).cte("newest")
        of_launch = and_(allocations.c.job == newest.c.job, allocations.c.attempt == newest.c.number)
        query = select(jobs.c.cluster, allocations.c.nodes, newest.c.runs).select_from(newest)
        query = query.join(allocations, of_launch).join(jobs, jobs.c.id == newest.c.job)
        registered = cast(self._db.json_text(jobs.c.body, "registered"), Text)
        counts: Counter[tuple[str, str]] = Counter()
        async with self._db.reading() as connection:
            for cluster, names, runs in await connection.execute(query.where(registered.in_(_TRUE))):
                for node in names.split():
                    counts[stored_cluster(cluster), node] += runs
        return counts

    async def alerts(self, cluster: str, node: str, limit: int) -> list[NodeAlert]:
        """The newest first."""
        row = node_alerts.c
        query = select(row.body).where(_of(node_alerts, cluster, node)).order_by(row.started.desc(), row.fingerprint)
        return await self._db.values(query.limit(limit), _ALERT.load)

    async def metrics(self, cluster: str, nodes: Sequence[str], since: float, until: float) -> list[NodeAlert]:
        """What the service has read from metrics of these nodes in a span of time, in order of time."""
        row, found = node_alerts.c, list[NodeAlert]()
        of_metrics = and_(row.cluster == cluster, row.fingerprint.startswith(f"{BY_PROMETHEUS}:", autoescape=True))
        in_span = and_(row.started >= since, row.started <= until)
        for start in range(0, len(nodes), _CHUNK):
            query = select(row.body).where(of_metrics, in_span, row.node.in_(nodes[start : start + _CHUNK]))
            found += await self._db.values(query, _ALERT.load)
        return sorted(found, key=attrgetter("started", "node", "fingerprint"))

    async def request_uncordon(self, request: UncordonRequest, oldest: float) -> bool:
        """False when one for this node is open that was made after ``oldest``."""
        row = node_requests.c
        is_open = and_(row.state == UncordonState.OPEN.value, row.created >= oldest)
        async with self._db.writing() as connection:
            if self._db.dialect != "sqlite":  # two people at once: the second waits, and sees what the first has asked
                key = f"uncordon {request.cluster}/{request.node}"
                await connection.execute(select(func.pg_advisory_xact_lock(func.hashtext(key))))
            mine = _of(node_requests, request.cluster, request.node)
            if (await connection.execute(select(row.id).where(mine, is_open))).first():
                return False
            await insert_new(connection, node_requests, [_request_row(request)])
            await note_change(connection, "uncordon request", request.id, None, request)
        return True

    async def claim_uncordons(
        self, cluster: str, now: float, lease: float, oldest: float, limit: int
    ) -> list[UncordonRequest]:
        """Open requests of a cluster that no agent holds; an agent that dies loses them after ``lease`` seconds. Those
        made before ``oldest`` are over."""
        row = node_requests.c
        waiting = and_(
            row.cluster == cluster,
            row.state == UncordonState.OPEN.value,
            row.created >= oldest,
            row.lease <= now,
        )
        return await claim_requests(self._db, node_requests, waiting, now + lease, limit, _REQUEST.load)

    async def finish_uncordon(self, id: str, cluster: str, now: float, state: UncordonState, result: str) -> bool:
        """False when it is not known, or of another cluster. What ended once stays as it is."""
        row = node_requests.c
        mine = and_(row.id == id, row.cluster == cluster)
        async with self._db.writing() as connection:
            body = (await connection.execute(select(row.body).where(mine).with_for_update())).scalar()
            if body is None:
                return False
            request = _REQUEST.load(body)
            if request.state is UncordonState.OPEN:
                ended = replace(request, state=state, result=result, ended=now)
                await connection.execute(update(node_requests).where(mine).values(_request_row(ended)))
                await note_change(connection, "uncordon request", id, request, ended)
        return True

    async def uncordons(self, cluster: str, node: str, limit: int) -> list[UncordonRequest]:
        """The newest first."""
        row = node_requests.c
        query = select(row.body).where(_of(node_requests, cluster, node)).order_by(row.id.desc()).limit(limit)
        return await self._db.values(query, _REQUEST.load)

    async def running_on(self, cluster: str, names: Collection[str], since: float) -> list[NodeRun]:
        """Launches that the scheduler gave one of the nodes, that have not ended and were heard of after ``since``; the
        last heard first. Looks at a bounded number of them."""
        row = attempts.c
        heard = or_(row.last_line > since, row.opened > since)
        newest = select(row.job, row.number).where(IS_UNENDED, heard).order_by(row.last_line.desc())
        return await self._runs(newest, cluster, frozenset(names), RUNS_LOOKED_AT) if names else []

    async def ran_on(self, cluster: str, node: str, limit: int) -> list[NodeRun]:
        """Launches that ended and that the scheduler gave the node, the last first. Looks at a bounded number."""
        row = attempts.c
        newest = select(row.job, row.number).where(HAS_ENDED).order_by(row.ended.desc(), row.job.desc())
        return await self._runs(newest, cluster, frozenset((node,)), limit)

    async def _runs(self, newest: Select[Any], cluster: str, sought: frozenset[str], limit: int) -> list[NodeRun]:
        """Whose nodes are among ``sought``. A list of nodes has no index of its own: it would be as large as all lists
        together, and the question is asked of the newest launches only."""
        looked_at = newest.limit(RUNS_LOOKED_AT).cte("looked_at").prefix_with("MATERIALIZED")
        row, verdict = attempts.c, diagnoses.c
        of_attempt = and_(row.job == looked_at.c.job, row.number == looked_at.c.number)
        listed = " " + allocations.c.nodes + " "
        named = or_(*(listed.contains(f" {node} ", autoescape=True) for node in sorted(sought)))
        query = (
            select(row.job, row.number, row.opened, row.ended, allocations.c.nodes, jobs.c.body)
            .select_from(looked_at)
            .join(attempts, of_attempt)
            .join(allocations, and_(allocations.c.job == row.job, allocations.c.attempt == row.number))
            .join(jobs, jobs.c.id == row.job)
            .where(named if len(sought) <= NODES_SOUGHT else true())
        )
        of_run = and_(verdict.job == row.job, verdict.attempt == row.number, verdict.current)
        columns = (verdict.id.label("diagnosis"), verdict.category, verdict.type)
        query = query.add_columns(*columns).outerjoin(diagnoses, of_run)
        query = query.order_by(func.coalesce(row.ended, row.last_line).desc(), row.job.desc())
        async with self._db.reading() as connection:
            rows = (await connection.execute(query)).mappings().all()
        runs = []
        for found in rows:
            job, run = codec.job_of(found["body"]), found["nodes"].split()
            if stored_cluster(job.cluster) == cluster and sought.intersection(run):
                runs.append(
                    NodeRun(
                        AttemptKey(found["job"], found["number"]),
                        tuple(run),
                        found["opened"],
                        found["ended"],
                        job.tenant,
                        text_of(found, "diagnosis"),
                        Category(found["category"]) if found["diagnosis"] else None,
                        FailureType(found["type"]) if found["diagnosis"] else None,
                    )
                )
        return runs[:limit]


async def _record_alert(connection: AsyncConnection, alert: NodeAlert, *, is_new: bool) -> None:
    """is_new: as far as was known before; another replica may have been faster."""
    changed = is_new and await insert_new(connection, node_alerts, [_alert_row(alert)])
    if not changed and alert.ended is not None:
        mine = matches(node_alerts, _key(alert))
        is_other = node_alerts.c.ended.is_distinct_from(alert.ended)
        end = update(node_alerts).where(mine, is_other).values(ended=alert.ended, body=_alert_row(alert)["body"])
        changed = (await connection.execute(end)).rowcount
    if changed:
        await note_change(connection, "node", f"{alert.cluster}/{alert.node}", None, {"alert": alert})


def _of(table: Any, cluster: str, node: str) -> ColumnElement[bool]:
    return and_(table.c.cluster == cluster, table.c.node == node)


def _identity(alert: NodeAlert) -> tuple[str, str, str, float]:
    return alert.cluster, alert.node, alert.fingerprint, alert.started


def _key(alert: NodeAlert) -> dict[str, Any]:
    return dict(zip(("cluster", "node", "fingerprint", "started"), _identity(alert), strict=True))


def _alert_row(alert: NodeAlert) -> dict[str, Any]:
    rest = {"ended": alert.ended, "received": alert.received, "body": _ALERT.dump(alert)}
    return _key(alert) | rest


def _request_row(request: UncordonRequest) -> dict[str, Any]:
    row = fields_of(request, ("id", "cluster", "node", "created"))
    return row | {"state": request.state.value, "lease": 0.0, "body": _REQUEST.dump(request)}
