"""Groups failures into incidents, and changes these as people say."""

import hashlib
import re
from dataclasses import replace

from diagnoser.model import Diagnosis, Incident, IncidentChange, IncidentState
from diagnoser.model.errors import BadInput
from diagnoser.model.taxonomy import Category

SERVICE = "diagnoser"
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\b(?=[a-fA-F]*\d)[0-9a-fA-F]{8,}\b|\d+(?:[.:,]\d+)*")
"""Numbers, sizes, times, addresses and ids: what differs between two failures of one cause."""
_CHARS = 500
_KEPT = 200
"""Changes of an incident that are kept, the newest ones."""


def faulty_node(diagnosis: Diagnosis) -> str:
    """Name the node whose fault this is, as far as the verdict is sure of it; else ""."""
    if diagnosis.category is not Category.INFRASTRUCTURE:
        return ""
    if diagnosis.grounds.node_named and diagnosis.nodes:
        return diagnosis.nodes[0].node
    if diagnosis.root_cause is None:
        return ""
    return diagnosis.root_cause.node or ""


def incident_id(diagnosis: Diagnosis, cluster: str, family: str) -> str:
    """Name the failures of one incident alike. Faults of one node are one, whatever they print. Others are grouped by
    their type and the shape of their root line, and where there is no such line, by the job's family."""
    node, shape = faulty_node(diagnosis), family
    if diagnosis.root_cause:
        shape = _NUMBERS.sub("#", diagnosis.root_cause.text)
    shape = "" if node else f"{diagnosis.type}\0{shape}"
    return hashlib.sha256(f"{cluster}\0{node}\0{shape}".encode("utf-8", "replace")).hexdigest()[:16]


def new_incident(id: str, created: float, diagnosis: Diagnosis, cluster: str, family: str) -> Incident | None:
    """Make the incident that this failure begins unless there is one of the same id; None for an attempt without a
    fault.

    id, created: of the diagnosis.
    """
    if diagnosis.category is Category.NONE:
        return None
    line = diagnosis.root_cause.text[:_CHARS] if diagnosis.root_cause else ""
    return Incident(
        id=incident_id(diagnosis, cluster, family),
        cluster=cluster,
        node=faulty_node(diagnosis),
        category=diagnosis.category,
        type=diagnosis.type,
        line=line,
        diagnosis=id,
        first_seen=created,
        last_seen=created,
    )


def joined(incident: Incident, failure: Incident, *, is_new: bool) -> Incident:
    """The incident with one more failure. is_new: of an attempt that did not belong to it; one that comes after the
    incident was resolved opens it again."""
    if failure.last_seen >= incident.last_seen:
        newest = {name: getattr(failure, name) for name in ("category", "type", "line", "diagnosis", "last_seen")}
        incident = replace(incident, **newest)
    incident = replace(incident, first_seen=min(incident.first_seen, failure.first_seen))
    if not is_new:
        return incident
    if incident.state is not IncidentState.RESOLVED:
        return incident
    if failure.last_seen <= incident.history[-1].time:
        return incident
    return _changed(incident, failure.last_seen, IncidentState.OPEN, SERVICE, incident.assignee, "it came back")


def acknowledged(incident: Incident, by: str, comment: str, now: float) -> Incident:
    """Somebody has seen it, and works on it unless another person does already."""
    if incident.state is IncidentState.ACKNOWLEDGED:
        return incident
    return _changed(incident, now, IncidentState.ACKNOWLEDGED, by, incident.assignee or by, comment)


def resolved(incident: Incident, by: str, comment: str, now: float) -> Incident:
    """Whoever resolves it need not say why; the next failure opens it again."""
    if incident.state is IncidentState.RESOLVED:
        return incident
    return _changed(incident, now, IncidentState.RESOLVED, by, incident.assignee, comment)


def reopened(incident: Incident, by: str, comment: str, now: float) -> Incident:
    if incident.state is not IncidentState.RESOLVED:
        return incident
    return _changed(incident, now, IncidentState.OPEN, by, incident.assignee, comment)


def assigned(incident: Incident, by: str, comment: str, now: float, *, assignee: str) -> Incident:
    """assignee: a login; "" takes it from whoever has it. Raises BadInput for a resolved incident."""
    if incident.state is IncidentState.RESOLVED:
        raise BadInput("the incident is resolved: reopen it before somebody works on it")
    if incident.assignee == assignee:
        return incident
    return _changed(incident, now, incident.state, by, assignee, comment)


def _changed(incident: Incident, now: float, state: IncidentState, by: str, assignee: str, comment: str) -> Incident:
    change = IncidentChange(now, state, by, assignee, comment)
    return replace(incident, state=state, assignee=assignee, history=(*incident.history, change)[-_KEPT:])
