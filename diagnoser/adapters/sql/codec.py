"""Records to rows and back. A row written by an older version loads: fields it lacks take their defaults."""

import hashlib
from dataclasses import replace
from typing import Any

from sqlalchemy import RowMapping

from diagnoser.adapters.sql.statements import pick, read_record, text_of
from diagnoser.adapters.sql.words import words_of
from diagnoser.model import (
    Attempt,
    AttemptKey,
    BreakerState,
    ConfirmedFailure,
    Diagnosis,
    Event,
    EventKind,
    Feedback,
    Incident,
    Job,
    NodeEvent,
    OutboxMessage,
    Plan,
    Provenance,
    Stream,
)
from diagnoser.model.jobs import cluster_of
from diagnoser.model.logs import Cursor
from diagnoser.model.plans import OutboxRecord
from diagnoser.model.record_json import RecordJson, fields_of
from diagnoser.model.work import DiagnosisRecord
from diagnoser.recovery.retry_history import family

_JOB = RecordJson(Job)
_EVENT = RecordJson(Event)
_PLAN = RecordJson(Plan)
_MARK = RecordJson(NodeEvent)
_BREAKER = RecordJson(BreakerState)
_DIAGNOSIS = RecordJson(Diagnosis)
_FEEDBACK = RecordJson(Feedback)
_INCIDENT = RecordJson(Incident)
_CONFIRMED_FAILURE = RecordJson(ConfirmedFailure)
_RANGES = RecordJson(tuple[tuple[int, int], ...])

job_text, job_of, ranges_text = _JOB.dump, _JOB.load, _RANGES.dump
event_of, plan_of, mark_of = _EVENT.load, _PLAN.load, _MARK.load
breaker_of, feedback_of = _BREAKER.load, _FEEDBACK.load

CHECKPOINT = "checkpoint-"
"""How the identity of a checkpoint event begins. Versions without phases stored them like any other event."""
_ADDED = {
    **dict.fromkeys(("phase", "blocked_ms", "bytes", "finite", "submitted", "time_limit")),
    "just_in_time": False,
}
"""Fields that later versions added, with what they are where nothing is known."""
SEARCHED = 16_384
"""Characters of a diagnosis that the text filter looks at."""


def cursor_of(row: RowMapping) -> tuple[Stream, Cursor]:
    stream = Stream(row["source"], row["node"], row["rank"], Provenance(row["provenance"]))
    return stream, Cursor(_RANGES.load(row["covered"]), row["version"])


def event_row(key: AttemptKey, event: Event) -> dict[str, Any]:
    """``digest`` is the identity of an event: equal events are one row. So are reports of one phase of a checkpoint.

    So are the starts that one kind of sender reports: an agent that had no answer reports again, maybe with another
    time, for a time ahead of this clock becomes that of the arrival.
    """
    unset = {name for name, default in _ADDED.items() if getattr(event, name) is default}
    body = _EVENT.dump(event, unset)  # what other events do not have is no part of their identity
    digest = _digest(body)
    if event.kind is EventKind.STARTED:
        digest = start_digest(event.provenance)
    if event.kind is EventKind.CHECKPOINT:
        told = "\0".join((event.phase or "", "" if event.step is None else str(event.step), event.path))
        digest = CHECKPOINT + hashlib.sha256(told.encode("utf-8", "replace")).hexdigest()
    return {"job": key.job, "attempt": key.number, "digest": digest, "time": event.time, "body": body}


def start_digest(provenance: Provenance) -> str:
    """The identity of the start of an attempt, as one kind of sender reports it."""
    return _digest(f"{EventKind.STARTED} {provenance}")


def attempt_of(row: RowMapping, events: tuple[Event, ...], nodes: tuple[str, ...]) -> Attempt:
    return read_record(Attempt, row, key=AttemptKey(row["job"], row["number"]), events=events, nodes=nodes)


def diagnosis_row(record: DiagnosisRecord, plan: Plan | None, job: Job | None) -> dict[str, Any]:
    """job: whose attempt it is, where it is known."""
    diagnosis = record.diagnosis
    return fields_of(record, ("id", "revision", "created")) | {
        "job": record.attempt.job,
        "attempt": record.attempt.number,
        "current": True,
        "outcome": diagnosis.outcome.value,
        "category": diagnosis.category.value,
        "type": diagnosis.type.value,
        "plan": plan.key if plan else None,
        "search": "",
        "body": _DIAGNOSIS.dump(diagnosis),
        **facets_of(diagnosis, job),
    }


def facets_of(diagnosis: Diagnosis, job: Job | None) -> dict[str, str]:
    return {
        "decided_by": diagnosis.decided_by.replace("\0", ""),  # PostgreSQL cannot store it
        "cluster": cluster_of(job),
        "family": family(job) if job else "",
    }


def diagnosis_nodes(diagnosis: Diagnosis) -> list[str]:
    """The nodes that a diagnosis is found by: its suspects and the node of its root line."""
    root = diagnosis.root_cause
    names = {suspect.node for suspect in diagnosis.nodes}
    root_node = root.node if root else None
    if root_node:
        names.add(root_node)
    return sorted(names)


def record_of(row: RowMapping) -> DiagnosisRecord:
    """row: the columns of diagnoses, and ``plan_body`` (None when it has no plan)."""
    return DiagnosisRecord(
        **pick(row, ("id", "revision", "created", "current")),
        attempt=AttemptKey(row["job"], row["attempt"]),
        diagnosis=_DIAGNOSIS.load(row["body"]),
        plan=plan_of(row["plan_body"]) if row["plan_body"] else None,
    )


def plan_row(plan: Plan) -> dict[str, Any]:
    names = ("key", "job", "attempt", "id", "cluster", "family", "fingerprint", "created", "expires")
    return fields_of(plan, names) | {
        "state": plan.state.value,
        "body": _PLAN.dump(plan),
        "action": plan.action.value,
        "suspect": plan.suspects[0] if plan.suspects else None,
        "lease": plan.lease.until if plan.lease else 0.0,
    }


def mark_row(mark: NodeEvent) -> dict[str, Any]:
    """``digest`` is the identity of an event: equal events are one row."""
    body = _MARK.dump(mark)
    return fields_of(mark, ("cluster", "node", "time")) | {"digest": _digest(body), "body": body}


def breaker_row(state: BreakerState, cluster: str) -> dict[str, Any]:
    return fields_of(state, ("scope", "tripped")) | {"cluster": cluster, "body": _BREAKER.dump(state)}


def message_row(message: OutboxMessage) -> dict[str, Any]:
    row = fields_of(message, ("key", "target", "body", "created", "expires"))
    return row | {"kind": message.kind.value, "state": "pending", "due": message.created}


def message_of(row: RowMapping) -> OutboxMessage:
    return read_record(OutboxMessage, row, body=bytes(row["body"]))


def outbox_record_of(row: RowMapping) -> OutboxRecord:
    return read_record(OutboxRecord, row, message=message_of(row))


def feedback_row(feedback: Feedback) -> dict[str, Any]:
    return fields_of(feedback, ("id", "diagnosis", "created")) | {"body": _FEEDBACK.dump(feedback)}


def confirmed_failure_row(confirmed: ConfirmedFailure) -> dict[str, Any]:
    """The vectors stand apart from the text: one after another, each behind a line with its name and size."""
    return {
        "diagnosis": confirmed.diagnosis,
        "changed": confirmed.changed,
        "body": _CONFIRMED_FAILURE.dump(replace(confirmed, vectors={})),
        "vectors": b"".join(
            f"{name}\0{len(data)}\n".encode() + data for name, data in sorted(confirmed.vectors.items())
        ),
    }


def confirmed_failure_of(row: RowMapping) -> ConfirmedFailure:
    stored = _CONFIRMED_FAILURE.load(row["body"])
    return replace(stored, vectors=_vectors(bytes(row["vectors"])), tenant=text_of(row, "tenant"))


def incident_row(incident: Incident) -> dict[str, Any]:
    """All but the counts, which the database keeps."""
    row = fields_of(incident, ("id", "node", "assignee", "last_seen", "escalated"))
    body = _INCIDENT.dump(replace(incident, failures=0, jobs=0, muted_until=0.0))
    return row | {"state": incident.state.value, "body": body}


def incident_of(row: RowMapping) -> Incident:
    counted = pick(row, ("failures", "jobs", "escalated"))
    return replace(_INCIDENT.load(row["body"]), muted_until=row["muted_until"] or 0.0, **counted)


def _vectors(data: bytes) -> dict[str, bytes]:
    vectors, position = {}, 0
    while position < len(data):
        start = data.index(b"\n", position) + 1
        name, _, size = data[position : start - 1].decode().rpartition("\0")
        vectors[name], position = data[start : start + int(size)], start + int(size)
    return vectors


def words_row(record: DiagnosisRecord) -> dict[str, Any]:
    return {"diagnosis": record.id, "words": words_of(_search_text(record)[:SEARCHED])}


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def _search_text(record: DiagnosisRecord) -> str:
    diagnosis, root = record.diagnosis, record.diagnosis.root_cause
    parts = [record.attempt.job, diagnosis.type.value, diagnosis.decided_by, root.text if root else ""]
    parts += [diagnosis.mitigation, *(evidence.text for evidence in diagnosis.evidence)]
    return "\n".join(parts)
