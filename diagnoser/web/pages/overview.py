"""The first page, and the page of one incident: what is wrong now, who works on it, and the buttons to say so."""

import asyncio
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlencode

from fastapi import Depends, Request
from fastapi.responses import RedirectResponse, Response

from diagnoser.model import BreakerState, IncidentState, PlanState
from diagnoser.model.errors import BadInput
from diagnoser.model.queries import DiagnosisFilter, PlanFilter
from diagnoser.model.sorting import LAST_SEEN
from diagnoser.model.taxonomy import Category
from diagnoser.model.views import ListName
from diagnoser.model.work import DiagnosisRecord
from diagnoser.recovery import incidents as rules
from diagnoser.web.api.health import PartHealth, Readiness, check_health
from diagnoser.web.api.incidents import Act, IncidentId, IncidentQuery, change, find, list_incidents
from diagnoser.web.http.authentication import Caller, may_read
from diagnoser.web.http.dependencies import Core, Health, Live, Logs
from diagnoser.web.http.routing import Router
from diagnoser.web.pages.attempt_axis import attempt_axis, log_of
from diagnoser.web.pages.column_order import ColumnOrder
from diagnoser.web.pages.forms import Pressed, see_other
from diagnoser.web.pages.log_viewer import log_path
from diagnoser.web.pages.page_routes import FILTERS as DIAGNOSIS_FILTERS
from diagnoser.web.pages.page_routes import Drawn, page_query
from diagnoser.web.pages.time_axis import TimeAxis
from diagnoser.web.pages.views import list_url, views_of

COUNTED = 100
"""Waiting plans that are counted; more are shown as so many or more."""
DAY = 86_400.0
FAILURES = 50
"""Failures of one incident on its page."""
ACTS: dict[str, Act] = {"acknowledge": rules.acknowledged, "resolve": rules.resolved, "reopen": rules.reopened}

router = Router(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Situation:
    """What the tiles show. silent: jobs that fell silent within the last day. without_fault: attempts that ended
    without a fault within the last day, among the newest ones."""

    incidents: dict[IncidentState, int]
    running: int
    silent: int
    waiting: int
    tripped: list[BreakerState]
    health: Readiness
    without_fault: int

    @property
    def ingest(self) -> PartHealth:
        """Whether lines are taken in: the first of its parts that fails, else that all work."""
        parts = [part for name, part in self.health.parts.items() if name != "model"]
        return next((part for part in parts if not part.ready), PartHealth(ready=True, detail="taking lines"))

    @property
    def model(self) -> PartHealth | None:
        """None where no model is configured."""
        return self.health.parts.get("model")


@router.get("/", dependencies=[Depends(may_read)])
async def now_page(request: Request, core: Core, live: Live, health: Health, pages: Drawn, caller: Caller) -> Response:
    """Tiles, and the incidents; resolved ones when asked for. Addresses of the list of diagnoses, which was here once,
    lead to where it is."""
    if request.query_params.keys() & set(DIAGNOSIS_FILTERS) - IncidentQuery.model_fields.keys():
        return RedirectResponse(f"/diagnoses?{request.query_params}", status_code=308)
    query = page_query(IncidentQuery, request)
    (incidents, after), now = await list_incidents(core.store, query), await _situation(core, health)
    chosen = query.model_dump(mode="json", exclude={"cursor", "limit", "sort"}, exclude_defaults=True)
    order = ColumnOrder("/", chosen, query.order, LAST_SEEN)
    return pages.draw(
        "now.html",
        incidents=incidents,
        situation=now,
        trend=await live.trends.current(),
        blind_spots=await request.app.state.vitals.blind_spots() if caller.viewer.sees_all else (),
        query=query,
        is_first=not query.cursor,
        order=order,
        next_url=order.page(after),
        base_url=core.config.base_url or str(request.base_url).rstrip("/"),
        saved=await views_of(core, ListName.INCIDENTS, order.chosen, query),
    )


@router.get("/incidents/{id}", dependencies=[Depends(may_read)])
async def incident_page(id: IncidentId, core: Core, logs: Logs, pages: Drawn, after: str = "") -> Response:
    incident = await find(core.store, id)
    records = await core.store.incidents.failures(id, after, FAILURES + 1)
    shown = records[:FAILURES]
    newest, axis, is_reading = None, None, False
    if shown and not after:
        newest = shown[0]
        axis, is_reading = await _axis(core, logs, newest)
    return pages.draw(
        "incident.html",
        incident=incident,
        records=shown,
        newest=newest,
        axis=axis,
        is_reading=is_reading,
        log_path=log_path(newest.attempt) if newest else "",
        next_url=f"/incidents/{id}?" + urlencode({"after": shown[-1].id}) if len(records) > FAILURES else "",
        is_first=not after,
    )


@router.post("/incidents/decide")
async def decide_on_several(form: Pressed, core: Core) -> Response:
    """Acknowledge or resolve those that are selected, then show the list as it was."""
    act = ACTS.get(form.text("decision"))
    if act is None:
        raise BadInput("the decision must be acknowledge, resolve or reopen")
    for chosen in dict.fromkeys(form.texts("incident")):
        await change(core, form.caller, chosen, act, form.text("comment"))
    return see_other(list_url(ListName.INCIDENTS, form))


@router.post("/incidents/{id}/decide")
async def decide(id: IncidentId, form: Pressed, core: Core) -> Response:
    """Acknowledge, resolve, reopen or assign, then back to the page it was pressed on."""
    decision = form.text("decision")
    if decision == "assign":
        act: Act = partial(rules.assigned, assignee=form.caller.name)
    elif decision == "unassign":
        act = partial(rules.assigned, assignee="")
    elif decision in ACTS:
        act = ACTS[decision]
    else:
        raise BadInput("the decision must be acknowledge, resolve, reopen, assign or unassign")
    await change(core, form.caller, id, act, form.text("comment"))
    return see_other("/" if form.text("page") == "now" else f"/incidents/{id}")


async def _axis(core: Core, logs: Logs, record: DiagnosisRecord) -> tuple[TimeAxis | None, bool]:
    """Also whether there is none yet because the log is large and being read."""
    (index, is_reading), job, node_lines = await asyncio.gather(
        log_of(logs, record), core.store.jobs.find(record.attempt.job), logs.context.node_lines(record)
    )
    return await attempt_axis(core, record, job, index, node_lines), is_reading


async def _situation(core: Core, health: Health) -> Situation:
    store, now = core.store, core.clock()
    last_day = DiagnosisFilter(since=now - DAY)
    silent_since = now - core.config.silent_seconds
    counts, running, silent = await asyncio.gather(
        store.incidents.count_unresolved(),
        store.attempts.count_running(silent_since),
        store.attempts.count_silent(now - DAY, silent_since),
    )
    waiting, breakers, facets, readiness = await asyncio.gather(
        store.plans.page(PlanFilter(PlanState.WAITING.value), "", COUNTED),
        store.nodes.breakers(),
        store.diagnoses.facets(last_day),
        check_health(core, health),
    )
    return Situation(
        incidents=counts,
        running=running,
        silent=silent,
        waiting=len(waiting),
        tripped=[breaker for breaker in breakers if breaker.tripped],
        health=readiness,
        without_fault=dict(facets.counts.get("category", ())).get(Category.NONE.value, 0),
    )
