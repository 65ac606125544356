"""What people note about nodes, and what monitoring said of them."""

from typing import Annotated

from pydantic import Field

from diagnoser.model import NodeNote
from diagnoser.model.access import Credential
from diagnoser.model.errors import BadInput
from diagnoser.recovery.breaker import stored_cluster
from diagnoser.web.api.nodes import HISTORY, NodePath
from diagnoser.web.api.plans import ClusterField
from diagnoser.web.http.access import check_whole_service, cluster_for
from diagnoser.web.http.authentication import OPERATE, READ, Caller
from diagnoser.web.http.dependencies import Core
from diagnoser.web.http.routing import Answer, ApiRouter, StrictSchema

NOTE_LENGTH = 2000

router = ApiRouter("recovery")


class NoteBody(StrictSchema):
    """Who writes it is whose token it is."""

    cluster: ClusterField = ""
    text: Annotated[str, Field(max_length=NOTE_LENGTH, pattern=r"\S")]


class AlertShape(Answer):
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


@router.post("/nodes/{node}/notes", dependencies=OPERATE, summary="Write a note about a node")
async def add(node: NodePath, body: NoteBody, core: Core, caller: Caller) -> NodeNote:
    """For whoever repairs it, and whoever decides about it next."""
    return await write_note(core, caller, body.cluster, node, body.text)


@router.get("/nodes/{node}/notes", dependencies=READ, summary="What people noted of a node")
async def notes(node: NodePath, core: Core, cluster: ClusterField = "") -> list[NodeNote]:
    """The newest first."""
    return await core.store.node_facts.notes(stored_cluster(cluster), node, HISTORY)


@router.get("/nodes/{node}/alerts", dependencies=READ, summary="What monitoring said of a node")
async def alerts(node: NodePath, core: Core, cluster: ClusterField = "") -> list[AlertShape]:
    """The newest first, as Alertmanager told."""
    return AlertShape.list_of(await core.store.node_facts.alerts(stored_cluster(cluster), node, HISTORY))


async def write_note(core: Core, caller: Credential, cluster: str, node: str, text: str) -> NodeNote:
    """Raises OutOfScope, and BadInput for an empty one."""
    if caller.tenant:
        check_whole_service(caller)
    said = text.replace("\0", "").strip()
    if not said:
        raise BadInput("the note is empty")
    cluster, now = cluster_for(caller, cluster), core.clock()
    note = NodeNote(core.make_id(now), cluster, node, now, caller.name, said[:NOTE_LENGTH])
    await core.store.node_facts.add_note(note)
    return note
