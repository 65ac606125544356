"""The recovery page and its buttons."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diagnoser.model import BreakerState, MessageKind, Mode, OutboxMessage, PlanState, TransitionResult
from diagnoser.model.access import Scope, Token
from tests.serving import NOW, Web, serving
from tests.unit.test_web_plans import claim, planned, post

SAME = {"sec-fetch-site": "same-origin"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
YES = b"decision=approve&comment=go+ahead"
TOKENS = (Token("ops", "w" * 16, Scope.OPERATE), Token("eyes", "r" * 16, Scope.READ))
PEOPLE = (("ops", "w"), ("eyes", "r"))


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    async with serving(tmp_path) as made:
        yield made


async def state(web: Web) -> PlanState:
    plan = await web.store.plan("plan-j")
    assert plan is not None
    return plan.state


async def test_a_waiting_plan_is_approved_on_the_page(web: Web) -> None:
    """The button leads back to the diagnosis, and the plan may be claimed."""
    await planned(web, mode=Mode.APPROVE)
    shown = await web.client.get("/recovery")
    assert 'action="/plans/plan-j/decide"' in shown.text
    answer = await web.client.post("/plans/plan-j/decide", content=YES, headers=SAME | FORM)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/diagnoses/")
    plan = await web.store.plan("plan-j")
    assert plan is not None and (plan.state, plan.history[-1].by) == (PlanState.SENT, "anonymous")


async def test_a_plan_is_refused_on_the_page(web: Web) -> None:
    """The other button says no; pressing again is told as a page."""
    await planned(web, mode=Mode.APPROVE)
    no = YES.replace(b"approve", b"refuse")
    await web.client.post("/plans/plan-j/decide", content=no, headers=SAME | FORM)
    assert await state(web) is PlanState.REFUSED
    late = await web.client.post("/plans/plan-j/decide", content=no, headers=SAME | FORM)
    assert late.status_code == 409
    assert "it has been refused" in late.text and late.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site", "origin": "http://diagnoser.test"},
    ],
)
async def test_other_sites_cannot_press_buttons(web: Web, headers: dict[str, str]) -> None:
    """Only a page of this service can, by what the browser itself says."""
    await planned(web, mode=Mode.APPROVE)
    answer = await web.client.post("/plans/plan-j/decide", content=YES, headers=headers | FORM)
    assert answer.status_code == 403
    assert await state(web) is PlanState.WAITING


async def test_a_browser_that_only_sends_origin_can_press(web: Web) -> None:
    """Without encryption browsers leave out Sec-Fetch-Site."""
    await planned(web, mode=Mode.APPROVE)
    answer = await web.client.post(
        "/plans/plan-j/decide", content=YES, headers={"origin": "http://diagnoser.test"} | FORM
    )
    assert answer.status_code == 303


async def test_buttons_need_a_token_that_operates(tmp_path: Path) -> None:
    """The password of the browser's login is enough when its scope is operate."""
    async with serving(tmp_path, tokens=TOKENS) as web:
        web.client.headers["authorization"] = "Bearer " + "w" * 16
        await planned(web, mode=Mode.APPROVE)
        del web.client.headers["authorization"]
        url, headers = "/plans/plan-j/decide", SAME | FORM
        assert (await web.client.post(url, content=YES, headers=headers)).status_code == 401
        eyes = await web.client.post(url, content=YES, headers=headers, auth=("", "r" * 16))
        assert eyes.status_code == 403
        ops = await web.client.post(url, content=b"by=tom&" + YES, headers=headers, auth=("", "w" * 16))
        plan = await web.store.plan("plan-j")
        assert ops.status_code == 303 and plan is not None and plan.history[-1].by == "ops"


async def test_a_page_says_who_looks_and_offers_what_they_may_do(tmp_path: Path) -> None:
    """A reader sees the plan that waits, and no button for it."""
    async with serving(tmp_path, tokens=TOKENS) as web:
        web.client.headers["authorization"] = "Bearer " + "w" * 16
        await planned(web, mode=Mode.APPROVE)
        del web.client.headers["authorization"]
        pages = {name: (await web.client.get("/recovery", auth=("", letter * 16))).text for name, letter in PEOPLE}
    assert all(f">{name}</span>" in page and "plan-j" not in page.partition("<form")[0] for name, page in pages.items())
    assert "/plans/plan-j/decide" in pages["ops"] and "<form" not in pages["eyes"]


async def test_a_faulty_form_changes_nothing(web: Web) -> None:
    """A decision that is none, and bytes that are no form, are bad requests."""
    await planned(web, mode=Mode.APPROVE)
    for body in (b"", b"decision=maybe", b"\xff\xfe", b"&".join(b"a%d=1" % number for number in range(50))):
        answer = await web.client.post("/plans/plan-j/decide", content=body, headers=SAME | FORM)
        assert answer.status_code == 400
    assert await state(web) is PlanState.WAITING


async def test_the_page_shows_all_of_recovery(web: Web) -> None:
    """Breakers, nodes, plans, steps and dead letters are there; the buttons for them work."""
    await planned(web)
    token = (await claim(web))["token"]
    step = {"command": "scontrol <update>", "exit_code": 1, "output": "slurm_update error: \x1b[31mInvalid node"}
    told = {"token": token, "state": "not_reached", "steps": [step], "drained": ["hgx-04"]}
    await post(web, "/plans/plan-j/report", told)
    trip = BreakerState("default", True, NOW, "3 nodes would be taken out")
    dead = OutboxMessage("letter", MessageKind.SLACK, "slack", b"{}", NOW, NOW + 60)
    await web.store.change_plan("plan-j", NOW, lambda plan, _: TransitionResult(plan, trips=(trip,), messages=(dead,)))
    for due in await web.store.claim_messages(NOW, 60.0, 10):
        await web.store.record_delivery(due, "dead", error="HTTP 410")
    page = (await web.client.get("/recovery")).text
    for text in ("tripped: cordons need approval", "3 nodes would be taken out", "hgx-04", "HTTP 410"):
        assert text in page
    plan = (await web.client.get("/api/v1/plans/plan-j")).json()
    verdict = (await web.client.get(f"/diagnoses/{plan['diagnosis']}")).text
    assert "scontrol &lt;update&gt;" in verdict and "\x1b" not in verdict
    reset = await web.client.post("/recovery/breakers/default/reset", content=b"comment=ok", headers=SAME | FORM)
    retry = await web.client.post("/recovery/effects/letter/retry", headers=SAME)
    assert (reset.status_code, retry.status_code) == (303, 303)
    assert "tripped" not in (await web.client.get("/recovery")).text
    assert [one.message.key for one in await web.store.messages_in("pending", "", 10)] == ["letter"]


async def test_dead_letters_over_the_api(web: Web) -> None:
    """They are listed and can be tried again once; what was sent cannot."""
    await planned(web)
    letter = OutboxMessage("letter", MessageKind.SLACK, "slack", b"{}", NOW, NOW + 60)
    await web.store.change_plan("plan-j", NOW, lambda plan, _: TransitionResult(plan, messages=(letter,)))
    (due,) = await web.store.claim_messages(NOW, 60.0, 10)
    await web.store.record_delivery(due, "dead", error="HTTP 410")
    listed = (await web.client.get("/api/v1/effects?state=dead")).json()
    assert [(one["key"], one["error"], one["tries"]) for one in listed["items"]] == [("letter", "HTTP 410", 1)]
    again = await web.client.post("/api/v1/effects/letter/retry")
    assert (again.status_code, again.json()["state"]) == (200, "pending")
    assert (await web.client.post("/api/v1/effects/letter/retry")).status_code == 409
    assert (await web.client.post("/api/v1/effects/none/retry")).status_code == 404
