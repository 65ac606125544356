"""What one viewer may see, held in one place: every query of a narrowed engine finds only these rows.

A name in a query means the common table expression of that name before it means the table. So each query is sent with
one such expression for every table of the schema, which holds the rows that the viewer may see. Whoever writes a query
need not think of tenants, and cannot forget them; a table that nobody has described here is empty.
"""

from typing import Any

from sqlalchemy import Connection, Dialect, String, event, literal
from sqlalchemy.ext.asyncio import AsyncEngine

from diagnoser.adapters.sql.tables import metadata
from diagnoser.model import NODE_LOG
from diagnoser.model.access import Viewer
from diagnoser.model.jobs import DEFAULT_CLUSTER

_OF_JOB = "job IN (SELECT id FROM jobs)"
_OF_DIAGNOSIS = "EXISTS (SELECT 1 FROM diagnoses AS own WHERE own.id = diagnosis)"
_NONE = "1 = 0"
_ALL = "1 = 1"

_CONDITIONS = {
    **dict.fromkeys(
        (
            "attempts",
            "streams",
            "deltas",
            "archive_segments",
            "allocations",
            "events",
            "diagnoses",
            "plans",
            "incident_attempts",
            "runtime_files",
            "evidence_requests",
        ),
        _OF_JOB,
    ),
    **dict.fromkeys(("diagnosis_words", "diagnosis_nodes", "feedback", "incidents"), _OF_DIAGNOSIS),
    "node_snapshots": _NONE,  # a node's log tells of the jobs of all
    "revisions": _ALL,  # counters
    "alembic_version": _ALL,
}
"""Table -> which of its rows belong to a viewer, by those before it."""

_OF_CLUSTER = ("nodes", "node_events", "node_notes", "node_alerts", "node_requests", "breakers")
"""They belong to a cluster and to no tenant: nodes are shared."""

_FIRST = ("unplaced_streams", "jobs", "diagnoses")
"""The others read from them; the first one reads a table itself that its viewer does not see."""

_INCIDENTS = """
SELECT incident.id, incident.state, incident.node, '' AS assignee, own.last_seen, own.first_seen, own.failures,
    own.jobs, newest.category, 0.0 AS escalated, newest.id AS body
FROM {main}incident_groups AS incident
JOIN (
    SELECT incident_attempts.incident, count(*) AS failures, count(DISTINCT incident_attempts.job) AS jobs,
        max(incident_attempts.diagnosis) AS newest, max(diagnoses.created) AS last_seen,
        min(diagnoses.created) AS first_seen
    FROM incident_attempts JOIN diagnoses ON diagnoses.id = incident_attempts.diagnosis
    GROUP BY incident_attempts.incident
) AS own ON own.incident = incident.id
JOIN diagnoses AS newest ON newest.id = own.newest
"""
"""A bad node fails jobs of many tenants: their failures are one incident, of which each sees its own part. Instead of
its text, which tells of the newest failure of all, there is the id of the viewer's own newest diagnosis."""


def narrowed(engine: AsyncEngine, viewer: Viewer) -> AsyncEngine:
    """The same database for reading by this viewer. It refuses whatever is not a query."""
    own = engine.execution_options()
    # SQLite takes the name of a table within the expression of that name for the expression itself.
    main = "main." if engine.dialect.name == "sqlite" else ""
    conditions = _conditions(viewer, engine.dialect, main)
    names = dict.fromkeys((*_FIRST, *sorted({*metadata.tables, *conditions})))
    # Nothing in them comes from a request but the literals, which the driver's own rules have quoted.
    queries = {name: f"SELECT * FROM {main}{name} WHERE {conditions.get(name, _NONE)}" for name in names}  # noqa: S608
    queries["incident_groups"] = _INCIDENTS.format(main=main)
    expressions = ", ".join(f"{name} AS NOT MATERIALIZED ({query})" for name, query in queries.items())

    def narrow(
        connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool
    ) -> tuple[str, Any]:
        return _with(expressions, statement), parameters

    event.listen(own.sync_engine, "before_cursor_execute", narrow, retval=True)
    return own


def _with(expressions: str, statement: str) -> str:
    query = statement.lstrip()
    if query.startswith("WITH "):  # what the query itself calls so comes after, and reads from ours
        return f"WITH {expressions}, {query.removeprefix('WITH ')}"
    if query.startswith(("SELECT", "(")):
        return f"WITH {expressions} {query}"
    if query in ("BEGIN", "BEGIN IMMEDIATE"):
        return query
    raise RuntimeError(f"only queries are narrowed to a viewer, and this is none: {query[:40]}")


def _conditions(viewer: Viewer, dialect: Dialect, main: str) -> dict[str, str]:
    conditions = dict(_CONDITIONS)
    cluster, tenant = _literal(viewer.cluster, dialect), _literal(viewer.tenant, dialect)
    names = f"{cluster}, ''" if viewer.cluster == DEFAULT_CLUSTER else cluster
    if viewer.tenant:
        of_cluster = f" AND cluster IN ({names})" if viewer.cluster else ""
        conditions["jobs"] = f"tenant = {tenant}{of_cluster}"
        senders = f"SELECT name FROM {main}tokens WHERE tenant = {tenant}"  # noqa: S608 - quoted
        conditions["unplaced_streams"] = f"sender IN ({senders}){of_cluster}"
        return conditions
    log = f"{NODE_LOG}{viewer.cluster}/"
    own_logs = f"substr(id, 1, {len(log)}) = {_literal(log, dialect)}"
    conditions["jobs"] = f"CASE WHEN substr(id, 1, 1) = '~' THEN {own_logs} ELSE cluster IN ({names}) END"
    return conditions | dict.fromkeys((*_OF_CLUSTER, "plans", "unplaced_streams"), f"cluster IN ({names})")


def _literal(text: str, dialect: Dialect) -> str:
    return str(literal(text, String()).compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
