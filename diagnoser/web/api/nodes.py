"""Routes for node events and breakers, what people note about nodes, and what monitoring said of them."""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import Field, StringConstraints

from diagnoser.model import BreakerState, NodeActor, NodeEvent, NodeEventKind, NodeNote, PlanState
from diagnoser.model.access import Credential
from diagnoser.model.errors import BadInput
from diagnoser.model.jobs import stored_cluster
from diagnoser.model.queries import PlanFilter
from diagnoser.model.sorting import BY_CLUSTER, NODE_SORTS, Sort
from diagnoser.web.api.params import Node, TimeField, moment, sort_field
from diagnoser.web.api.plans import ClusterField, Comment, DecisionBody
from diagnoser.web.api.schemas import BreakerShape, NodeShape
from diagnoser.web.http.access import check_breaker, check_whole_service, cluster_for
from diagnoser.web.http.authentication import AGENT, OPERATE, READ, Caller
from diagnoser.web.http.dependencies import Core, Plans
from diagnoser.web.http.problems import answers
from diagnoser.web.http.routing import Answer, ApiRouter, StrictSchema

OUT = frozenset({NodeEventKind.CORDONED, NodeEventKind.DOWN})
_KEYS: Mapping[str, Callable[[NodeEvent], tuple[Any, ...]]] = {
    "cluster": lambda mark: (),
    "node": lambda mark: (mark.node,),
    "state": lambda mark: (mark.kind not in OUT, -mark.time),
    "time": lambda mark: (mark.time,),
}


def sorted_marks(marks: Iterable[NodeEvent], sort: Sort) -> list[NodeEvent]:
    """By state those that are out of service come first, the newest change first."""

    def key(mark: NodeEvent) -> tuple[Any, ...]:
        return (*_KEYS[sort.by](mark), mark.cluster, mark.node)

    return sorted(marks, key=key, reverse=sort.is_descending)


HISTORY = 100
"""Events of a node that are shown."""
HEARD_SECONDS = 86_400.0
"""A launch that was not heard of for longer does not count as running."""
OPEN_PLANS = 1000
"""Plans checked when a person starts to work on a node."""

NODES_PLACED = 20_000

router = ApiRouter("recovery")

PlaceName = Annotated[str, StringConstraints(pattern=r"^[a-z]{1,20}:[A-Za-z0-9_./-]{1,80}$")]

NodePath = Annotated[Node, Path(description="Name of the node")]
SCOPE = r"^[^\x00-\x1f\x7f/]{1,401}$"
ClusterPath = Annotated[str, Path(pattern=SCOPE, description="`cluster` or `cluster:partition`")]


class NewNodeEvent(StrictSchema):
    """Something that happened to a node."""

    kind: NodeEventKind
    by: NodeActor
    cluster: ClusterField = ""
    reason: Comment = ""
    time: TimeField | None = Field(None, description="Seconds since the epoch or ISO 8601; now by default")


class NodeQuery(StrictSchema):
    cluster: ClusterField = ""
    sort: str = sort_field(NODE_SORTS, BY_CLUSTER)


class ResetBody(DecisionBody):
    """Why: whoever looks next must see it."""

    comment: Annotated[str, Field(max_length=2000, pattern=r"\S")]


class PlacesBody(StrictSchema):
    """Where the nodes of a cluster stand: node -> places such as `switch:leaf-07`. A node that is not named stands
    nowhere."""

    cluster: ClusterField = ""
    places: Annotated[dict[Node, Annotated[list[PlaceName], Field(max_length=8)]], Field(max_length=NODES_PLACED)]


@router.post("/nodes/places", status_code=204, dependencies=AGENT, summary="Report where nodes stand")
async def report_places(body: PlacesBody, core: Core, caller: Caller) -> None:
    """Failures of several nodes of one place within minutes are one incident of the place."""
    await core.store.nodes.set_places(cluster_for(caller, body.cluster), body.places)


@router.post("/nodes/{node}/events", dependencies=AGENT, summary="Report an event of a node")
async def report(node: NodePath, body: NewNodeEvent, core: Core, plans: Plans, caller: Caller) -> NodeShape:
    """Acts of people are respected: plans leave such a node alone. They also count as feedback on earlier plans."""
    now = core.clock()
    mark = NodeEvent(
        cluster_for(caller, body.cluster),
        node,
        body.kind,
        body.by,
        moment(body.time, now),
        body.reason,
    )
    stored = await core.store.nodes.add_event(mark)
    if mark.by is NodeActor.PERSON and mark.kind is not NodeEventKind.DOWN:
        await _hold_plans(core, plans, mark, now)
    return NodeShape.model_validate(stored)


@router.get("/nodes", dependencies=READ, summary="List nodes with their last event")
async def index(query: Annotated[NodeQuery, Query()], core: Core) -> list[NodeShape]:
    marks = await core.store.nodes.marks(query.cluster)
    return NodeShape.list_of(sorted_marks(marks, Sort.parse(query.sort)))


@router.get("/nodes/{node}/events", dependencies=READ, summary="What happened to a node")
async def history(node: NodePath, core: Core, cluster: ClusterField = "") -> list[NodeShape]:
    """The newest first, as far as events are kept."""
    return NodeShape.list_of(await core.store.nodes.history(stored_cluster(cluster), node, HISTORY))


@router.get("/breakers", dependencies=READ, summary="List breakers")
async def breakers(core: Core) -> list[BreakerShape]:
    """While a breaker is tripped, plans that cordon nodes need approval."""
    return BreakerShape.list_of(await core.store.nodes.breakers())


@router.post("/breakers/{cluster}/reset", dependencies=OPERATE, responses=answers(404), summary="Reset a breaker")
async def reset(cluster: ClusterPath, body: ResetBody, core: Core, caller: Caller) -> BreakerShape:
    """Let plans that cordon nodes act without approval again. Needs a comment."""
    return BreakerShape.model_validate(await reset_breaker(core, caller, cluster, body.comment))


@router.post("/breakers/{cluster}/trip", dependencies=OPERATE, summary="Trip a breaker")
async def trip(cluster: ClusterPath, body: ResetBody, core: Core, caller: Caller) -> BreakerShape:
    """From now on plans that cordon nodes of this cluster or partition need approval, until it is reset. Needs a
    comment."""
    return BreakerShape.model_validate(await trip_breaker(core, caller, cluster, body.comment))


async def _hold_plans(core: Core, plans: Plans, mark: NodeEvent, now: float) -> None:
    """Plans that were decided before the person acted, and have not begun."""
    for state in (PlanState.SENT, PlanState.WAITING):
        for plan in await core.store.plans.page(PlanFilter(state.value), "", OPEN_PLANS):
            if plan.cluster == mark.cluster and mark.node in plan.nodes:
                await plans.change(plan.id, now, partial(plans.commands.hold_for_operator, mark=mark, now=now))
    plans.outbox.notify()


async def reset_breaker(core: Core, caller: Credential, scope: str, comment: str) -> BreakerState:
    """Raises NotFound, OutOfScope, and BadInput without a comment: whoever looks next must see why it is safe again."""
    check_breaker(caller, scope)
    if not comment.strip():
        raise BadInput("resetting a breaker needs a comment that says why it is safe")
    state = BreakerState(scope, False, core.clock(), comment, caller.name)
    return await core.store.nodes.reset_breaker(state)


async def trip_breaker(core: Core, caller: Credential, scope: str, comment: str) -> BreakerState:
    """Raises OutOfScope, and BadInput without a comment or for what cannot be a scope."""
    if not re.fullmatch(SCOPE, scope):
        raise BadInput("a breaker is that of a cluster, or of `cluster:partition`")
    check_breaker(caller, scope)
    if not comment.strip():
        raise BadInput("tripping a breaker needs a comment that says why")
    return await core.store.nodes.trip_breaker(BreakerState(scope, True, core.clock(), comment, caller.name))


NOTE_LENGTH = 2000


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
