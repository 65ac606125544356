"""The audit log: every route that changes something leaves an entry, and what the entries say."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from urllib.parse import urlencode

import httpx
import pytest
from fastapi.routing import iter_route_contexts

from diagnoser.channels.slack.access import SlackAccess
from diagnoser.ingest.protocols import path_ends
from diagnoser.model import (
    AttemptKey,
    BreakerState,
    Event,
    EventKind,
    MessageKind,
    Mode,
    OutboxMessage,
    TransitionResult,
)
from diagnoser.model.access import Credential, Scope, StoredToken, Token, hash_of
from diagnoser.model.audit import Actor, ActorKind, AuditEntry, AuditResult
from diagnoser.model.errors import Unavailable
from diagnoser.model.people import Role, User
from diagnoser.model.queries import AuditFilter, IncidentFilter
from diagnoser.web.http.auditing import ASKING, MUTATING, QUESTIONS, is_audited
from diagnoser.web.server import create
from tests.serving import ECC, HOSTILE, NOW, WEAK_PASSWORDS, Web, save, serving
from tests.unit import test_ingest_alerts as firing
from tests.unit import test_web_alertmanager as alerts
from tests.unit import test_web_evidence as dumps
from tests.unit import test_web_nodes as nodes
from tests.unit import test_web_plans as plans
from tests.unit import test_web_rules as rules
from tests.unit import test_web_slack_actions as slack
from tests.unit import test_web_workbench as workbench

ADMIN = {"authorization": "Bearer a-secret-for-admins"}
FORM = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}
NAMES = {"name": "maria", "password": "correct horse battery"}

Call = Callable[[Web], Awaitable[httpx.Response]]


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    """Every request comes with an admin's token, unless it says otherwise."""
    tokens = (
        Token("the-admin", "a-secret-for-admins", Scope.ADMIN),
        Token("the-reader", "a-secret-for-readers", Scope.READ),
        Token("the-agent", "a-secret-for-agents", Scope.AGENT),
    )
    async with serving(tmp_path, tokens=tokens, slack=SlackAccess(slack.SECRET, frozenset({"U1"}))) as made:
        made.client.headers.update(ADMIN)
        await made.store.users.add(User("maria", Role.OPERATOR, NOW), await WEAK_PASSWORDS.hash(NAMES["password"]))
        yield made


async def entries(web: Web, **where: object) -> Sequence[AuditEntry]:
    return await web.store.audit.page(AuditFilter(**where), 0, 100)  # type: ignore[arg-type]


def posted(path: str, body: object = None) -> Call:
    return lambda web: web.client.post(path, json=body if body is not None else {})


def pressed(path: str, body: bytes = b"") -> Call:
    return lambda web: web.client.post(path, content=body, headers=FORM)


def after(prepare: Callable[[Web], Awaitable[object]], call: Call) -> Call:
    async def run(web: Web) -> httpx.Response:
        await prepare(web)
        return await call(web)

    return run


async def waiting(web: Web) -> None:
    await plans.planned(web, mode=Mode.APPROVE)


async def tripped(web: Web) -> None:
    await plans.planned(web)
    trip = BreakerState("default", True, NOW, "3 nodes would be taken out")
    letter = OutboxMessage("letter", MessageKind.ANSWER, "slack", b"{}", NOW, NOW + 60)
    made = TransitionResult
    await web.store.plans.change("plan-j", lambda plan: made(plan, trips=(trip,), messages=(letter,)))
    for due in await web.store.outbox.claim(NOW, 60.0, 10):
        await web.store.outbox.record_delivery(due, "dead", error="HTTP 410")


async def learned(web: Web) -> None:
    await web.store.rules.propose(rules.RULE)


async def requested(web: Web) -> None:
    await web.store.jobs.add_event(dumps.KEY, Event(EventKind.STARTED, NOW))
    await web.store.evidence.request(dumps.asked())


def on_incident(act: str, *, page: bool = False) -> Call:
    async def run(web: Web) -> httpx.Response:
        await save(web.store, "j", ECC)
        (incident,) = await web.store.incidents.page(IncidentFilter(), "", 10)
        if act == "reopen":
            await web.client.post(f"/api/v1/incidents/{incident.id}/resolve", json={})
        if page:
            return await pressed(f"/incidents/{incident.id}/decide", f"decision={act}".encode())(web)
        return await posted(f"/api/v1/incidents/{incident.id}/{act}", {"seconds": 3600} if act == "mute" else None)(web)

    return run


async def with_token(web: Web) -> None:
    credential = Credential("shipper", Scope.INGEST, created=NOW)
    await web.store.tokens.add(StoredToken(credential, hash_of("a-secret-of-a-shipper")))


def on_diagnosis(call: Callable[[str], Call]) -> Call:
    async def run(web: Web) -> httpx.Response:
        record = await save(web.store, "j", ECC)
        return await call(record.id)(web)

    return run


def on_claimed_plan(path: str, **fields: object) -> Call:
    async def run(web: Web) -> httpx.Response:
        await plans.planned(web)
        token = (await plans.claim(web))["token"]
        return await posted(f"/api/v1/plans/plan-j/{path}", {"token": token, **fields})(web)

    return run


async def checked_next(web: Web) -> httpx.Response:
    token = await plans.check_plan(web, ("n1", "n2", "n3", "n4"))
    return await posted("/api/v1/plans/plan-j/check/next", {"token": token})(web)


async def checked_results(web: Web) -> httpx.Response:
    token = await plans.check_plan(web, ("n1", "n2", "n3", "n4"))
    await posted("/api/v1/plans/plan-j/check/next", {"token": token})(web)
    result = {"nodes": ["n3", "n1"], "ok": True, "seconds": 1.0}
    return await posted("/api/v1/plans/plan-j/check/results", {"token": token, "round": 1, "results": [result]})(web)


async def sent_dump(web: Web) -> httpx.Response:
    await web.store.jobs.add_event(AttemptKey("j"), Event(EventKind.STARTED, NOW))
    path = "/api/v1/jobs/j/attempts/1/evidence?kind=stacks&rank=0"
    return await web.client.post(path, content=dumps.STACK)


async def sent_snapshot(web: Web) -> httpx.Response:
    await web.store.jobs.add_event(AttemptKey("j"), Event(EventKind.STARTED, NOW))
    part = {"id": "gpu_state", "exit_code": 0, "output": "GPU 0"}
    return await posted("/api/v1/jobs/j/attempts/1/node-snapshots", {"node": "n1", "parts": [part]})(web)


def uncordoned(call: Call) -> Call:
    """On a node that a plan took out of service."""
    return after(nodes.out_by_plan, call)


async def claimed_uncordon(web: Web) -> httpx.Response:
    await uncordoned(posted("/api/v1/nodes/hgx-04/uncordon"))(web)
    return await posted("/api/v1/uncordons/claim")(web)


async def finished_uncordon(web: Web) -> httpx.Response:
    (claimed,) = (await claimed_uncordon(web)).json()
    result = {"state": "refused", "result": "it is not ours"}
    return await posted(f"/api/v1/uncordons/{claimed['id']}/result", result)(web)


async def taken_back(web: Web) -> httpx.Response:
    await after(waiting, posted("/api/v1/plans/plan-j/refuse"))(web)
    return await posted("/api/v1/plans/plan-j/take-back")(web)


async def decided_incidents(web: Web) -> httpx.Response:
    await save(web.store, "j", ECC)
    (incident,) = await web.store.incidents.page(IncidentFilter(), "", 10)
    return await pressed("/incidents/decide", f"incident={incident.id}&decision=acknowledge".encode())(web)


async def confirmed(web: Web) -> httpx.Response:
    record = await save(web.store, "j", ECC)
    return await pressed("/diagnoses/confirm", f"diagnosis={record.id}".encode())(web)


async def proposed(web: Web) -> httpx.Response:
    made, fields = await workbench.judged(web), workbench.FIELDS
    body = {"patterns": [fields["patterns"]], "anchors": [fields["anchors"]], "title": "Torn", "source": made}
    return await posted("/api/v1/rules", body)(web)


async def proposed_on_the_page(web: Web) -> httpx.Response:
    fields = urlencode(workbench.FIELDS | {"case": await workbench.judged(web)})
    return await pressed("/rules/workbench", fields.encode())(web)


async def deleted_view(web: Web) -> httpx.Response:
    await posted("/api/v1/views", VIEW)(web)
    return await web.client.delete("/api/v1/views?list=incidents&name=Ours")


async def signed_out(web: Web) -> httpx.Response:
    del web.client.headers["authorization"]
    await pressed("/login", b"name=maria&password=correct+horse+battery")(web)
    return await pressed("/logout")(web)


async def signed_out_everywhere(web: Web) -> httpx.Response:
    del web.client.headers["authorization"]
    await pressed("/login", b"name=maria&password=correct+horse+battery")(web)
    return await pressed("/logout/everywhere")(web)


def feedback(id: str) -> Call:
    return posted(f"/api/v1/diagnoses/{id}/feedback", {"verdict": "confirmed"})


def feedback_form(id: str) -> Call:
    return pressed(f"/diagnoses/{id}/feedback", b"verdict=confirmed")


def feedback_taken_back(*, by_page: bool) -> Call:

    async def run(web: Web) -> httpx.Response:
        made = (await save(web.store, "j", ECC)).id
        (said,) = (await feedback(made)(web)).json()["feedback"]
        if not by_page:
            return await posted(f"/api/v1/diagnoses/{made}/feedback/take-back", {"feedback": said["id"]})(web)
        return await pressed(f"/diagnoses/{made}/feedback/take-back", f"feedback={said['id']}".encode())(web)

    return run


RULE = f"/api/v1/rules/{rules.RULE.id}"
SAFE = {"comment": "the fan is new"}
VIEW = {"list": "incidents", "name": "Ours", "query": "state=open"}

CALLS: dict[str, tuple[Call, str]] = {
    "DELETE /api/v1/views": (deleted_view, "view"),
    "POST /api/v1/alertmanager": (posted("/api/v1/alertmanager", alerts.body(firing.XID)), "node"),
    "POST /api/v1/breakers/{cluster}/trip": (
        posted("/api/v1/breakers/default/trip", {"comment": "new racks"}),
        "breaker",
    ),
    "POST /api/v1/nodes/{node}/notes": (posted("/api/v1/nodes/n1/notes", {"text": "RMA 4711"}), "node"),
    "POST /api/v1/nodes/{node}/uncordon": (
        uncordoned(posted("/api/v1/nodes/hgx-04/uncordon")),
        "uncordon request",
    ),
    "POST /api/v1/plans/{id}/take-back": (taken_back, "plan"),
    "POST /api/v1/rules": (proposed, "rule"),
    "POST /api/v1/uncordons/claim": (claimed_uncordon, "uncordon request"),
    "POST /api/v1/uncordons/{request_id}/result": (finished_uncordon, "uncordon request"),
    "POST /api/v1/views": (posted("/api/v1/views", VIEW), "view"),
    "POST /alert-routing/test": (pressed("/alert-routing/test", b"receiver=slack"), "message"),
    "POST /people": (pressed("/people", b"name=maria&decision=viewer"), "user"),
    "POST /tokens": (pressed("/tokens", b"name=shipper&scope=ingest"), "token"),
    "POST /tokens/revoke": (after(with_token, pressed("/tokens/revoke", b"name=shipper")), "token"),
    "POST /diagnoses/confirm": (confirmed, "diagnosis"),
    "POST /incidents/decide": (decided_incidents, "incident"),
    "POST /nodes/{node}/note": (pressed("/nodes/n1/note", b"cluster=default&text=RMA"), "node"),
    "POST /nodes/{node}/uncordon": (
        uncordoned(pressed("/nodes/hgx-04/uncordon", b"cluster=default")),
        "uncordon request",
    ),
    "POST /recovery/breakers/trip": (
        pressed("/recovery/breakers/trip", b"scope=default&comment=new+racks"),
        "breaker",
    ),
    "POST /recovery/decide": (
        after(waiting, pressed("/recovery/decide", b"plan=plan-j&decision=approve")),
        "plan",
    ),
    "POST /rules/workbench": (proposed_on_the_page, "rule"),
    "POST /views": (pressed("/views", b"list=diagnoses&query=type%3Decc_error&name=ECC"), "view"),
    "POST /api/v1/breakers/{cluster}/reset": (
        after(tripped, posted("/api/v1/breakers/default/reset", SAFE)),
        "breaker",
    ),
    "POST /api/v1/diagnoses/{id}/feedback": (on_diagnosis(feedback), "diagnosis"),
    "POST /api/v1/diagnoses/{id}/feedback/take-back": (feedback_taken_back(by_page=False), "diagnosis"),
    "POST /api/v1/effects/{key}/retry": (after(tripped, posted("/api/v1/effects/letter/retry")), "message"),
    "POST /api/v1/evidence-requests/claim": (
        after(requested, posted("/api/v1/evidence-requests/claim", {"cluster": "east"})),
        "evidence request",
    ),
    "POST /api/v1/evidence-requests/{request_id}/result": (
        after(
            requested,
            posted(f"/api/v1/evidence-requests/{dumps.REQUEST}/result", {"cluster": "east", "result": "3 dumps"}),
        ),
        "evidence request",
    ),
    "POST /api/v1/incidents/{id}/acknowledge": (on_incident("acknowledge"), "incident"),
    "POST /api/v1/incidents/{id}/assign": (on_incident("assign"), "incident"),
    "POST /api/v1/incidents/{id}/escalate": (on_incident("escalate"), "incident"),
    "POST /api/v1/incidents/{id}/mute": (on_incident("mute"), "incident"),
    "POST /api/v1/incidents/{id}/reopen": (on_incident("reopen"), "incident"),
    "POST /api/v1/incidents/{id}/resolve": (on_incident("resolve"), "incident"),
    "POST /api/v1/jobs": (posted("/api/v1/jobs", {"id": "j", "nodes": ["n1"]}), "job"),
    "POST /api/v1/jobs/{id}/attempts/{attempt}/evidence": (sent_dump, "attempt"),
    "POST /api/v1/jobs/{id}/attempts/{attempt}/node-snapshots": (sent_snapshot, "attempt"),
    "POST /api/v1/jobs/{id}/events": (posted("/api/v1/jobs/j/events", {"kind": "exit", "code": 1}), "attempt"),
    "POST /api/v1/nodes/places": (posted("/api/v1/nodes/places", {"places": {"n1": ["rack:r1"]}}), "node"),
    "POST /api/v1/nodes/{node}/events": (
        posted("/api/v1/nodes/n1/events", {"kind": "cordoned", "by": "person"}),
        "node",
    ),
    "POST /api/v1/plans/claim": (
        after(plans.planned, posted("/api/v1/plans/claim", {"executor": "slurm-1", "cluster": "default"})),
        "plan",
    ),
    "POST /api/v1/plans/{id}/approve": (after(waiting, posted("/api/v1/plans/plan-j/approve")), "plan"),
    "POST /api/v1/plans/{id}/check/next": (checked_next, "plan"),
    "POST /api/v1/plans/{id}/check/results": (checked_results, "plan"),
    "POST /api/v1/plans/{id}/refuse": (after(waiting, posted("/api/v1/plans/plan-j/refuse")), "plan"),
    "POST /api/v1/plans/{id}/report": (on_claimed_plan("report", state="progress"), "plan"),
    "POST /api/v1/rules/{id}/promote": (after(learned, posted(f"{RULE}/promote")), "rule"),
    "POST /api/v1/rules/{id}/restore": (
        after(learned, after(posted(f"{RULE}/retire"), posted(f"{RULE}/restore"))),
        "rule",
    ),
    "POST /api/v1/rules/{id}/retire": (after(learned, posted(f"{RULE}/retire")), "rule"),
    "POST /diagnoses/{id}/feedback": (on_diagnosis(feedback_form), "diagnosis"),
    "POST /diagnoses/{id}/feedback/take-back": (feedback_taken_back(by_page=True), "diagnosis"),
    "POST /incidents/{id}/decide": (on_incident("acknowledge", page=True), "incident"),
    "POST /login": (pressed("/login", b"name=maria&password=correct+horse+battery"), "session"),
    "POST /logout": (signed_out, "session"),
    "POST /logout/everywhere": (signed_out_everywhere, "session"),
    "POST /plans/{id}/decide": (after(waiting, pressed("/plans/plan-j/decide", b"decision=approve")), "plan"),
    "POST /recovery/breakers/{scope}/reset": (
        after(tripped, pressed("/recovery/breakers/default/reset", b"comment=the+fan+is+new")),
        "breaker",
    ),
    "POST /recovery/effects/{key}/retry": (after(tripped, pressed("/recovery/effects/letter/retry")), "message"),
    "POST /rules/{id}/decide": (
        after(learned, pressed(f"/rules/{rules.RULE.id}/decide", b"decision=promote")),
        "rule",
    ),
    "POST /slack/actions": (after(waiting, lambda web: slack.press(web, "approve_plan", "plan-j")), "plan"),
}
"""Route -> a call that succeeds, and what kind of object it is about."""


def test_every_route_that_changes_something_is_called_here(web: Web) -> None:
    """A new one has to be added to the table, or to the list of what takes in lines or only asks."""
    found = iter_route_contexts(create(web.services).routes)
    routes = {(method, route.path or "") for route in found for method in (route.methods or ()) if method in MUTATING}
    assert {f"{method} {path}" for method, path in routes if is_audited(method, path, path_ends())} == CALLS.keys()
    left_out = {path for method, path in routes if not is_audited(method, path, path_ends())}
    assert all(path in ASKING or path.endswith((QUESTIONS, *path_ends())) for path in left_out)
    assert len(left_out) == 11


@pytest.mark.parametrize("route", CALLS)
async def test_a_call_that_succeeds_leaves_an_entry(web: Web, route: str) -> None:
    """Of who, from where, with what, on which object, and what it is now; the last one is about this call."""
    call, kind = CALLS[route]
    answer = await call(web)
    assert answer.status_code < 400, answer.text
    entry = (await entries(web))[0]
    assert (entry.action, entry.object_kind, entry.result) == (route, kind, AuditResult.DONE)
    assert (entry.time, entry.actor.address) == (NOW, "127.0.0.1")
    method = route.partition(" ")[0]
    expected = {"POST /slack/actions": "slack:ann"} | dict.fromkeys(
        ("POST /login", "POST /logout", "POST /logout/everywhere"), "maria"
    )
    assert entry.actor.name == expected.get(route, "the-admin")
    assert entry.object_id and (entry.after if method != "DELETE" else entry.before) is not None


async def test_an_entry_tells_what_was_before_and_after(web: Web) -> None:
    """Only the fields that differ."""
    await waiting(web)
    await posted("/api/v1/plans/plan-j/approve", {"comment": "go ahead"})(web)
    (entry,) = await entries(web, object_kind="plan")
    assert entry.before is not None and entry.after is not None
    assert (entry.before["state"], entry.after["state"]) == ("waiting", "sent")
    assert "job" not in entry.before and "go ahead" in str(entry.after["history"])


async def test_no_secret_is_written_down(web: Web) -> None:
    """Neither the executor's claim, nor a password, cookie, or the hash of one."""
    await plans.planned(web)
    token = (await plans.claim(web))["token"]
    await pressed("/login", b"name=maria&password=correct+horse+battery")(web)
    found = await web.store.users.find_with_password("maria")
    (session,) = await web.store.users.sessions("maria")
    assert found is not None
    written = repr(await entries(web))
    for secret in (token, NAMES["password"], found[1], session.hash, web.client.cookies["diagnoser_session"]):
        assert secret not in written
    assert "(hidden)" in written


async def test_what_is_refused_is_written_down_once_a_minute(web: Web) -> None:
    """With why; who is not known leaves nothing, or guesses would fill the log."""
    for _ in range(3):
        headers = {"authorization": "Bearer a-secret-for-readers"}
        assert (await web.client.post("/api/v1/plans/p/approve", json={}, headers=headers)).status_code == 403
        assert (await web.client.post("/api/v1/plans/p/approve", json={})).status_code == 404
        headers = {"authorization": "Bearer guess"}
        assert (await web.client.post("/api/v1/plans/p/approve", json={}, headers=headers)).status_code == 401
    found = [(entry.actor.name, entry.result, entry.detail, entry.object_id) for entry in await entries(web)]
    assert found == [
        ("the-admin", AuditResult.REFUSED, "404: there is no plan 'p'", "p"),
        (
            "the-reader",
            AuditResult.REFUSED,
            "403: This needs a token with the scope 'operate'; 'the-reader' has 'read'.",
            "p",
        ),
    ]


async def test_wrong_passwords_are_written_down(web: Web) -> None:
    """In the name that was tried, as refused; what the throttle refuses unseen is not."""
    for _ in range(12):
        await pressed("/login", b"name=maria&password=guess")(web)
    (entry,) = await entries(web)
    assert (entry.action, entry.actor.name, entry.result) == ("POST /login", "maria", AuditResult.REFUSED)


async def test_agents_that_ask_for_work_fill_no_log(web: Web) -> None:
    """What is handed out is written down, that there is nothing is not; nor are lines of logs and reads."""
    headers = {"authorization": "Bearer a-secret-for-agents"}
    claim = {"executor": "slurm-1", "cluster": "default"}
    assert (await web.client.post("/api/v1/plans/claim", json=claim, headers=headers)).status_code == 204
    assert (await web.client.post("/api/v1/evidence-requests/claim", json={}, headers=headers)).status_code == 200
    lines = {"content-type": "text/plain"}
    assert (await web.client.post("/api/v1/logs?job=j", content=b"a\n", headers=lines)).status_code == 204
    await web.client.get("/")
    assert await entries(web) == []
    await plans.planned(web)
    assert (await web.client.post("/api/v1/plans/claim", json=claim, headers=headers)).status_code == 200
    (entry,) = await entries(web)
    assert entry.actor == Actor("the-agent", ActorKind.AGENT, "127.0.0.1")


async def test_an_effect_that_cannot_be_written_down_does_not_happen(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are one transaction."""
    await waiting(web)

    async def fails(*_: object) -> None:
        raise Unavailable("the disk is full")

    monkeypatch.setattr("diagnoser.adapters.sql.plans.note_change", fails)
    assert (await web.client.post("/api/v1/plans/plan-j/approve", json={})).status_code == 503
    plan = await web.store.plans.find("plan-j")
    assert plan is not None and plan.state == "waiting"


async def test_calls_that_run_beside_each_other_keep_their_names(web: Web) -> None:
    """Each entry is in the name of its own request."""
    for job in ("a", "b"):
        await plans.planned(web, job, mode=Mode.APPROVE)
    people = {"a": "Bearer a-secret-for-admins", "b": "Bearer a-secret-for-readers"}
    await asyncio.gather(
        *(
            web.client.post(f"/api/v1/plans/plan-{job}/approve", json={}, headers={"authorization": secret})
            for job, secret in people.items()
        )
    )
    found = {entry.object_id: (entry.actor.name, entry.result) for entry in await entries(web)}
    assert found == {"plan-a": ("the-admin", "done"), "plan-b": ("the-reader", "refused")}


async def test_the_log_is_for_who_decides(web: Web) -> None:
    """On the page and over the API; the navigation leads to its neighbours."""
    for secret, status in (("a-secret-for-admins", 200), ("a-secret-for-readers", 403), ("a-secret-for-agents", 403)):
        headers = {"authorization": f"Bearer {secret}"}
        for path in ("/audit", "/api/v1/audit"):
            assert (await web.client.get(path, headers=headers)).status_code == status
        jobs = await web.client.get("/jobs", headers=headers)
        assert ('href="/alert-routing"' in jobs.text) == (status == 200)


async def test_the_log_is_narrowed_and_paged(web: Web) -> None:
    """By who, kind, action, object, result and time; each entry is on one page."""
    for number in range(5):
        await web.client.post("/api/v1/jobs", json={"id": f"job-{number}"})
    await web.client.post("/api/v1/plans/none/approve", json={})

    async def ids(**query: object) -> list[str]:
        answer = await web.client.get("/api/v1/audit", params=query)  # type: ignore[arg-type]
        assert answer.status_code == 200, answer.text
        return [item["object_id"] for item in answer.json()["items"]]

    assert await ids(object_kind="job") == [f"job-{number}" for number in (4, 3, 2, 1, 0)]
    assert await ids(result="refused") == await ids(action="approve") == ["none"]
    assert await ids(object_id="job-3") == ["job-3"]
    assert await ids(actor="nobody") == await ids(kind="person") == await ids(since=NOW + 1) == []
    assert len(await ids(until=NOW + 1, actor="the-admin", kind="token")) == 6
    seen, before = [], 0
    while True:
        page = (await web.client.get("/api/v1/audit", params={"limit": 2, "before": before})).json()
        seen += [item["object_id"] for item in page["items"]]
        if page["next"] is None:
            break
        before = page["next"]
    assert seen == ["none", *(f"job-{number}" for number in (4, 3, 2, 1, 0))]


async def test_the_page_shows_hostile_text_as_text(web: Web) -> None:
    """What jobs and people wrote is escaped, and its controls are made visible."""
    await waiting(web)
    await posted("/api/v1/plans/plan-j/approve", {"comment": HOSTILE})(web)
    page = (await web.client.get("/audit?within=24h&actor=the-admin")).text
    assert "<script>fetch" not in page and "&lt;script&gt;fetch" in page
    assert "\x1b" not in page and "\u202e" not in page
    assert "<del>&#34;waiting" in page or "<del>waiting</del>" in page


async def test_the_page_leads_to_objects_and_older_entries(web: Web) -> None:
    """A job has a page of its own; filters stay when the page is turned."""
    await web.client.post("/api/v1/jobs", json={"id": "j"})
    for number in range(101):
        await web.store.audit.add(AuditEntry(NOW, Actor("x", ActorKind.TOKEN), "POST /a", "job", str(number)))
    page = (await web.client.get("/audit?object_kind=job")).text
    assert 'href="/audit?object_kind=job&amp;before=' in page
    assert 'href="/jobs/100"' in page
    assert "Nothing matches" in (await web.client.get("/audit?actor=nobody")).text
