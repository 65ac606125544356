"""Questions in the threads of alerts: signed, of listed people, in our threads only, each answered once."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from slack_sdk.signature import SignatureVerifier

from diagnoser.channels.slack.access import SlackAccess
from diagnoser.channels.slack.questions import OF_USER
from diagnoser.channels.slack.sending import SlackBot, SlackMethods
from diagnoser.model import Job, Suspect
from diagnoser.model.alerts import Alert, AlertKind, AlertThread
from diagnoser.model.taxonomy import FailureType
from diagnoser.notifications.routing import AlertRouting, load
from diagnoser.ports import ModelAnswer, ToolCall
from tests.in_memory import ScriptedModel
from tests.serving import NOW, Web, plan_commands, save, serving, verdict
from tests.unit.test_inquiry import LINES, answer, failed, inquiries, said
from tests.unit.test_web_slack_actions import SECRET

ACCESS = SlackAccess(SECRET, frozenset({"U1"}))
OWNERS = """
version: 1
owners: {maria: ['slack:U024']}
rows:
  - {id: nlp, when: {labels: {team: [nlp]}}, to: ['slack:#nlp']}
  - {id: script, when: {categories: [script]}, to: ['{user}']}
  - {id: all, to: [slack]}
"""


async def post(web: Web, body: object, *, secret: str = SECRET, age: float = 0.0) -> httpx.Response:
    """An event as Slack's Events API sends it, signed ``age`` seconds ago."""
    content, time = json.dumps(body), str(int(NOW - age))
    signature = SignatureVerifier(secret).generate_signature(timestamp=time, body=content)
    headers = {"x-slack-request-timestamp": time, "x-slack-signature": signature or ""}
    return await web.client.post("/slack/events", content=content, headers=headers)


def event(text: object = "<@U0BOT> did the seam fail?", **changed: object) -> dict[str, Any]:
    mention = {
        "type": "app_mention",
        "user": "U1",
        "text": text,
        "ts": "1790000000.000200",
        "thread_ts": "1790000000.000100",
        "channel": "C1",
        "event_ts": "1790000000.000200",
    }
    return {"type": "event_callback", "team_id": "T1", "event_id": "Ev1", "event": mention | changed}


async def begin_thread(web: Web, monkeypatch: pytest.MonkeyPatch, receiver: str = "slack") -> str:
    """A failure, and the thread that its alert began as the bot writes it down. Returns the diagnosis."""

    async def call(methods: SlackMethods, method: str, body: dict[str, Any]) -> dict[str, Any]:
        return {"channel": "C1", "ts": "1790000000.000100"}

    monkeypatch.setattr(SlackMethods, "call", call)
    made = await failed(web)
    alert = Alert(AlertKind.FAILURE, "incident", "Rank 2 failed", "llm-7b", 1, diagnosis=made)
    handle = await SlackBot("xoxb-1", "C1", buttons=True, api="https://slack.com/api/").post(alert, None, "")
    await web.store.alerts.save_thread(AlertThread(receiver, "incident", handle, NOW))
    return made


@asynccontextmanager
async def thread(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *answers: ModelAnswer, receiver: str = "slack"
) -> AsyncIterator[tuple[Web, ScriptedModel]]:
    """A service with a thread and a model that says so."""
    table = load("alerts.yaml", OWNERS)
    commands = plan_commands(alerts=AlertRouting(table, ("slack",)))
    async with serving(folder) as bare:
        made, scripted = inquiries(bare, *answers)
        async with serving(folder, store=bare.store, inquiries=made, slack=ACCESS, commands=commands) as web:
            await begin_thread(web, monkeypatch, receiver)
            yield web, scripted


@pytest.fixture
async def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Web]:
    """Without a model."""
    async with serving(tmp_path, slack=ACCESS) as made:
        await begin_thread(made, monkeypatch)
        yield made


async def sent(web: Web) -> list[tuple[str, dict[str, Any]]]:
    bodies = [orjson.loads(stored.message.body) for stored in await web.store.outbox.messages()]
    return [(body["method"], body["message"]) for body in bodies]


async def test_an_answer_stands_in_the_thread_with_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model gets the words without the mention; nothing that it says can mention anybody or be a link."""
    words = "Rank 2 tore it <!channel> <https://evil.example|look>"
    async with thread(tmp_path, monkeypatch, said(words, "the seam is torn")) as (web, scripted):
        assert (await post(web, event("<@U0BOT> is 3 &lt; 4?"))).status_code == 200
        ((method, message),) = await sent(web)
    assert method == "chat.postMessage"
    assert (message["channel"], message["thread_ts"]) == ("C1", "1790000000.000100")
    text = json.dumps(message)
    assert LINES[2] in text and "changes nothing" in text
    assert "<!channel>" not in text and "evil.example" not in text
    assert scripted.asked[0].follow_up == "The engineer asks: is 3 < 4?"


async def test_without_a_model_the_log_is_searched(web: Web) -> None:
    """As on the page."""
    await post(web, event())
    ((_, message),) = await sent(web)
    assert "No language model is set up" in message["text"]
    assert any("the seam is torn" in json.dumps(block) for block in message["blocks"])


@pytest.mark.parametrize(
    "changed",
    [
        {"channel": "C2"},  # of another workspace, or of ours
        {"thread_ts": "1790000000.000101"},
        {"thread_ts": None},
        {"bot_id": "B1"},
        {"subtype": "message_changed"},
        {"type": "message"},  # people talk with each other
        {"type": "reaction_added"},
        {"user": "<!here>"},
        {"channel": 'C1","ts":"1'},
    ],
)
async def test_what_is_no_question_to_us_is_silence(web: Web, changed: dict[str, object]) -> None:
    """Slack hears that it came, and nobody is told anything."""
    assert (await post(web, event(**changed))).status_code == 200
    assert await sent(web) == []


async def test_a_message_to_the_bot_alone_needs_no_mention(web: Web) -> None:
    """In the thread of an alert that went to its owner."""
    await post(web, event("did the seam fail?", type="message", channel_type="im"))
    assert [method for method, _ in await sent(web)] == ["chat.postMessage"]


async def test_a_message_is_answered_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where Slack sends it again under another id, or somebody replays it."""
    async with thread(tmp_path, monkeypatch, said("No.", LINES[0], 1)) as (web, scripted):
        for number in range(3):
            assert (await post(web, event() | {"event_id": f"Ev{number}"})).status_code == 200
        assert len(await sent(web)) == len(scripted.asked) == 1


@pytest.mark.parametrize(("age", "secret"), [(301.0, SECRET), (-301.0, SECRET), (0.0, "forged")])
async def test_what_slack_did_not_sign_is_refused(web: Web, age: float, secret: str) -> None:
    """Or signed too long ago."""
    assert (await post(web, event(), age=age, secret=secret)).status_code == 401
    assert await sent(web) == []


async def test_who_is_not_listed_is_told_alone_and_once(web: Web) -> None:
    """Nothing is looked up for them."""
    for number in range(3):
        await post(web, event(user="U2", ts=f"1790000000.00030{number}"))
    ((method, message),) = await sent(web)
    assert (method, message["user"]) == ("chat.postEphemeral", "U2")
    assert "may not ask" in message["text"]


async def test_a_person_may_ask_so_often(web: Web) -> None:
    """Further questions are told to wait, once."""
    for number in range(OF_USER + 3):
        await post(web, event(ts=f"1790000000.{number:06d}"))
    methods = [method for method, _ in await sent(web)]
    assert (methods.count("chat.postMessage"), methods.count("chat.postEphemeral")) == (OF_USER, 1)


@pytest.mark.parametrize(("receiver", "is_seen"), [("slack", True), ("slack:U024", False), ("slack:#nlp", False)])
async def test_history_of_a_node_is_what_the_readers_may_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receiver: str, *, is_seen: bool
) -> None:
    """In the thread of operators all of it, in that of an owner or a team what failed of the owner's jobs."""
    call = ToolCall("node_history", {"node": "gpu-7"})
    answers = answer("", call), said("It did.", LINES[2])
    async with thread(tmp_path, monkeypatch, *answers, receiver=receiver) as (web, scripted):
        await web.store.jobs.register(Job("llm-7b", tenant="maria", nodes=("gpu-7",)), 1)
        await web.store.jobs.register(Job("other", tenant="noor", nodes=("gpu-7",)))
        await save(
            web.store,
            "other",
            verdict(FailureType.GPU_LOST, nodes=(Suspect("gpu-7", 0.9, "its kernel log"),)),
            created=NOW - 500,
        )
        await post(web, event("<@U0BOT> did this node fail before?"))
    (looked,) = scripted.asked[1].rounds[0].results
    assert ("GPU lost in other, attempt 1" in looked) == is_seen


async def test_slack_learns_that_the_address_is_ours(web: Web) -> None:
    """And an address without an app is no page."""
    asked = {
        "type": "url_verification",
        "token": "t",
        "challenge": "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYX",
    }
    assert (await post(web, asked)).text == asked["challenge"]
    assert (await post(web, asked | {"challenge": "<script>"})).status_code == 400
    assert (await post(web, ["no event"])).status_code == 400


async def test_without_a_slack_app_there_is_no_such_page(tmp_path: Path) -> None:
    """Nothing can be signed with an empty secret."""
    async with serving(tmp_path, slack=SlackAccess()) as web:
        assert (await post(web, event())).status_code == 404
