"""Incidents: list them, acknowledge, assign, resolve and reopen them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

from fastapi import Path, Query
from pydantic import Field

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import Incident, IncidentState
from diagnoser.model.access import Credential
from diagnoser.model.errors import existing
from diagnoser.model.queries import UNRESOLVED, IncidentFilter, position_of
from diagnoser.model.sorting import INCIDENT_SORTS, LAST_SEEN, Sort
from diagnoser.recovery import incidents as rules
from diagnoser.recovery.incidents import LONGEST_MUTE
from diagnoser.web.api.params import IS_NUMBER, Name, Node, first_page, sort_field
from diagnoser.web.api.plans import Comment
from diagnoser.web.api.schemas import IncidentPage, IncidentShape
from diagnoser.web.http.access import check_every_tenant
from diagnoser.web.http.authentication import OPERATE, READ, Caller
from diagnoser.web.http.dependencies import Core, Plans
from diagnoser.web.http.problems import answers
from diagnoser.web.http.routing import ApiRouter, StrictSchema

PAGE, PAGE_LIMIT = 50, 200

router = ApiRouter("incidents")

INCIDENT_ID = r"^[0-9a-f]{1,64}$"
IncidentId = Annotated[str, Path(pattern=INCIDENT_ID, description="Id of the incident")]
Login = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Act = Callable[[Incident, str, str, float], Incident]
"""Incident, login, comment, now -> what becomes of it."""


class IncidentQuery(StrictSchema):
    """Filters; all that are given must match."""

    state: IncidentState | None = Field(None, description="By default all that are not resolved")
    node: Node | None = None
    assignee: Name = ""
    muted: bool | None = Field(None, description="Only those that are muted now, or only those that are not")
    sort: str = sort_field(INCIDENT_SORTS, LAST_SEEN)
    cursor: str = Field("", max_length=150, description="`next` of the page before")
    limit: int = Field(PAGE, ge=1, le=PAGE_LIMIT)

    @property
    def order(self) -> Sort:
        return Sort.parse(self.sort)

    def where(self, now: float) -> IncidentFilter:
        states = frozenset({self.state}) if self.state else UNRESOLVED.states
        return IncidentFilter(states, self.node or "", self.assignee, self.muted, now)


class ActBody(StrictSchema):
    """Why. Who acts is whose token it is."""

    comment: Comment = ""


class AssignBody(ActBody):
    assignee: Login | None = Field(
        None, description="A login; empty takes it from whoever has it. By default the caller"
    )


class MuteBody(ActBody):
    seconds: Annotated[float, Field(ge=0, le=LONGEST_MUTE), IS_NUMBER] = Field(
        description="For how long from now on; 0 ends it"
    )


@router.get("/incidents", dependencies=READ, summary="List incidents")
async def index(query: Annotated[IncidentQuery, Query()], core: Core) -> IncidentPage:
    """Failures of the same fingerprint, or of the same node, grouped across jobs."""
    shown, after = await list_incidents(core, query)
    return IncidentPage(
        items=[IncidentShape.from_incident(incident, core.config.base_url) for incident in shown], next=after
    )


@router.get("/incidents/{id}", dependencies=READ, responses=answers(404), summary="One incident")
async def show(id: IncidentId, core: Core) -> IncidentShape:
    """Its failures are the diagnoses of its attempts; the newest one is `diagnosis`."""
    return IncidentShape.from_incident(await find(core.store, id), core.config.base_url)


@router.post(
    "/incidents/{id}/acknowledge",
    dependencies=OPERATE,
    responses=answers(404),
    summary="Acknowledge an incident",
)
async def acknowledge(id: IncidentId, body: ActBody, core: Core, plans: Plans, caller: Caller) -> IncidentShape:
    """Say that somebody has seen it. It becomes the caller's unless it is assigned already."""
    return _shape(await change(core, plans, caller, id, rules.acknowledged, body.comment), core)


@router.post("/incidents/{id}/assign", dependencies=OPERATE, responses=answers(404), summary="Assign an incident")
async def assign(id: IncidentId, body: AssignBody, core: Core, plans: Plans, caller: Caller) -> IncidentShape:
    """To a login, by default the caller's own."""
    assignee = caller.name if body.assignee is None else body.assignee
    return _shape(await change(core, plans, caller, id, partial(rules.assigned, assignee=assignee), body.comment), core)


@router.post("/incidents/{id}/escalate", dependencies=OPERATE, responses=answers(404), summary="Escalate an incident")
async def escalate(id: IncidentId, body: ActBody, core: Core, plans: Plans, caller: Caller) -> IncidentShape:
    """It stands before all others until it is resolved, and people are alerted."""
    return _shape(await change(core, plans, caller, id, rules.escalated, body.comment), core)


@router.post("/incidents/{id}/mute", dependencies=OPERATE, responses=answers(404), summary="Mute an incident")
async def mute(id: IncidentId, body: MuteBody, core: Core, plans: Plans, caller: Caller) -> IncidentShape:
    """Nobody is alerted, and it leaves the list, until the time is over or a new kind of failure joins it."""
    return _shape(await change(core, plans, caller, id, partial(rules.muted, seconds=body.seconds), body.comment), core)


@router.post("/incidents/{id}/resolve", dependencies=OPERATE, responses=answers(404), summary="Resolve an incident")
async def resolve(id: IncidentId, body: ActBody, core: Core, plans: Plans, caller: Caller) -> IncidentShape:
    """It leaves the list. The next failure of the same kind opens it again."""
    return _shape(await change(core, plans, caller, id, rules.resolved, body.comment), core)


@router.post("/incidents/{id}/reopen", dependencies=OPERATE, responses=answers(404), summary="Reopen an incident")
async def reopen(id: IncidentId, body: ActBody, core: Core, plans: Plans, caller: Caller) -> IncidentShape:
    return _shape(await change(core, plans, caller, id, rules.reopened, body.comment), core)


async def list_incidents(core: Core, query: IncidentQuery) -> tuple[Sequence[Incident], str | None]:
    """One page and the cursor of the next one, None on the last page."""
    where = query.where(core.clock())
    incidents = await core.store.incidents.page(where, query.cursor, query.limit + 1, query.order)
    return first_page(incidents, query.limit, partial(position_of, sort=query.order))


async def find(store: SqlStore, id: str) -> Incident:
    """Raises NotFound."""
    return existing(await store.incidents.find(id), f"there is no incident {id!r}")


async def change(core: Core, plans: Plans, caller: Credential, id: str, act: Act, comment: str) -> Incident:
    """Change an incident, and alert people to one that is escalated.

    Raises NotFound, BadInput, and OutOfScope for a credential of one tenant: an incident may be of several.
    """
    await find(core.store, id)
    check_every_tenant(caller)
    now = core.clock()
    said = comment.replace("\0", "").strip()
    announce = plans.commands.planner.alert_escalation
    changed = await core.store.incidents.change(id, lambda stored: act(stored, caller.name, said, now), announce)
    plans.outbox.notify()
    return changed


def _shape(incident: Incident, core: Core) -> IncidentShape:
    return IncidentShape.from_incident(incident, core.config.base_url)
