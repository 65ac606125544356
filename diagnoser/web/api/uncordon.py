"""Giving nodes back that the service took out: people ask for it, the agent of the cluster does it."""

from typing import Annotated, Literal

from fastapi import Path, Request
from pydantic import Field

from diagnoser.client.service import API
from diagnoser.model import NodeActor, NodeEvent, NodeEventKind, UncordonRequest, UncordonState
from diagnoser.model.access import Credential
from diagnoser.model.errors import Conflict, NotFound
from diagnoser.recovery.breaker import DEFAULT_CLUSTER
from diagnoser.web.api.nodes import NodePath
from diagnoser.web.api.params import IS_NUMBER
from diagnoser.web.api.plans import ClusterField, Comment
from diagnoser.web.http.access import check_whole_service, own_cluster
from diagnoser.web.http.authentication import AGENT, OPERATE, READ, Caller
from diagnoser.web.http.dependencies import Core
from diagnoser.web.http.long_poll import WAIT_LIMIT, long_poll
from diagnoser.web.http.problems import CHANGE_ERRORS, CLAIM_ERRORS, LIST_ERRORS, answers
from diagnoser.web.http.routing import Answer, Router, StrictSchema

LEASE_SECONDS = 60.0
OPEN_SECONDS = 600.0
"""A request that no agent took up for so long is over: by then the world may be another one."""
CLAIMED_AT_ONCE = 16
SHOWN = 20

router = Router(prefix=API, tags=["recovery"])


class UncordonBody(StrictSchema):
    """Why. Who asks is whose token it is."""

    cluster: ClusterField = ""
    comment: Comment = ""


class UncordonShape(Answer):
    """result: what the agent said; empty while the request is open. Times are seconds since the epoch."""

    id: str
    cluster: str
    node: str
    by: str
    comment: str
    created: float
    state: UncordonState
    result: str
    ended: float


class UncordonClaimBody(StrictSchema):
    cluster: ClusterField = ""
    wait: Annotated[float, Field(ge=0, le=WAIT_LIMIT), IS_NUMBER] = Field(
        0.0, description="Seconds to wait for a request (long poll)"
    )


class UncordonResultBody(StrictSchema):
    cluster: ClusterField = ""
    state: Literal["done", "refused"]
    result: Comment = Field("", description="What was done, or why nothing was")


@router.post(
    "/nodes/{node}/uncordon",
    dependencies=OPERATE,
    responses=answers(400, 401, 403, 409, 503),
    summary="Ask for a node to be given back",
)
async def ask(node: NodePath, body: UncordonBody, core: Core, caller: Caller) -> UncordonShape:
    """Only for a node that a plan took out. The agent of its cluster looks again, and leaves what somebody else
    cordoned since. 409 for any other node, and while such a request is open."""
    return UncordonShape.model_validate(await request_uncordon(core, caller, body.cluster, node, body.comment))


@router.get("/nodes/{node}/uncordons", dependencies=READ, responses=LIST_ERRORS, summary="Requests to give a node back")
async def index(node: NodePath, core: Core, cluster: ClusterField = "") -> list[UncordonShape]:
    """The newest first."""
    return [
        UncordonShape.model_validate(asked)
        for asked in await core.store.node_facts.uncordons(cluster or DEFAULT_CLUSTER, node, SHOWN)
    ]


@router.post(
    "/uncordons/claim",
    dependencies=AGENT,
    responses=CLAIM_ERRORS,
    summary="Claim requests to give nodes back",
)
async def claim(body: UncordonClaimBody, request: Request, core: Core, caller: Caller) -> list[UncordonShape]:
    """Each is handed to one agent at a time, again when its lease of a minute ends."""
    cluster = own_cluster(caller, body.cluster) or DEFAULT_CLUSTER

    async def look() -> list[UncordonRequest] | None:
        now, claim = core.clock(), core.store.node_facts.claim_uncordons
        return await claim(cluster, now, LEASE_SECONDS, now - OPEN_SECONDS, CLAIMED_AT_ONCE) or None

    return [UncordonShape.model_validate(asked) for asked in await long_poll(look, body.wait, request, caller) or ()]


@router.post(
    "/uncordons/{request_id}/result",
    status_code=204,
    dependencies=AGENT,
    responses={204: {"description": "Noted"}, **CHANGE_ERRORS},
    summary="Report how giving a node back went",
)
async def finish(
    request_id: Annotated[str, Path(pattern=r"^[0-9A-Z]{26}$")],
    body: UncordonResultBody,
    core: Core,
    caller: Caller,
) -> None:
    """May be repeated: the first result stands. The change of the node itself is reported as any other."""
    cluster, state = own_cluster(caller, body.cluster) or DEFAULT_CLUSTER, UncordonState(body.state)
    result = body.result.replace("\0", "")
    if not await core.store.node_facts.finish_uncordon(request_id, cluster, core.clock(), state, result):
        raise NotFound(f"no request of this cluster is called {request_id!r}")


async def request_uncordon(core: Core, caller: Credential, cluster: str, node: str, comment: str) -> UncordonRequest:
    """Raises OutOfScope, and Conflict for a node that is not out because of a plan. A node serves all tenants."""
    if caller.tenant:
        check_whole_service(caller)
    cluster, now = own_cluster(caller, cluster) or DEFAULT_CLUSTER, core.clock()
    last = await core.store.nodes.history(cluster, node, 1)
    if refusal := not_ours(node, last[0] if last else None):
        raise Conflict(refusal)
    said = comment.replace("\0", "").strip()
    request = UncordonRequest(core.make_id(now), cluster, node, caller.name, now, said)
    if not await core.store.node_facts.request_uncordon(request, now - OPEN_SECONDS):
        raise Conflict(f"somebody has asked already for {node} to be given back")
    return request


def not_ours(node: str, last: NodeEvent | None) -> str:
    """Why it is not for the service to give a node back; "" when it is. last: what last happened to it."""
    if last is None or last.kind is not NodeEventKind.CORDONED:
        return f"{node} is not cordoned, as far as its cluster told"
    if last.by is not NodeActor.DIAGNOSER:
        return f"a person took {node} out of service, and gives it back"
    return ""
