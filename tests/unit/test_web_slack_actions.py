"""Buttons in Slack: signed, by listed people only, and what they press is done in their name."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlencode

import httpx
import orjson
import pytest
from slack_sdk.signature import SignatureVerifier

from diagnoser.channels.slack.access import SlackAccess
from diagnoser.model import MessageKind, Mode, PlanState
from tests.serving import NOW, Web, save, serving, verdict
from tests.unit.test_web_plans import planned

SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
ANSWER = "https://hooks.slack.example/actions/T1/1/x"
ANN = {"id": "U1", "username": "ann"}


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    async with serving(tmp_path, slack=SlackAccess(SECRET, frozenset({"U1"}))) as made:
        yield made


async def press(
    web: Web, action: str, value: str, *, user: object = ANN, age: float = 0.0, secret: str = SECRET
) -> httpx.Response:
    """A press as Slack sends it, signed with a secret ``age`` seconds ago."""
    payload = {
        "type": "block_actions",
        "user": user,
        "response_url": ANSWER,
        "actions": [{"action_id": action, "value": value, "action_ts": "1.5", "type": "button"}],
    }
    body = urlencode({"payload": json.dumps(payload)})
    time = str(int(NOW - age))
    signature = SignatureVerifier(secret).generate_signature(timestamp=time, body=body)
    headers = {
        "x-slack-request-timestamp": time,
        "x-slack-signature": signature or "",
        "content-type": "application/x-www-form-urlencoded",
    }
    return await web.client.post("/slack/actions", content=body, headers=headers)


async def told(web: Web) -> list[str]:
    """What was put into the outbox for the person who pressed."""
    answers = [orjson.loads(stored.message.body) for stored in await web.store.outbox.messages()]
    assert all(answer["response_url"] == ANSWER for answer in answers)
    assert all(answer["message"]["response_type"] == "ephemeral" for answer in answers)
    return [answer["message"]["text"] for answer in answers]


async def test_a_plan_is_approved_from_slack(web: Web) -> None:
    """In the name of whoever pressed; the person alone is told so, once, also when Slack sends the press again."""
    await planned(web, mode=Mode.APPROVE)
    assert (await press(web, "approve_plan", "plan-j")).status_code == 200
    plan = await web.store.plans.find("plan-j")
    assert plan is not None
    assert (plan.state, plan.history[-1].by) == (PlanState.SENT, "slack:ann")
    await press(web, "approve_plan", "plan-j")
    assert await told(web) == ["Approved: the plan for j goes to the cluster."]
    (message,) = await web.store.outbox.messages()
    assert message.message.kind is MessageKind.ANSWER


async def test_a_plan_is_refused_from_slack(web: Web) -> None:
    """The other button says no, and pressing it twice says that it has been refused."""
    await planned(web, mode=Mode.APPROVE)
    await press(web, "refuse_plan", "plan-j")
    plan = await web.store.plans.find("plan-j")
    assert plan is not None and plan.state is PlanState.REFUSED


async def test_a_verdict_is_confirmed_from_slack(web: Web) -> None:
    """It becomes a confirmed incident, as on the page."""
    record = await save(web.store, "j", verdict())
    await press(web, "confirm_diagnosis", record.id)
    stored = await web.store.diagnoses.find(record.id)
    assert stored is not None
    assert [(said.verdict.value, said.by) for said in stored.feedback] == [("confirmed", "slack:ann")]


async def test_an_incident_is_silenced_from_slack(web: Web) -> None:
    """For a day, and history knows by whom."""
    await press(web, "silence_incident", "0123456789abcdef")
    silence = await web.store.alerts.silence("0123456789abcdef")
    assert silence is not None
    assert (silence.until, silence.by) == (NOW + 86_400, "slack:ann")


async def test_others_may_not_decide(web: Web) -> None:
    """Whoever is not listed is told who could change that; nothing happens."""
    await planned(web, mode=Mode.APPROVE)
    await press(web, "approve_plan", "plan-j", user={"id": "U2", "username": "ann"})
    plan = await web.store.plans.find("plan-j")
    assert plan is not None and plan.state is PlanState.WAITING
    (text,) = await told(web)
    assert "U2" in text and "may not decide" in text


@pytest.mark.parametrize(("age", "secret"), [(301.0, SECRET), (-301.0, SECRET), (0.0, "another secret")])
async def test_what_slack_did_not_sign_is_refused(web: Web, age: float, secret: str) -> None:
    """Also what it signed too long ago, so that nobody can press again for somebody else."""
    await planned(web, mode=Mode.APPROVE)
    assert (await press(web, "approve_plan", "plan-j", age=age, secret=secret)).status_code == 401
    plan = await web.store.plans.find("plan-j")
    assert plan is not None and plan.state is PlanState.WAITING


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-slack-request-timestamp": "soon", "x-slack-signature": "v0=1"},
        {"x-slack-request-timestamp": "1", "x-slack-signature": "\xff"},
    ],
)
async def test_unsigned_requests_are_refused(web: Web, headers: dict[str, str]) -> None:
    """Whatever is wrong with their signature; and bytes that are no text."""
    encoded = {name: value.encode("latin-1") for name, value in headers.items()}
    answer = await web.client.post("/slack/actions", content=b"payload=\xff", headers=encoded)  # type: ignore[arg-type]
    assert answer.status_code == 401


async def test_what_is_no_press_is_bad_input(web: Web) -> None:
    """Signed, but with another shape: ids that are none of ours included."""
    assert (await press(web, "approve_plan", "plan j; --")).status_code == 400
    assert (await press(web, "approve_plan", "plan-j", user={"id": "<!here>"})).status_code == 400


async def test_without_a_slack_app_there_is_no_such_page(tmp_path: Path) -> None:
    """Nothing can be signed with an empty secret."""
    async with serving(tmp_path) as web:
        assert (await press(web, "approve_plan", "plan-j")).status_code == 404
