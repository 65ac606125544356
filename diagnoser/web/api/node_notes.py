"""What people note about nodes, and what monitoring said of them."""

from typing import Annotated

from pydantic import ConfigDict, Field

from diagnoser.client.service import API
from diagnoser.model import NodeAlert, NodeNote
from diagnoser.model.access import Credential
from diagnoser.model.errors import BadInput
from diagnoser.recovery.breaker import DEFAULT_CLUSTER
from diagnoser.web.api.nodes import HISTORY, NodePath
from diagnoser.web.api.plans import ClusterField
from diagnoser.web.http.access import check_whole_service, own_cluster
from diagnoser.web.http.authentication import OPERATE, READ, Caller, Provided
from diagnoser.web.http.dependencies import AppDependencies
from diagnoser.web.http.problems import answers
from diagnoser.web.http.routing import Router, Schema

NOTE_LENGTH = 2000

router = Router(prefix=API, tags=["recovery"])


class NoteBody(Schema):
    """Who writes it is whose token it is."""

    model_config = ConfigDict(extra="forbid")

    cluster: ClusterField = ""
    text: Annotated[str, Field(max_length=NOTE_LENGTH, pattern=r"\S")]


class NoteShape(Schema):
    id: str
    cluster: str
    node: str
    time: float
    by: str
    text: str


class AlertShape(Schema):
    """ended: null while it fires. Times are seconds since the epoch."""

    cluster: str
    node: str
    fingerprint: str
    name: str
    severity: str
    summary: str
    started: float
    ended: float | None
    by: str


@router.post(
    "/nodes/{node}/notes",
    dependencies=OPERATE,
    responses=answers(400, 401, 403, 503),
    summary="Write a note about a node",
)
async def add(node: NodePath, body: NoteBody, services: Provided, caller: Caller) -> NoteShape:
    """For whoever repairs it, and whoever decides about it next."""
    return _note(await write_note(services, caller, body.cluster, node, body.text))


@router.get(
    "/nodes/{node}/notes", dependencies=READ, responses=answers(400, 401, 503), summary="What people noted of a node"
)
async def notes(node: NodePath, services: Provided, cluster: ClusterField = "") -> list[NoteShape]:
    """The newest first."""
    return [_note(note) for note in await services.store.node_facts.notes(cluster or DEFAULT_CLUSTER, node, HISTORY)]


@router.get(
    "/nodes/{node}/alerts",
    dependencies=READ,
    responses=answers(400, 401, 503),
    summary="What monitoring said of a node",
)
async def alerts(node: NodePath, services: Provided, cluster: ClusterField = "") -> list[AlertShape]:
    """The newest first, as Alertmanager told."""
    return [
        _alert(alert) for alert in await services.store.node_facts.alerts(cluster or DEFAULT_CLUSTER, node, HISTORY)
    ]


async def write_note(services: AppDependencies, caller: Credential, cluster: str, node: str, text: str) -> NodeNote:
    """Raises OutOfScope, and BadInput for an empty one."""
    if caller.tenant:
        check_whole_service(caller)
    said = text.replace("\0", "").strip()
    if not said:
        raise BadInput("the note is empty")
    cluster, now = own_cluster(caller, cluster) or DEFAULT_CLUSTER, services.clock()
    note = NodeNote(services.make_id(now), cluster, node, now, caller.name, said[:NOTE_LENGTH])
    await services.store.node_facts.add_note(note)
    return note


def _note(note: NodeNote) -> NoteShape:
    return NoteShape.model_validate(note, from_attributes=True)


def _alert(alert: NodeAlert) -> AlertShape:
    return AlertShape.model_validate(alert, from_attributes=True)
