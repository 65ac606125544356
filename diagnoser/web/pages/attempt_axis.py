"""The time axis of the attempt that a diagnosis is of."""

import asyncio
from collections.abc import Sequence

from diagnoser.logview.log_index import LogIndex
from diagnoser.model import AttemptKey, Job, Line, NodeEvent
from diagnoser.model.errors import NotFound
from diagnoser.model.jobs import cluster_of
from diagnoser.model.taxonomy import Category
from diagnoser.model.work import DiagnosisRecord
from diagnoser.web.http.dependencies import Core, Logs
from diagnoser.web.pages.excerpt import LineRole, citations
from diagnoser.web.pages.log_viewer import log_path
from diagnoser.web.pages.time_axis import AxisFacts, CitedLine, TimeAxis, time_axis
from diagnoser.wording.words import name

SUSPECTS, NODE_EVENTS = 4, 10
"""Suspected nodes whose events stand on the time axis, and how many of each."""


async def log_of(logs: Logs, key: AttemptKey) -> tuple[LogIndex | None, bool]:
    """The index of the attempt's log, None when it is not stored any more; and whether there is none yet because the
    log is large and being read. Raises Unavailable."""
    try:
        log = await logs.indexes.load_or_begin(key)
    except NotFound:
        return None, False
    if log is None:
        return None, True
    return log.index, False


async def attempt_axis(
    core: Core,
    record: DiagnosisRecord,
    job: Job | None,
    index: LogIndex | None,
    node_lines: Sequence[Line],
) -> TimeAxis | None:
    """index, node_lines: of the attempt that the diagnosis is of. None where it has no line, or is not stored any
    more."""
    if not index:
        return None
    attempt = await core.store.jobs.attempt(record.attempt)
    if attempt is None:
        return None
    facts = AxisFacts(
        timeline=index.timeline,
        attempt=attempt,
        log_path=log_path(record.attempt),
        cited=await asyncio.to_thread(_cited_lines, record, index, node_lines),
        node_lines=node_lines,
        node_events=await _node_events(core, record, job, attempt.opened),
        plan=record.plan,
        rank_nodes=job.rank_nodes if job else {},
        has_failed=record.diagnosis.category is not Category.NONE,
    )
    return await asyncio.to_thread(time_axis, facts)


async def _node_events(core: Core, record: DiagnosisRecord, job: Job | None, since: float) -> list[NodeEvent]:
    cluster = cluster_of(job)
    events: list[NodeEvent] = []
    for suspect in record.diagnosis.nodes[:SUSPECTS]:
        history = await core.store.nodes.history(cluster, suspect.node, NODE_EVENTS)
        events += [event for event in history if event.time >= since]
    return events


def _cited_lines(record: DiagnosisRecord, index: LogIndex, node_lines: Sequence[Line]) -> list[CitedLine]:
    """Those that the log of the attempt or of a node has; each line once, in the role that matters most."""
    found: dict[tuple[str, int, str], CitedLine] = {}
    path = log_path(record.attempt)
    for cite in citations(record.diagnosis):
        row, key = cite.row, (cite.source, cite.row.number, cite.row.text)
        what = name(row.note) if row.role is LineRole.SYMPTOM else row.note
        position = index.position(*key)
        own = next((line for line in node_lines if (line.stream.source, line.number, line.text) == key), None)
        if own is not None:
            found.setdefault(key, CitedLine(own.time, row.role, what, row.text, "", row.rank, is_of_node=True))
        elif position >= 0:
            held = index.row(position)
            time, url = index.timeline.time_at(position), f"{path}?at={held.id}#L{held.id}"
            found.setdefault(key, CitedLine(time, row.role, what, row.text, url, held.rank))
    return list(found.values())
