"""The first page, and the page of one incident: what is wrong now, who works on it, and the buttons to say so."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any
from urllib.parse import urlencode

from fastapi import Depends, Request
from fastapi.responses import Response

from diagnoser.model import Incident, IncidentState, Plan, PlanState
from diagnoser.model.access import Credential, Scope
from diagnoser.model.errors import BadInput
from diagnoser.model.queries import PlanFilter
from diagnoser.model.sorting import BY_COST, INCIDENT_SORTS, LAST_SEEN
from diagnoser.model.views import ListName
from diagnoser.model.work import DiagnosisRecord
from diagnoser.recovery import incidents as rules
from diagnoser.recovery.plan_states import ACTING
from diagnoser.recovery.priority import RankedIncident, by_cost, is_one_off
from diagnoser.web.api.health import PartHealth, Readiness, check_health
from diagnoser.web.api.incidents import Act, IncidentId, IncidentQuery, change, find, list_incidents
from diagnoser.web.api.params import first_page, sort_field
from diagnoser.web.http.authentication import Caller, may_read
from diagnoser.web.http.dependencies import Core, Health, Live, Logs, Plans
from diagnoser.web.http.routing import Router
from diagnoser.web.pages.attempt_axis import attempt_axis, log_of
from diagnoser.web.pages.column_order import ColumnOrder
from diagnoser.web.pages.forms import Form, Pressed, see_other
from diagnoser.web.pages.log_viewer import log_path
from diagnoser.web.pages.plan_strip import plan_strip
from diagnoser.web.pages.recovery import (
    QUEUE,
    Ids,
    node_groups,
    nodes_out,
    outcomes_of,
    undoable,
    waiting_entries,
)
from diagnoser.web.pages.rendering import Drawn, page_query
from diagnoser.web.pages.views import list_url, views_of

CANDIDATES, RUNS = 50, 300
"""Incidents of each kind, and their failures of the last day, among which those that cost most are sought."""
COUNTED = 100
"""Waiting plans that are counted; more are shown as so many or more."""
DAY = 86_400.0
STRIPS = 10
"""Plans of one incident whose stages are shown."""
LOGIN_LENGTH = 200
FAILURES = 50
"""Failures of one incident on its page."""
ACTS: dict[str, Act] = {
    "acknowledge": rules.acknowledged,
    "escalate": rules.escalated,
    "resolve": rules.resolved,
    "reopen": rules.reopened,
}
MUTES = {"1 h": 3_600.0, "4 h": 14_400.0, "1 day": DAY, "7 days": 7 * DAY}
"""For how long an incident can be muted by a button."""

router = Router(include_in_schema=False)


class NowQuery(IncidentQuery):
    """The list on the first page. Muted ones have a tab of their own."""

    muted: bool | None = False
    sort: str = sort_field((*INCIDENT_SORTS, BY_COST.by), BY_COST)


@dataclass(frozen=True, slots=True)
class IncidentList:
    """rows: in their order. one_offs: script errors that happened once, which fold into one line, of ``users`` users.
    after: the cursor of the next page, None on the last one. is_by_cost: whether the rows say why they stand there.
    """

    rows: Sequence[RankedIncident]
    one_offs: Sequence[RankedIncident] = ()
    users: int = 0
    after: str | None = None
    is_by_cost: bool = False


@router.get("/", dependencies=[Depends(may_read)])
async def now_page(request: Request, core: Core, live: Live, health: Health, pages: Drawn, caller: Caller) -> Response:
    """Tiles, and the incidents; resolved ones when asked for."""
    query = page_query(NowQuery, request)
    listed, now = await _incident_list(core, query), await _situation(core, health)
    chosen = query.model_dump(mode="json", exclude={"cursor", "limit", "sort"}, exclude_defaults=True)
    order = ColumnOrder("/", chosen, query.order, BY_COST)
    # The API and downloads, which know no cost, list the same incidents by time.
    by_time = {"sort"} if query.order.by == BY_COST.by else set()
    listed_query = IncidentQuery(**query.model_dump(exclude={"cursor", "limit"} | by_time))
    return pages.draw(
        "now.html",
        listed=listed,
        situation=now,
        trend=await live.trends.current(),
        blind_spots=await request.app.state.vitals.blind_spots() if caller.viewer.sees_all else (),
        query=query,
        is_first=not query.cursor,
        order=order,
        next_url=order.page(listed.after),
        base_url=core.config.url_for(request),
        saved=await views_of(core, ListName.INCIDENTS, order.chosen, listed_query),
    )


@router.get("/incidents/{id}", dependencies=[Depends(may_read)])
async def incident_page(
    id: IncidentId,
    core: Core,
    logs: Logs,
    plans: Plans,
    pages: Drawn,
    caller: Caller,
    after: str = "",
    done: Ids = [],  # noqa: B006 - the framework copies it
    late: Ids = [],  # noqa: B006
) -> Response:
    """done, late: plans that the last press was about, as on the recovery page."""
    incident, now = await find(core.store, id), core.clock()
    records = await core.store.incidents.failures(id, after, FAILURES + 1)
    shown, following = first_page(records, FAILURES, attrgetter("id"))
    newest = shown[0] if shown and not after else None
    runs = await core.store.diagnoses.runs_of_incidents([id], now - DAY, RUNS)
    (rank,) = by_cost([incident], runs, now)
    plans_by_id: dict[str, Plan] = {}
    for record in shown:
        if record.plan:
            plans_by_id[record.plan.id] = record.plan
    of_failures = list(plans_by_id.values())
    return pages.draw(
        "incident.html",
        incident=incident,
        rank=rank,
        people=await _people(core, caller),
        mutes=list(MUTES),
        outcomes=await outcomes_of(core, done, late, now),
        undoable=undoable(plans, of_failures, now),
        records=shown,
        next_url=f"/incidents/{id}?{urlencode({'after': following})}" if following else "",
        is_first=not after,
        **await _plans_shown(core, logs, incident, of_failures, now),
        **await _newest_shown(core, logs, newest),
    )


async def _plans_shown(core: Core, logs: Logs, incident: Incident, plans: Sequence[Plan], now: float) -> dict[str, Any]:
    """Plans that wait for a person, grouped by their nodes, and how far those are that somebody acts on."""
    waiting = [plan for plan in plans if plan.state is PlanState.WAITING]
    queue = await waiting_entries(core, waiting[:QUEUE], now)
    marks = await core.store.nodes.marks(incident.cluster) if queue else ()
    others = [plan for plan in plans if plan.state in ACTING]
    strips = [(plan, await plan_strip(core, logs, plan)) for plan in others[:STRIPS]]
    return {"groups": node_groups(queue, nodes_out(marks)), "strips": strips}


async def _newest_shown(core: Core, logs: Logs, newest: DiagnosisRecord | None) -> dict[str, Any]:
    """The newest failure with its time axis, on the first page of the failures; the others begin with an older one.
    There is no axis yet while the log is large and being read."""
    if newest is None:
        return {"newest": None, "kept_nodes": [], "axis": None, "is_reading": False, "log_path": ""}
    (index, is_reading), job, node_lines = await asyncio.gather(
        log_of(logs, newest.attempt), core.store.jobs.find(newest.attempt.job), logs.context.node_lines(newest)
    )
    return {
        "newest": newest,
        "kept_nodes": await core.store.evidence.nodes_with_snapshots(newest.attempt),
        "axis": await attempt_axis(core, newest, job, index, node_lines),
        "is_reading": is_reading,
        "log_path": log_path(newest.attempt),
    }


@router.post("/incidents/decide")
async def decide_on_several(form: Pressed, core: Core, plans: Plans) -> Response:
    """Acknowledge or resolve those that are selected, then show the list as it was."""
    act = _act(form)
    for chosen in dict.fromkeys(form.texts("incident")):
        await change(core, plans, form.caller, chosen, act, form.text("comment"))
    return see_other(list_url(ListName.INCIDENTS, form))


@router.post("/incidents/{id}/decide")
async def decide(id: IncidentId, form: Pressed, core: Core, plans: Plans) -> Response:
    """One press, then back to the page it was made on."""
    await change(core, plans, form.caller, id, _act(form), form.text("comment"))
    return see_other("/" if form.text("page") == "now" else f"/incidents/{id}")


def _act(form: Form) -> Act:
    """Raises BadInput."""
    decision = form.text("decision")
    if decision == "assign":
        return partial(rules.assigned, assignee=form.text("assignee")[:LOGIN_LENGTH] or form.caller.name)
    if decision == "unassign":
        return partial(rules.assigned, assignee="")
    if decision == "mute":
        if form.text("for") not in MUTES:
            raise BadInput(f"mute for one of: {', '.join(MUTES)}")
        return partial(rules.muted, seconds=MUTES[form.text("for")])
    if decision == "unmute":
        return partial(rules.muted, seconds=0.0)
    if decision not in ACTS:
        raise BadInput(f"the decision must be assign, unassign, mute, unmute, {', '.join(ACTS)}")
    return ACTS[decision]


async def _incident_list(core: Core, query: NowQuery) -> IncidentList:
    """By cost unless something else is asked for; resolved ones, which cost nothing any more, by time."""
    if query.order.by != BY_COST.by:
        return await _incidents_in_order(core, query, query.sort)
    if query.state is IncidentState.RESOLVED:
        return await _incidents_in_order(core, query, str(LAST_SEEN))
    return await _incidents_by_cost(core, query)


async def _incidents_in_order(core: Core, query: NowQuery, sort: str) -> IncidentList:
    found, after = await list_incidents(core, query.model_copy(update={"sort": sort}))
    return IncidentList([RankedIncident(incident, ()) for incident in found], after=after)


async def _incidents_by_cost(core: Core, query: NowQuery) -> IncidentList:
    """One page. The first one folds script errors that happened once into a line, where there are several."""
    store, now = core.store, core.clock()
    costly = await store.incidents.costly(query.where(now), CANDIDATES)
    runs = await store.diagnoses.runs_of_incidents([incident.id for incident in costly], now - DAY, RUNS)
    ranked = by_cost(costly, runs, now)
    one_offs, others = list[RankedIncident](), list[RankedIncident]()
    for row in ranked:
        (one_offs if is_one_off(row.incident) else others).append(row)
    if len(one_offs) > 1:
        ranked = others
    begin = _place(query.cursor)
    end = begin + query.limit
    after = str(end) if end < len(ranked) else None
    if begin or len(one_offs) < 2:
        return IncidentList(ranked[begin:end], after=after, is_by_cost=True)
    owners = await store.incidents.owners([row.incident.id for row in one_offs])
    return IncidentList(ranked[:end], one_offs, len(set(owners.values()) - {""}), after, is_by_cost=True)


def _place(cursor: str) -> int:
    """How many rows come before the page. Raises BadInput."""
    if not cursor:
        return 0
    if not re.fullmatch(r"\d{1,6}", cursor):
        raise BadInput(f"cursor: {cursor!r} is not the `next` of a page of incidents by cost")
    return int(cursor)


async def _people(core: Core, caller: Credential) -> list[str]:
    """Whom an incident may be given, for those who see everybody."""
    if not caller.viewer.sees_all:
        return []
    users = await core.store.users.list_all()
    return [user.name for user in users if user.disabled is None and user.role.scope.covers(Scope.OPERATE)]


def _ingest(readiness: Readiness) -> PartHealth:
    """Whether lines are taken in: the first of its parts that fails, else that all work."""
    for name, part in readiness.parts.items():
        if name != "model" and not part.ready:
            return part
    return PartHealth(ready=True, detail="taking lines")


async def _situation(core: Core, health: Health) -> dict[str, Any]:
    """What the tiles show. silent: jobs that fell silent within the last day. model: None where none is configured.
    without_fault: attempts that ended without a fault within the last day, of which a thousand are counted."""
    store, now = core.store, core.clock()
    silent_since = now - core.config.silent_seconds
    counts, running, silent = await asyncio.gather(
        store.incidents.count_unresolved(now),
        store.attempts.count_running(silent_since),
        store.attempts.count_silent(now - DAY, silent_since),
    )
    waiting, breakers, without_fault, readiness = await asyncio.gather(
        store.plans.page(PlanFilter(PlanState.WAITING.value), "", COUNTED),
        store.nodes.breakers(),
        store.diagnoses.count_without_fault(now - DAY),
        check_health(core, health),
    )
    return {
        "incidents": counts,
        "running": running,
        "silent": silent,
        "waiting": len(waiting),
        "tripped": list(filter(attrgetter("tripped"), breakers)),
        "ingest": _ingest(readiness),
        "model": readiness.parts.get("model"),
        "without_fault": without_fault,
    }
