"""The recovery page: plans that wait for approval, breakers, nodes and dead letters, with their buttons."""

from fastapi import APIRouter, Depends
from fastapi.responses import RedirectResponse, Response

from diagnoser.model import Plan, PlanState
from diagnoser.model.errors import BadInput
from diagnoser.ports import PlanFilter
from diagnoser.web.api.nodes import ClusterPath, reset_breaker
from diagnoser.web.api.outbox import MessageKey, retry_message
from diagnoser.web.api.plans import PlanId, approve_plan, refuse_plan
from diagnoser.web.authentication import Provided, may_read
from diagnoser.web.forms import Pressed
from diagnoser.web.ui import Drawn

SHOWN = 50

router = APIRouter(include_in_schema=False)


@router.get("/recovery", dependencies=[Depends(may_read)])
async def recovery_page(services: Provided, pages: Drawn) -> Response:
    store = services.store
    return pages.draw(
        "recovery.html",
        waiting=await store.plans(PlanFilter(PlanState.WAITING.value), "", SHOWN),
        breakers=await store.breakers(),
        nodes=(await store.node_marks(""))[: 4 * SHOWN],
        plans=await store.plans(PlanFilter(), "", SHOWN),
        dead=await store.messages_in("dead", "", SHOWN),
    )


@router.post("/plans/{id}/decide")
async def decide(id: PlanId, form: Pressed, services: Provided) -> Response:
    """Approve or refuse, then back to the diagnosis."""
    decisions = {"approve": approve_plan, "refuse": refuse_plan}
    act = decisions.get(form.text("decision"))
    if act is None:
        raise BadInput("the decision must be approve or refuse")
    plan: Plan = await act(services, form.caller, id, form.text("comment"))
    return _to(f"/diagnoses/{plan.diagnosis}" if plan.diagnosis else "/recovery")


@router.post("/recovery/breakers/{scope}/reset")
async def reset(scope: ClusterPath, form: Pressed, services: Provided) -> Response:
    await reset_breaker(services, form.caller, scope, form.text("comment"))
    return _to("/recovery")


@router.post("/recovery/effects/{key}/retry")
async def retry(key: MessageKey, form: Pressed, services: Provided) -> Response:
    await retry_message(services, form.caller, key)
    return _to("/recovery")


def _to(page: str) -> Response:
    """Redirects to the page, so that a reload does not repeat the action."""
    return RedirectResponse(page, status_code=303)
