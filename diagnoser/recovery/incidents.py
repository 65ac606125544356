"""Groups failures into incidents, and changes these as people say."""

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from diagnoser.model import Diagnosis, Incident, IncidentChange, IncidentState
from diagnoser.model.errors import BadInput
from diagnoser.model.taxonomy import Category
from diagnoser.recovery.plan_states import DIAGNOSER, commented

HOUR, DAY = 3_600.0, 86_400.0
LONGEST_MUTE = 30 * DAY
PLACE_SECONDS = 600.0
"""Within which failures of several nodes of one place are one incident of it."""
PLACE_NODES = 2
NODES_NAMED = 100
"""Nodes of a place that its incident names, those that failed last."""
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


def place_id(cluster: str, place: str) -> str:
    """Name the incident of a place."""
    return hashlib.sha256(f"{cluster}\0\0place\0{place}".encode("utf-8", "replace")).hexdigest()[:16]


def of_place(failure: Incident, place: str) -> Incident:
    """The failure of a node as one of the place that it stands in."""
    shared = place_id(failure.cluster, place)
    return replace(failure, id=shared, node="", place=place, nodes=(failure.node,))


def shared_place(node: str, failing: Collection[str], places: Mapping[str, Sequence[str]]) -> str:
    """Name the smallest place that a node shares with others that fail now, "" for none. A place that holds most of the
    nodes says nothing.

    places: of all nodes of the cluster that have one.
    """
    sizes = Counter(chain.from_iterable(places.values()))
    sharing = Counter(chain.from_iterable(places.get(other, ()) for other in {*failing} - {node}))
    shared = []
    for place in places.get(node, ()):
        is_part = sizes[place] <= len(places) / 2
        if is_part and sharing[place] + 1 >= PLACE_NODES:
            shared.append(place)
    return min(shared, key=lambda place: (sizes[place], place), default="")


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
    before = incident.type
    if failure.last_seen >= incident.last_seen:
        newest = {name: getattr(failure, name) for name in ("category", "type", "line", "diagnosis", "last_seen")}
        incident = replace(incident, **newest)
    nodes = tuple(dict.fromkeys((*incident.nodes, *failure.nodes)))[-NODES_NAMED:]
    incident = replace(incident, first_seen=min(incident.first_seen, failure.first_seen), nodes=nodes)
    if not is_new:
        return incident
    if incident.muted_until > failure.last_seen and failure.type is not before:
        why = f"no longer muted: a new kind of failure joined, {failure.type.value.replace('_', ' ')}"
        incident = _changed(replace(incident, muted_until=0.0), failure.last_seen, DIAGNOSER, why)
    if incident.state is not IncidentState.RESOLVED:
        return incident
    if failure.last_seen <= incident.history[-1].time:
        return incident
    return _changed(replace(incident, state=IncidentState.OPEN), failure.last_seen, DIAGNOSER, "it came back")


def acknowledged(incident: Incident, by: str, comment: str, now: float) -> Incident:
    """Somebody has seen it, and works on it unless another person does already. Raises BadInput for a resolved one."""
    _check_unresolved(incident)
    if incident.state is IncidentState.ACKNOWLEDGED:
        return incident
    seen = replace(incident, state=IncidentState.ACKNOWLEDGED, assignee=incident.assignee or by)
    return _changed(seen, now, by, comment)


def resolved(incident: Incident, by: str, comment: str, now: float) -> Incident:
    """Whoever resolves it need not say why; the next failure opens it again."""
    if incident.state is IncidentState.RESOLVED:
        return incident
    ended = replace(incident, state=IncidentState.RESOLVED, escalated=0.0, muted_until=0.0)
    return _changed(ended, now, by, comment)


def reopened(incident: Incident, by: str, comment: str, now: float) -> Incident:
    if incident.state is not IncidentState.RESOLVED:
        return incident
    return _changed(replace(incident, state=IncidentState.OPEN), now, by, comment)


def assigned(incident: Incident, by: str, comment: str, now: float, *, assignee: str) -> Incident:
    """assignee: a login; "" takes it from whoever has it. Raises BadInput for a resolved incident."""
    _check_unresolved(incident)
    if incident.assignee == assignee:
        return incident
    return _changed(replace(incident, assignee=assignee), now, by, comment)


def escalated(incident: Incident, by: str, comment: str, now: float) -> Incident:
    """It comes before all others until it is resolved, and is not muted. Raises BadInput for a resolved one."""
    _check_unresolved(incident)
    if incident.escalated:
        return incident
    raised = replace(incident, escalated=now, muted_until=0.0)
    return _changed(raised, now, by, commented("escalated", comment))


def muted(incident: Incident, by: str, comment: str, now: float, *, seconds: float) -> Incident:
    """It needs no attention for so long; 0.0 ends that. Raises BadInput for a resolved incident and for too long."""
    _check_unresolved(incident)
    if not 0 <= seconds <= LONGEST_MUTE:
        raise BadInput(f"an incident is muted for {LONGEST_MUTE / DAY:.0f} days at most")
    if not seconds and incident.muted_until <= now:
        return incident
    what = f"muted for {seconds / HOUR:.0f} h" if seconds else "no longer muted"
    quiet = replace(incident, muted_until=now + seconds if seconds else 0.0)
    return _changed(quiet, now, by, commented(what, comment))


def _check_unresolved(incident: Incident) -> None:
    """Raises BadInput."""
    if incident.state is IncidentState.RESOLVED:
        raise BadInput("the incident is resolved: reopen it first")


def _changed(incident: Incident, now: float, by: str, comment: str) -> Incident:
    """With an entry of its history for what it is now."""
    change = IncidentChange(now, incident.state, by, incident.assignee, comment)
    return replace(incident, history=(*incident.history, change)[-_KEPT:])
