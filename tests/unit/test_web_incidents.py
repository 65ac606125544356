"""The first page and the page of an incident, and the routes behind their buttons."""

from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import pytest

from diagnoser.adapters.sql import codec
from diagnoser.adapters.sql.tables import breakers, plans
from diagnoser.model import (
    AttemptKey,
    BreakerState,
    Job,
    LineBlock,
    Mode,
    NodeEventKind,
    Plan,
    PlanState,
    RootCause,
    Stream,
)
from diagnoser.model.access import Credential, Scope, StoredToken, hash_of
from diagnoser.model.alerts import AlertKind, Severity, decode
from diagnoser.model.errors import DiagnoserError
from diagnoser.model.queries import IncidentFilter
from diagnoser.model.taxonomy import FailureType
from tests.serving import DONE, ECC, HOSTILE, NOW, OOM, UNSURE, Web, fill, save, serving, store_log, verdict
from tests.unit.test_web_nodes import happens
from tests.unit.test_web_plans import planned

FORM = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}
PEOPLE = (
    Credential("ida", Scope.OPERATE),
    Credential("west", Scope.OPERATE, cluster="west"),
    Credential("acme", Scope.OPERATE, tenant="acme"),
    Credential("eye", Scope.READ),
)


async def let_in(web: Web) -> None:
    """Each person of ``PEOPLE`` has a token."""
    for person in PEOPLE:
        await web.store.tokens.add(StoredToken(person, hash_of(f"secret-of-{person.name}")))


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer secret-of-{name}"}


async def the_id(web: Web) -> str:
    (incident,) = await web.store.incidents.page(IncidentFilter(), "", 10)
    return incident.id


async def insert_plan(web: Web, plan: Plan) -> None:
    async with web.store.db.writing() as connection:
        await connection.execute(plans.insert(), codec.plan_row(plan))


async def trip(web: Web, state: BreakerState) -> None:
    async with web.store.db.writing() as connection:
        await connection.execute(breakers.insert(), codec.breaker_row(state, state.scope))


async def test_the_first_page_shows_incidents_and_no_successes(tmp_path: Path) -> None:
    """Each with cause, place, line, counts and state; what ended well is one sentence with a link."""
    async with serving(tmp_path) as web:
        await save(web.store, "a", ECC, created=NOW - 200)
        await save(web.store, "b", ECC, created=NOW - 100)
        await save(web.store, "good", DONE, created=NOW - 50)
        page = (await web.client.get("/")).text
    row = page[page.index("<tbody>") : page.index("</tbody>")]
    for shown in (
        "hgx-04: ECC error",
        "infrastructure",
        "Contained ECC error",
        "in 2 jobs",
        ">open</span>",
        "1\u00a0min ago",
    ):
        assert shown in row
    assert row.count("<tr ") == 1
    assert "1 run ended without a failure" in page
    assert 'href="/diagnoses?category=none&amp;within=24h"' in page
    assert 'href="/" aria-current="page">Now' in page


async def test_the_tiles_say_what_a_person_has_to_do(tmp_path: Path) -> None:
    """Waiting plans, a tripped breaker, and parts that fail, each with a link to where it is dealt with."""

    async def fails() -> str:
        raise DiagnoserError("no answer from the model's server")

    async with serving(tmp_path, optional={"model": fails}) as web:
        quiet = (await web.client.get("/")).text
        record = await save(web.store, "a", ECC, plan=True)
        assert record.plan is not None
        waiting = replace(record.plan, id="w", key="w", state=PlanState.WAITING, mode=Mode.APPROVE)
        await insert_plan(web, waiting)
        await trip(web, BreakerState("east", True, NOW, "too many"))
        page = (await web.client.get("/")).text
    tiles = page[page.index('<ul class="tiles">') : page.index("</ul>")]
    assert "tripped" not in quiet.lower()
    for shown in (
        "Tripped",
        '>1</b> <span class="faint">plan<',
        "Fails",
        "no answer from the model",
        'href="/recovery"',
    ):
        assert shown in tiles


async def test_before_the_first_log_the_page_tells_how_to_begin(tmp_path: Path) -> None:
    """With the requests that lead to a diagnosis; once something runs, that nothing is failing."""
    async with serving(tmp_path) as web:
        first = (await web.client.get("/")).text
        await save(web.store, "good", DONE)
        later = (await web.client.get("/")).text
    assert "http://diagnoser.test/api/v1/logs?job=my-job" in first
    assert "Nothing is failing" in later


async def test_an_incident_is_acknowledged_and_resolved_by_buttons(tmp_path: Path) -> None:
    """In the name of the login; each leads back to the page it was pressed on; a resolved one leaves the list."""
    async with serving(tmp_path) as web:
        await save(web.store, "a", OOM)
        mine = await the_id(web)
        pressed = await web.client.post(
            f"/incidents/{mine}/decide", content="decision=acknowledge&page=now", headers=FORM
        )
        assert (pressed.status_code, pressed.headers["location"]) == (303, "/")
        acknowledged = (await web.client.get("/?state=acknowledged")).text
        done = await web.client.post(
            f"/incidents/{mine}/decide", content="decision=resolve&comment=smaller+batch", headers=FORM
        )
        page = (await web.client.get(done.headers["location"])).text
        left = (await web.client.get("/")).text
        resolved = (await web.client.get("/?state=resolved")).text
    assert f'id="i-{mine}"' in acknowledged
    assert "anonymous" in acknowledged
    assert "smaller batch" in page
    assert ">Reopen</button>" in page
    assert f'id="i-{mine}"' not in left
    assert f'id="i-{mine}"' in resolved


@pytest.mark.parametrize("decision", ["", "delete", "Acknowledge"])
async def test_a_decision_that_nobody_knows_is_refused(tmp_path: Path, decision: str) -> None:
    """And nothing changes."""
    async with serving(tmp_path) as web:
        await save(web.store, "a", OOM)
        mine = await the_id(web)
        answer = await web.client.post(f"/incidents/{mine}/decide", content=f"decision={decision}", headers=FORM)
        assert answer.status_code == 400
        stored = await web.store.incidents.find(mine)
    assert stored is not None and not stored.history


async def test_programs_do_the_same(tmp_path: Path) -> None:
    """Who acts is whose token it is; an assignee may be anybody."""
    async with serving(tmp_path) as web:
        await let_in(web)
        await save(web.store, "a", OOM)
        listed = (await web.client.get("/api/v1/incidents", headers=bearer("eye"))).json()
        (incident,) = listed["items"]
        path, ida = f"/api/v1/incidents/{incident['id']}", bearer("ida")
        assert (incident["state"], incident["failures"], incident["jobs"], listed["next"]) == ("open", 1, 1, None)
        mine = (await web.client.post(f"{path}/assign", json={}, headers=ida)).json()
        given = (await web.client.post(f"{path}/assign", json={"assignee": "bob"}, headers=ida)).json()
        seen = (await web.client.post(f"{path}/acknowledge", json={"comment": "known"}, headers=ida)).json()
        done = (await web.client.post(f"{path}/resolve", json={}, headers=ida)).json()
        stale = await web.client.post(f"{path}/acknowledge", json={}, headers=ida)
        back = (await web.client.post(f"{path}/reopen", json={}, headers=ida)).json()
        stored = (await web.client.get(path, headers=bearer("eye"))).json()
    assert [answer["assignee"] for answer in (mine, given, seen)] == ["ida", "bob", "bob"]
    assert [answer["state"] for answer in (seen, done, back)] == ["acknowledged", "resolved", "open"]
    assert stale.status_code == 400, "a page from before it was resolved does not open it again"
    assert stored == back
    assert [change["by"] for change in stored["history"]] == ["ida"] * 5


@pytest.mark.parametrize(
    ("name", "tenant", "status"), [("west", "acme", 404), ("acme", "", 404), ("acme", "acme", 403)]
)
async def test_who_belongs_elsewhere_changes_nothing(tmp_path: Path, name: str, tenant: str, status: int) -> None:
    """For a credential of another cluster or tenant there is no such incident; one of a single tenant that has failures
    in it sees them and decides nothing: others may have some, too."""
    async with serving(tmp_path) as web:
        await let_in(web)
        await web.store.jobs.register(Job("a", tenant=tenant, created=NOW))
        await save(web.store, "a", OOM)
        answer = await web.client.post(f"/api/v1/incidents/{await the_id(web)}/resolve", json={}, headers=bearer(name))
    assert answer.status_code == status


async def test_who_may_only_look_sees_no_buttons(tmp_path: Path) -> None:
    """A token with the scope read sees the incident, not what could be done with it."""
    async with serving(tmp_path) as web:
        await let_in(web)
        await save(web.store, "a", OOM)
        looking = await web.client.get("/", headers=bearer("eye"))
        deciding = await web.client.get("/", headers=bearer("ida"))
    assert "Acknowledge</button>" not in looking.text
    assert "Acknowledge</button>" in deciding.text


async def test_an_incident_lists_its_failures_and_a_diagnosis_its_incident(tmp_path: Path) -> None:
    """From one to the other and back."""
    async with serving(tmp_path) as web:
        records = [await save(web.store, f"job-{number}", OOM, created=NOW - number) for number in range(3)]
        mine = await the_id(web)
        incident = (await web.client.get(f"/incidents/{mine}")).text
        diagnosis = (await web.client.get(f"/diagnoses/{records[0].id}")).text
    assert all(f'href="/diagnoses/{record.id}"' in incident for record in records)
    assert "3 failures in 3 jobs" in incident
    assert f'href="/incidents/{mine}"' in diagnosis


async def test_log_text_stays_text(tmp_path: Path) -> None:
    """On the first page and on that of the incident."""
    async with serving(tmp_path) as web:
        await save(web.store, "a", UNSURE)
        mine = await the_id(web)
        pages = [(await web.client.get(path)).text for path in ("/", f"/incidents/{mine}")]
    for page in pages:
        assert "<script>fetch" not in page
        assert "&lt;script&gt;fetch" in page
        assert HOSTILE not in page
        assert "\x1b" not in page


async def test_pages_of_incidents_keep_the_state(tmp_path: Path) -> None:
    """The address of the next page says which ones are listed."""
    async with serving(tmp_path) as web:
        await fill(web.store)
        first = (await web.client.get("/api/v1/incidents?limit=2")).json()
        second = (await web.client.get(f"/api/v1/incidents?limit=2&cursor={first['next']}")).json()
        page = (await web.client.get("/?state=open&limit=2")).text
    assert [len(first["items"]), len(second["items"]), second["next"]] == [2, 2, None]
    assert "/?state=open&amp;cursor=" in page


@pytest.mark.parametrize("path", ["/incidents/0", "/api/v1/incidents/0"])
async def test_an_incident_that_is_not_there(tmp_path: Path, path: str) -> None:
    """Is told as such."""
    async with serving(tmp_path) as web:
        assert (await web.client.get(path)).status_code == 404


async def test_an_incident_shows_when_its_latest_failure_happened(tmp_path: Path) -> None:
    """On the time axis of that attempt, with the line that is the cause; without a log there is no axis."""
    lines = (
        b"2026-01-01 10:00:00 step 1 loss 2.0\n2026-01-01 10:04:00 step 2 loss 1.0\n2026-01-01 10:05:00 ERROR seam\n"
    )
    async with serving(tmp_path) as web:
        root = RootCause(3, "2026-01-01 10:05:00 ERROR seam")
        await save(web.store, "a", verdict(FailureType.VALUE_ERROR, root_cause=root), created=NOW - 10)
        without = (await web.client.get(f"/incidents/{await the_id(web)}")).text
        await store_log(web.store, AttemptKey("b"), LineBlock(Stream(), lines))
        await save(web.store, "b", verdict(FailureType.VALUE_ERROR, root_cause=root), created=NOW + 60)
        page = (await web.client.get(f"/incidents/{await the_id(web)}")).text
        older = (await web.client.get(f"/incidents/{await the_id(web)}?after=0")).text
    assert 'id="axis"' not in without and 'id="axis"' not in older
    assert page.index("Latest failure") < page.index("All failures")
    axis = page[page.index('id="axis"') : page.index("All failures")]
    assert 'href="/jobs/b"' in axis and 'class="rootline"' in axis and 'aria-label="Loss from 2 to 1' in axis


async def press(web: Web, id: str, **fields: str) -> int:
    answer = await web.client.post(f"/incidents/{id}/decide", content=urlencode(fields).encode(), headers=FORM)
    return answer.status_code


async def test_what_costs_most_comes_first_and_script_errors_fold(tmp_path: Path) -> None:
    """The page says why; two script errors of two users are one line; by time everything stands as it came."""
    async with serving(tmp_path) as web:
        await save(web.store, "a", ECC, created=NOW - 900)
        await save(web.store, "b", ECC, created=NOW - 800)
        for number, user in enumerate(("ann", "bob")):
            await web.store.jobs.register(Job(f"s{number}", tenant=user, created=NOW - 9_000))
            root = RootCause(9, f"KeyError: 'field {'x' * number}'")
            await save(web.store, f"s{number}", verdict(FailureType.KEY_ERROR, root_cause=root), created=NOW - number)
        page = (await web.client.get("/")).text
        by_time = (await web.client.get("/?sort=-last_seen")).text
    assert page.index("hgx-04: ECC error") < page.index("2 script errors of 2 users, each of which happened once")
    assert "it happened 2 times" in page and "the next job on hgx-04 may fail as well" in page
    assert by_time.index("Key error") < by_time.index("hgx-04: ECC error")
    assert "script errors of" not in by_time


async def test_an_incident_is_given_away_escalated_and_muted(tmp_path: Path) -> None:
    """Each is in its history and in the audit log; muted it stands under its own tab only, and in no badge."""
    async with serving(tmp_path) as web:
        await save(web.store, "a", ECC)
        mine = await the_id(web)
        assert await press(web, mine, decision="assign", assignee="bob", comment="your rack") == 303
        assert await press(web, mine, decision="escalate", comment="all of rack 7") == 303
        raised = (await web.client.get("/")).text
        assert await press(web, mine, decision="mute", **{"for": "forever"}) == 400
        assert await press(web, mine, decision="mute", comment="spare ordered", **{"for": "1 day"}) == 303
        listed = {path: f'id="i-{mine}"' in (await web.client.get(path)).text for path in ("/", "/?muted=true")}
        page = (await web.client.get(f"/incidents/{mine}")).text
        audited = (await web.client.get("/api/v1/audit?object_kind=incident")).json()["items"]
        assert (await web.store.diagnoses.attention(NOW + 1)).incidents == 0
        assert (await web.store.diagnoses.attention(NOW + 90_000)).incidents == 1
        silence = await web.store.alerts.silence(mine)
        assert await press(web, mine, decision="unmute") == 303
        assert f'id="i-{mine}"' in (await web.client.get("/")).text
    assert "escalated</span>" in raised and "bob" in raised and "it was escalated" in raised
    assert listed == {"/": False, "/?muted=true": True}
    for told in ("assigned to bob: your rack", "escalated: all of rack 7", "muted for 24 h: spare ordered"):
        assert told in page
    assert len(audited) == 3
    assert silence is not None and (silence.until, silence.by) == (NOW + 86_400, "anonymous")


async def test_an_escalation_alerts_people_once(tmp_path: Path) -> None:
    """In words, with who and why; pressing it again alerts nobody, and neither does any other decision."""
    async with serving(tmp_path) as web:
        await save(web.store, "a", ECC)
        mine = await the_id(web)
        for decision in ("assign", "escalate", "escalate", "acknowledge"):
            assert await press(web, mine, decision=decision, comment="all of rack 7") == 303
        (sent,) = await web.store.outbox.messages()
        alert = decode(sent.message.body)
    assert (sent.message.target, alert.kind, alert.severity) == ("slack", AlertKind.ESCALATION, Severity.CRITICAL)
    assert alert.title == "anonymous escalated an incident: ECC error on hgx-04, 1 failure"
    assert (alert.incident, alert.why) == (mine, "escalated: all of rack 7")


async def test_an_incident_approves_all_plans_of_its_node_at_once(tmp_path: Path) -> None:
    """And then shows what becomes of each; a plan says that a node is out instead of taking it out again."""
    async with serving(tmp_path) as web:
        for job in ("a", "b"):
            await planned(web, job, Mode.APPROVE)
        mine = await the_id(web)
        page = (await web.client.get(f"/incidents/{mine}")).text
        body = urlencode({"decision": "approve", "incident": mine, "plan": ["plan-a", "plan-b"]}, doseq=True)
        pressed = await web.client.post("/recovery/decide", content=body, headers=FORM)
        after = (await web.client.get(pressed.headers["location"])).text
        await planned(web, "c", Mode.APPROVE)
        await happens(web, "hgx-04", NodeEventKind.CORDONED, NOW, "bad fan")
        queue = (await web.client.get("/recovery")).text
    assert "Approve all 2" in page and page.count('name="plan"') == 2 and "Takes hgx-04 out of service" in page
    assert pressed.headers["location"].startswith(f"/incidents/{mine}?done=")
    assert after.count('<ol class="strip"') == 2 and after.count("<b>approved</b>") == 2
    assert "out already" in queue and "Takes hgx-04 out" not in queue
