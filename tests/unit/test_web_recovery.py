"""The recovery page and its buttons."""

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

import pytest

from diagnoser.model import BreakerState, Job, MessageKind, Mode, OutboxMessage, PlanState, TransitionResult
from diagnoser.model.access import Credential, Scope, StoredToken, Token, hash_of
from diagnoser.model.errors import Conflict
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
    plan = await web.store.plans.find("plan-j")
    assert plan is not None
    return plan.state


async def test_a_waiting_plan_is_approved_on_the_page(web: Web) -> None:
    """The button leads back to the diagnosis, and the plan may be claimed."""
    await planned(web, mode=Mode.APPROVE)
    shown = await web.client.get("/recovery")
    assert 'name="plan" value="plan-j~' in shown.text
    answer = await web.client.post("/plans/plan-j/decide", content=YES, headers=SAME | FORM)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/diagnoses/")
    plan = await web.store.plans.find("plan-j")
    assert plan is not None and (plan.state, plan.history[-1].by) == (PlanState.SENT, "anonymous")


async def test_a_plan_is_refused_on_the_page(web: Web) -> None:
    """The other button says no; a press that comes too late leads to the diagnosis, which says who was first."""
    await planned(web, mode=Mode.APPROVE)
    no = YES.replace(b"approve", b"refuse")
    await web.client.post("/plans/plan-j/decide", content=no, headers=SAME | FORM)
    assert await state(web) is PlanState.REFUSED
    late = await web.client.post("/plans/plan-j/decide", content=no, headers=SAME | FORM)
    assert late.status_code == 303
    page = (await web.client.get(late.headers["location"])).text
    assert "Your press changed nothing: it has been refused (by anonymous," in page
    assert "Your press changed nothing" not in (await web.client.get(late.headers["location"].partition("?")[0])).text


@pytest.mark.parametrize("page", ["/recovery", "/diagnoses/{}"])
async def test_an_approval_counts_for_the_plan_as_it_was_shown(web: Web, page: str) -> None:
    """A repeated request, or an old page, approved what somebody had taken back, or a plan that names other nodes."""
    await planned(web, mode=Mode.APPROVE)
    plan = await web.store.plans.find("plan-j")
    assert plan
    text = (await web.client.get(page.format(plan.diagnosis))).text
    shown = re.search(r'name="plan" value="(plan-j~[0-9]+)"', text)
    assert shown
    body = b"decision=approve&plan=" + shown[1].encode()
    path = "/recovery/decide" if page == "/recovery" else "/plans/plan-j/decide"
    states, answer = [], None
    for content in (body, b"decision=take_back", body):
        url = path if content is body else "/plans/plan-j/decide"
        answer = await web.client.post(url, content=content, headers=SAME | FORM)
        states.append(await state(web))
    assert states == [PlanState.SENT, PlanState.WAITING, PlanState.WAITING]
    assert answer and "changed since it was shown" in (await web.client.get(answer.headers["location"])).text


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
        plan = await web.store.plans.find("plan-j")
        assert ops.status_code == 303 and plan is not None and plan.history[-1].by == "ops"


async def test_a_page_says_who_looks_and_offers_what_they_may_do(tmp_path: Path) -> None:
    """A reader sees the plan that waits, and no button for it."""
    async with serving(tmp_path, tokens=TOKENS) as web:
        web.client.headers["authorization"] = "Bearer " + "w" * 16
        await planned(web, mode=Mode.APPROVE)
        del web.client.headers["authorization"]
        pages = {name: (await web.client.get("/recovery", auth=("", letter * 16))).text for name, letter in PEOPLE}
    assert all(f">{name}</span>" in page for name, page in pages.items())
    assert 'value="plan-j~' in pages["ops"] and "<form" not in pages["eyes"]


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
    dead = OutboxMessage("letter", MessageKind.ANSWER, "slack", b"{}", NOW, NOW + 60)
    await web.store.plans.change("plan-j", lambda plan: TransitionResult(plan, trips=(trip,), messages=(dead,)))
    for due in await web.store.outbox.claim(NOW, 60.0, 10):
        await web.store.outbox.record_delivery(due, "dead", error="HTTP 410")
    page = (await web.client.get("/recovery")).text
    for text in (">Tripped</span>", "3 nodes would be taken out", "hgx-04", "HTTP 410"):
        assert text in page
    plan = (await web.client.get("/api/v1/plans/plan-j")).json()
    verdict = (await web.client.get(f"/diagnoses/{plan['diagnosis']}")).text
    assert "scontrol &lt;update&gt;" in verdict and "\x1b" not in verdict
    reset = await web.client.post("/recovery/breakers/default/reset", content=b"comment=ok", headers=SAME | FORM)
    retry = await web.client.post("/recovery/effects/letter/retry", headers=SAME)
    assert (reset.status_code, retry.status_code) == (303, 303)
    assert ">Tripped</span>" not in (await web.client.get("/recovery")).text
    assert [one.message.key for one in await web.store.outbox.page("pending", "", 10)] == ["letter"]


async def test_dead_letters_over_the_api(web: Web) -> None:
    """They are listed and can be tried again once; what was sent cannot."""
    await planned(web)
    letter = OutboxMessage("letter", MessageKind.ANSWER, "slack", b"{}", NOW, NOW + 60)
    await web.store.plans.change("plan-j", lambda plan: TransitionResult(plan, messages=(letter,)))
    (due,) = await web.store.outbox.claim(NOW, 60.0, 10)
    await web.store.outbox.record_delivery(due, "dead", error="HTTP 410")
    listed = (await web.client.get("/api/v1/effects?state=dead")).json()
    assert [(one["key"], one["error"], one["tries"]) for one in listed["items"]] == [("letter", "HTTP 410", 1)]
    again = await web.client.post("/api/v1/effects/letter/retry")
    assert (again.status_code, again.json()["state"]) == (200, "pending")
    assert (await web.client.post("/api/v1/effects/letter/retry")).status_code == 409
    assert (await web.client.post("/api/v1/effects/none/retry")).status_code == 404


async def decide(web: Web, decision: str, *plans: str, comment: str = "") -> str:
    """Press a button of the queue; the page that follows."""
    fields = [("plan", plan) for plan in plans]
    body = urlencode([*fields, ("decision", decision), ("comment", comment)]).encode()
    answer = await web.client.post("/recovery/decide", content=body, headers=SAME | FORM)
    assert answer.status_code == 303
    return (await web.client.get(answer.headers["location"])).text


async def test_several_plans_are_approved_at_once(web: Web) -> None:
    """Each by itself: one that was decided about meanwhile is told, and the others go on. The page stays."""
    for job in ("a", "b", "c", "d"):
        await planned(web, job, mode=Mode.APPROVE)
    await post(web, "/plans/plan-b/refuse", {})
    page = await decide(web, "approve", "plan-a", "plan-b", "plan-c", "nonsense", comment="looked at them")
    states = {job: await web.store.plans.find(f"plan-{job}") for job in "abcd"}
    assert [plan.state for plan in states.values() if plan] == ["sent", "refused", "sent", "waiting"]
    assert states["a"] and states["a"].history[-1].why == "approved: looked at them"
    assert page.count("<b>approved</b>; no agent has picked it up yet") == 2
    assert "<b>not changed</b>, it has been refused" in page
    assert 'name="plan" value="plan-d~' in page and 'name="plan" value="plan-a~' not in page


async def test_an_approval_is_undone_until_an_agent_has_the_plan(web: Web) -> None:
    """The plan waits again, and what the approval vouched for is unproven again; a claim is final."""
    await planned(web, "a", mode=Mode.APPROVE)
    await planned(web, "b", mode=Mode.APPROVE)
    await decide(web, "approve", "plan-a", "plan-b")
    assert (await claim(web))["plan"]["id"] == "plan-a"
    page = await decide(web, "take_back", "plan-a", "plan-b")
    taken = await web.store.plans.find("plan-b")
    assert taken and (taken.state, taken.reason, taken.history[-1].by) == ("waiting", "taken_back", "anonymous")
    assert "<b>waiting for a decision again</b>" in page and "<b>not changed</b>, slurm-1 holds it" in page
    assert (await post(web, "/plans/plan-a/take-back", {})).status_code == 409
    assert (await post(web, "/plans/plan-b/approve", {})).json()["state"] == "sent"


async def test_a_refusal_is_undone(web: Web) -> None:
    """As long as the plan has time left."""
    await planned(web, mode=Mode.APPROVE)
    assert ">Undo</button>" in await decide(web, "refuse", "plan-j")
    await decide(web, "take_back", "plan-j")
    assert await state(web) is PlanState.WAITING


async def test_where_the_webhook_tells_of_plans_an_approval_stands(web: Web) -> None:
    """Whoever receives it need not claim the plan."""
    commands = web.services.plans.commands
    told = replace(commands, planner=replace(commands.planner, webhook=True))
    services = replace(web.services, plans=replace(web.services.plans, commands=told))
    await planned(web, mode=Mode.APPROVE)
    await decide(web, "approve", "plan-j")
    revoke = partial(services.plans.commands.revoke_decision, by="ops", comment="", now=NOW)
    with pytest.raises(Conflict, match="the webhook told of it"):
        await services.plans.change("plan-j", NOW, revoke)
    assert await state(web) is PlanState.SENT


async def test_the_queue_says_what_a_plan_touches(web: Web) -> None:
    """The nodes, the proof, whoever else runs there now, and what happens without a decision."""
    await planned(web, mode=Mode.APPROVE)
    await web.store.jobs.register(Job("neighbour", cluster="default", nodes=("hgx-04", "hgx-05"), created=NOW - 50), 1)
    await web.store.jobs.register(Job("elsewhere", cluster="west", nodes=("hgx-04",), created=NOW - 50), 1)
    page = (await web.client.get("/recovery")).text
    queue = page[page.index('class="queue"') : page.index("<h2>Plans</h2>")]
    for shown in (
        '<a class="target" href="/nodes/hgx-04?cluster=default">hgx-04</a>',
        "Takes hgx-04 out of service",
        "1 other job runs there",
        '<a href="/jobs/neighbour">neighbour</a>',
        '<span class="badge plain">node log</span>',
        "the job is not relaunched, and hgx-04 stays in service",
        "ECC error",
    ):
        assert shown in queue, shown
    assert "elsewhere" not in queue


async def test_a_credential_of_one_cluster_decides_about_its_own_plans_only(tmp_path: Path) -> None:
    """To it a plan of another cluster does not exist."""
    async with serving(tmp_path, tokens=TOKENS) as web:
        secret = "dgn_" + "x" * 43
        west = Credential("west-ops", Scope.OPERATE, cluster="west")
        await web.store.tokens.add(StoredToken(west, hash_of(secret)))
        web.client.headers["authorization"] = "Bearer " + "w" * 16
        await planned(web, mode=Mode.APPROVE)
        web.client.headers["authorization"] = f"Bearer {secret}"
        page = await decide(web, "approve", "plan-j")
        assert await state(web) is PlanState.WAITING
    assert "plan-j" not in page


async def test_a_breaker_is_tripped_by_hand(web: Web) -> None:
    """With a reason, and by whom; until it is reset, plans that cordon wait."""
    fields = b"scope=default&comment=new+racks+today"
    answer = await web.client.post("/recovery/breakers/trip", content=fields, headers=SAME | FORM)
    assert answer.status_code == 303
    page = (await web.client.get("/recovery")).text
    assert ">Tripped</span> <b>default</b>" in page and "by anonymous: new racks today" in page
    (state,) = await web.store.nodes.breakers()
    assert (state.tripped, state.by) == (True, "anonymous")
    for faulty in (b"scope=default&comment=", b"scope=&comment=why", b"scope=a/b&comment=why"):
        refused = await web.client.post("/recovery/breakers/trip", content=faulty, headers=SAME | FORM)
        assert refused.status_code == 400
    again = await post(web, "/breakers/east/trip", {"comment": "audit"})
    assert (again.status_code, again.json()["tripped"]) == (200, True)
