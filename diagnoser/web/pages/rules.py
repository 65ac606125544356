"""The page of learned rules: how each was tested, what it did, and the buttons to decide."""

from fastapi import Depends
from fastapi.responses import Response

from diagnoser.learning import rule_lifecycle
from diagnoser.model import LearnedState
from diagnoser.model.errors import BadInput
from diagnoser.model.queries import LearnedRuleQuery
from diagnoser.web.api.rules import Move, RuleId, changed
from diagnoser.web.http.authentication import may_read
from diagnoser.web.http.dependencies import Core
from diagnoser.web.http.routing import Router
from diagnoser.web.pages.forms import Pressed, see_other
from diagnoser.web.pages.rendering import Drawn

SHOWN = 100
_ORDER = (
    LearnedState.SHADOW,
    LearnedState.ACTIVE,
    LearnedState.PROPOSED,
    LearnedState.RETIRED,
    LearnedState.REFUSED,
)
"""What waits for a person comes first."""
MOVES: dict[str, Move] = {
    "promote": rule_lifecycle.promoted,
    "retire": rule_lifecycle.retired,
    "restore": rule_lifecycle.restored,
}

router = Router(include_in_schema=False)


@router.get("/rules", dependencies=[Depends(may_read)])
async def rules_page(core: Core, pages: Drawn) -> Response:
    store = core.store
    groups = []
    for state in _ORDER:
        rules = await store.rules.page(LearnedRuleQuery((state,)), "", SHOWN)
        rules += await store.rules.page(LearnedRuleQuery((state,), filters=True), "", SHOWN)
        if rules:
            groups.append((state, rules))
    return pages.draw("rules.html", groups=groups)


@router.post("/rules/{id}/decide")
async def decide(id: RuleId, form: Pressed, core: Core) -> Response:
    """Decides, then redirects to the list or the workbench, so that a reload does not repeat it."""
    move = MOVES.get(form.text("decision"))
    if move is None:
        raise BadInput("the decision must be promote, retire or restore")
    await changed(core, form.caller, id, move, form.text("comment"))
    page = f"/rules/workbench?rule={id}#rule" if form.text("page") == "workbench" else f"/rules#{id}"
    return see_other(page)
