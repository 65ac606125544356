"""The recovery page: the queue of plans that wait for a decision, the breaker, what was decided, dead letters."""

import asyncio
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import Depends, Query
from fastapi.responses import Response

from diagnoser.model import BreakerState, NodeEvent, Plan, PlanReason, PlanState
from diagnoser.model.access import Credential
from diagnoser.model.errors import BadInput, Conflict, NotFound, OutOfScope
from diagnoser.model.jobs import DEFAULT_CLUSTER
from diagnoser.model.queries import PlanFilter
from diagnoser.model.work import DiagnosisRecord
from diagnoser.planning.plan_service import PlanService
from diagnoser.recovery import plan_states
from diagnoser.recovery.blast_radius import BlastRadius, blast_radius, touched
from diagnoser.web.api.incidents import INCIDENT_ID
from diagnoser.web.api.nodes import HEARD_SECONDS, OUT, ClusterPath, reset_breaker, trip_breaker
from diagnoser.web.api.outbox import MessageKey, retry_message
from diagnoser.web.api.plans import PlanId, approve_plan, refuse_plan, take_plan_back
from diagnoser.web.http.authentication import may_read
from diagnoser.web.http.dependencies import Core, Plans
from diagnoser.web.http.routing import Router
from diagnoser.web.http.services import CoreServices
from diagnoser.web.pages.forms import Form, Pressed, see_other
from diagnoser.web.pages.plan_strip import why_unchanged
from diagnoser.web.pages.rendering import Drawn

QUEUE = 20
"""Waiting plans of one page."""
SHOWN = 50

Decide = Callable[[CoreServices, PlanService, Credential, str, str, str], Awaitable[Plan]]
DECISIONS: dict[str, Decide] = {"approve": approve_plan, "refuse": refuse_plan, "take_back": take_plan_back}

REASONS = {PlanReason.NEEDS_APPROVAL.value: "The policy asks for approval before it does this"}

router = Router(include_in_schema=False)

Ids = Annotated[list[str], Query(max_length=SHOWN)]


@dataclass(frozen=True, slots=True)
class Waiting:
    """One entry of the queue. record: the diagnosis that the plan follows from. why: it waits."""

    plan: Plan
    radius: BlastRadius
    record: DiagnosisRecord | None
    why: str


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Entries of the queue that are about the same nodes; an entry about none stands by itself. out: which of all nodes
    that they touch are out of service already."""

    cluster: str
    nodes: tuple[str, ...]
    entries: tuple[Waiting, ...]
    out: frozenset[str]


@router.get("/recovery", dependencies=[Depends(may_read)])
async def recovery_page(
    core: Core,
    plans: Plans,
    pages: Drawn,
    done: Ids = [],  # noqa: B006 - the framework copies it
    late: Ids = [],  # noqa: B006
    after: Annotated[str, Query(max_length=250)] = "",
) -> Response:
    """done, late: plans that the last press was about; what became of them is read anew, so that no address can say
    what is not so."""
    store, now = core.store, core.clock()
    waiting = await store.plans.page(PlanFilter(PlanState.WAITING.value), after, QUEUE + 1)
    breakers, marks = await store.nodes.breakers(), await store.nodes.marks("")
    shown = await store.plans.page(PlanFilter(), "", SHOWN)
    queue = await waiting_entries(core, waiting[:QUEUE], now)
    return pages.draw(
        "recovery.html",
        groups=node_groups(queue, nodes_out(marks)),
        next_url="/recovery?" + urlencode({"after": waiting[QUEUE - 1].id}) if len(waiting) > QUEUE else "",
        is_first=not after,
        outcomes=await outcomes_of(core, done, late, now),
        breakers=sorted(breakers, key=lambda state: (not state.tripped, state.scope)),
        scopes=_scopes(breakers, marks),
        plans=shown,
        undoable=undoable(plans, shown, now),
        dead=await store.outbox.page("dead", "", SHOWN),
    )


@router.post("/recovery/decide")
async def decide_several(form: Pressed, core: Core, plans: Plans) -> Response:
    """Approve or refuse all that are ticked, each by itself: one that changed meanwhile is told, the others go on."""
    act, ids = _decision(form.text("decision")), list(dict.fromkeys(form.texts("plan")))
    page = _page(form)
    if not ids:
        return see_other(page)
    done, late = list[str](), list[str]()
    for shown in ids[:SHOWN]:
        plan = shown.partition("~")[0]
        if await _is_done(act, core, plans, form, plan, shown):
            done.append(plan)
        else:
            late.append(plan)
    return see_other(f"{page}?{urlencode({'done': done, 'late': late}, doseq=True)}#plans")


@router.post("/plans/{id}/decide")
async def decide(id: PlanId, form: Pressed, core: Core, plans: Plans) -> Response:
    """One plan, then back to the page that it was pressed on: the diagnosis, or the queue."""
    act = _decision(form.text("decision"))
    if form.text("page") == "recovery":
        is_done = await _is_done(act, core, plans, form, id, form.text("plan"))
        return see_other("/recovery?" + urlencode({"done" if is_done else "late": id}))
    plan = await core.store.plans.find(id)
    page, late = "/recovery", f"?late={quote(id)}"
    if plan and plan.diagnosis:
        page, late = f"/diagnoses/{plan.diagnosis}", "?late=1#plan"
    try:
        await act(core, plans, form.caller, id, form.text("comment"), form.text("plan"))
    except Conflict:
        return see_other(page + late)
    return see_other(f"{page}#plan")


@router.post("/recovery/breakers/{scope}/reset")
async def reset(scope: ClusterPath, form: Pressed, core: Core) -> Response:
    await reset_breaker(core, form.caller, scope, form.text("comment"))
    return see_other("/recovery")


@router.post("/recovery/breakers/trip")
async def trip(form: Pressed, core: Core) -> Response:
    await trip_breaker(core, form.caller, form.text("scope"), form.text("comment"))
    return see_other("/recovery")


@router.post("/recovery/effects/{key}/retry")
async def retry(key: MessageKey, form: Pressed, core: Core, plans: Plans) -> Response:
    await retry_message(core, plans, form.caller, key)
    return see_other("/recovery")


def _page(form: Form) -> str:
    """The page that a button for several plans is pressed on: of an incident, or the queue."""
    incident = form.text("incident")
    return f"/incidents/{incident}" if re.fullmatch(INCIDENT_ID, incident) else "/recovery"


def _decision(name: str) -> Decide:
    if name not in DECISIONS:
        raise BadInput("the decision must be approve, refuse or take_back")
    return DECISIONS[name]


async def _is_done(act: Decide, core: Core, plans: Plans, form: Form, id: str, shown: str) -> bool:
    try:
        await act(core, plans, form.caller, id, form.text("comment"), shown)
    except (Conflict, NotFound, OutOfScope):
        return False
    return True


def node_groups(entries: Iterable[Waiting], out: Collection[tuple[str, str]]) -> list[NodeGroup]:
    """In the order of their first entries. out: (cluster, node) of nodes that are out of service."""
    groups: dict[tuple[str, ...], list[Waiting]] = defaultdict(list)
    for entry in entries:
        nodes = _about(entry.plan)
        groups[(entry.plan.cluster, *nodes) if nodes else (entry.plan.id,)].append(entry)
    found = []
    for members in groups.values():
        plan = members[0].plan
        all_nodes = set(_about(plan))
        for entry in members:
            all_nodes.update(touched(entry.plan))
        gone = frozenset(node for node in all_nodes if (plan.cluster, node) in out)
        found.append(NodeGroup(plan.cluster, _about(plan), tuple(members), gone))
    return found


def _about(plan: Plan) -> tuple[str, ...]:
    """Nodes that go, else those that are suspected."""
    return tuple(sorted(plan.nodes or plan.suspects))


def nodes_out(marks: Iterable[NodeEvent]) -> frozenset[tuple[str, str]]:
    """marks: the last event of each node."""
    return frozenset((mark.cluster, mark.node) for mark in marks if mark.kind in OUT)


async def waiting_entries(core: Core, plans: Sequence[Plan], now: float) -> list[Waiting]:
    """The one first whose time is over first."""
    by_cluster: dict[str, set[str]] = defaultdict(set)
    for plan in plans:
        by_cluster[plan.cluster].update(touched(plan))
    running = {}
    for cluster, nodes in by_cluster.items():
        running[cluster] = await core.store.node_facts.running_on(cluster, nodes, now - HEARD_SECONDS)
    records = await asyncio.gather(*(core.store.diagnoses.find(plan.diagnosis) for plan in plans))
    entries = []
    for plan, record in zip(plans, records, strict=True):
        entries.append(Waiting(plan, blast_radius(plan, running[plan.cluster]), record, _why(plan)))
    return sorted(entries, key=lambda entry: entry.plan.expires)


def _why(plan: Plan) -> str:
    """Why a person is asked: the service's own words, also after a person took a decision back."""
    for change in reversed(plan.history):
        if (change.by, change.state) == (plan_states.DIAGNOSER, PlanState.WAITING):
            return change.why
    return REASONS.get(plan.reason, "")


async def outcomes_of(core: Core, done: Iterable[str], late: Iterable[str], now: float) -> list[tuple[Plan, str]]:
    """Each plan of the last press, and why it changed nothing, "" where it did.

    done, late: ids of plans that the press changed, and came too late for.
    """
    outcomes = []
    for wanted in done:
        if plan := await core.store.plans.find(wanted):
            outcomes.append((plan, ""))
    for wanted in late:
        if plan := await core.store.plans.find(wanted):
            outcomes.append((plan, why_unchanged(plan, now)))
    return outcomes


def undoable(service: PlanService, plans: Iterable[Plan], now: float) -> set[str]:
    ids = set()
    for plan in plans:
        if plan_states.why_not_revocable(plan, now):
            continue
        if not service.commands.is_announced(plan):
            ids.add(plan.id)
    return ids


def _scopes(breakers: Iterable[BreakerState], marks: Iterable[NodeEvent]) -> list[str]:
    """Breakers that can be tripped by hand: those of the clusters and partitions that are known, and closed."""
    known = {mark.cluster for mark in marks}
    tripped = set()
    for state in breakers:
        known.add(state.scope)
        if state.tripped:
            tripped.add(state.scope)
    return sorted((known or {DEFAULT_CLUSTER}) - tripped)
