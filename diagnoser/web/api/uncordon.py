"""Giving nodes back that the service took out: people ask for it, the agent of the cluster does it."""

from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import Path, Request
from pydantic import Field

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import NodeActor, NodeEvent, NodeEventKind, UncordonRequest, UncordonState
from diagnoser.model.access import Credential
from diagnoser.model.errors import Conflict, NotFound
from diagnoser.model.jobs import stored_cluster
from diagnoser.recovery import node_returns
from diagnoser.web.api.nodes import HISTORY, NodePath
from diagnoser.web.api.plans import ClaimBody, ClusterField, Comment
from diagnoser.web.http.access import check_whole_service, cluster_for
from diagnoser.web.http.authentication import AGENT, OPERATE, READ, Caller
from diagnoser.web.http.dependencies import Core
from diagnoser.web.http.long_poll import long_poll
from diagnoser.web.http.problems import answers
from diagnoser.web.http.routing import ApiRouter, StrictSchema

LEASE_SECONDS = 540.0
"""As long as an agent may take to check a node before it gives it back."""
OPEN_SECONDS = 600.0
"""A request that no agent took up for so long is over: by then the world may be another one."""
CLAIMED_AT_ONCE = 4
SHOWN = 20
COMPARED = 10
"""Times that a node was taken out, the newest, whose causes are compared."""

router = ApiRouter("recovery")


class UncordonBody(StrictSchema):
    """Why. Who asks is whose token it is."""

    cluster: ClusterField = ""
    comment: Comment = ""


class UncordonResultBody(StrictSchema):
    cluster: ClusterField = ""
    state: Literal["done", "refused"]
    result: Comment = Field("", description="What was done, or why nothing was")


@router.post(
    "/nodes/{node}/uncordon",
    dependencies=OPERATE,
    responses=answers(409),
    summary="Ask for a node to be given back",
)
async def ask(node: NodePath, body: UncordonBody, core: Core, caller: Caller) -> UncordonRequest:
    """Only for a node that a plan took out. The agent of its cluster checks it, and leaves out what shows a fault still
    and what somebody else cordoned since. 409 for any other node, while such a request is open, and for a node whose
    repair did not help: a person gives that back on its page, and says what was repaired."""
    return await request_uncordon(core, caller, body.cluster, node, body.comment, by_person=False)


@router.get("/nodes/{node}/uncordons", dependencies=READ, summary="Requests to give a node back")
async def index(node: NodePath, core: Core, cluster: ClusterField = "") -> list[UncordonRequest]:
    """The newest first."""
    return await core.store.node_facts.uncordons(stored_cluster(cluster), node, SHOWN)


@router.post("/uncordons/claim", dependencies=AGENT, summary="Claim requests to give nodes back")
async def claim(body: ClaimBody, request: Request, core: Core, caller: Caller) -> list[UncordonRequest]:
    """Each is handed to one agent at a time. The agent checks the node first, and refuses where it shows a fault that
    is not older than `taken_out`."""
    cluster = cluster_for(caller, body.cluster)

    async def look() -> list[UncordonRequest]:
        now, claim = core.clock(), core.store.node_facts.claim_uncordons
        return await claim(cluster, now, LEASE_SECONDS, now - OPEN_SECONDS, CLAIMED_AT_ONCE)

    return await long_poll(look, body.wait, request, caller)


@router.post(
    "/uncordons/{request_id}/result",
    status_code=204,
    dependencies=AGENT,
    response_description="Noted",
    responses=answers(404),
    summary="Report how giving a node back went",
)
async def finish(
    request_id: Annotated[str, Path(pattern=r"^[0-9A-Z]{26}$")],
    body: UncordonResultBody,
    core: Core,
    caller: Caller,
) -> None:
    """May be repeated: the first result stands. The change of the node itself is reported as any other."""
    cluster, state = cluster_for(caller, body.cluster), UncordonState(body.state)
    if not await core.store.node_facts.finish_uncordon(request_id, cluster, core.clock(), state, body.result):
        raise NotFound(f"no request of this cluster is called {request_id!r}")


async def request_uncordon(
    core: Core, caller: Credential, cluster: str, node: str, comment: str, *, by_person: bool
) -> UncordonRequest:
    """Raises OutOfScope, and Conflict for a node that is not out because of a plan. A node serves all tenants.

    by_person: somebody pressed the button on the node's page.
    """
    if caller.tenant:
        check_whole_service(caller)
    cluster, now = cluster_for(caller, cluster), core.clock()
    events = await core.store.nodes.history(cluster, node, HISTORY)
    if objection := not_ours(node, next(iter(events), None)):
        raise Conflict(objection)
    said = comment.replace("\0", "").strip()
    failed_repair = await unhelpful_repair(core.store, events)
    if failed_repair and not (by_person and said):
        raise Conflict(f"{failed_repair}: a person gives {node} back on its page, and says what was repaired")
    request = UncordonRequest(core.make_id(now), cluster, node, caller.name, now, said, taken_out=events[0].time)
    if not await core.store.node_facts.request_uncordon(request, now - OPEN_SECONDS):
        raise Conflict(f"somebody has asked already for {node} to be given back")
    return request


async def unhelpful_repair(store: SqlStore, events: Sequence[NodeEvent]) -> str:
    """Why the last repair of a node did not help; "" as far as nothing says so. events: of the node, newest first."""
    evictions = []
    for event in node_returns.evictions(events)[:COMPARED]:
        plan = await store.plans.find(event.reason.removeprefix("plan ").partition(" ")[0])
        record = await store.diagnoses.find(plan.diagnosis) if plan else None
        evictions.append((event, str(record.diagnosis.type) if record else ""))
    return node_returns.unhelpful_repair(events, evictions)


def not_ours(node: str, last: NodeEvent | None) -> str:
    """Why it is not for the service to give a node back; "" when it is. last: what last happened to it."""
    if last is None or last.kind is not NodeEventKind.CORDONED:
        return f"{node} is not cordoned, as far as its cluster told"
    if last.by is not NodeActor.DIAGNOSER:
        return f"a person took {node} out of service, and gives it back"
    return ""
