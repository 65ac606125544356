"""Alerts at real receivers: Alertmanager, Apprise, and a double of Slack that checks what Slack checks."""

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest

from diagnoser.adapters.http import create_client
from diagnoser.channels.alertmanager.sending import Alertmanager
from diagnoser.channels.apprise.sending import AppriseReceiver
from diagnoser.channels.slack.sending import SlackBot
from diagnoser.model import Incident
from diagnoser.model.alerts import Alert, AlertKind, AlertThread, Severity
from diagnoser.model.errors import BadInput, DeliveryError
from diagnoser.model.taxonomy import Category, FailureType
from diagnoser.notifications.alert import with_place
from tests.ports import free_port
from tests.receiver import Receiver, running

FAILURE = Alert(
    AlertKind.FAILURE,
    "0123456789abcdef",
    "llm-7b attempt 1 failed: gpu_lost (infrastructure)",
    "llm-7b",
    1,
    facts=(("Cause", "gpu_lost"), ("Rank", "3"), ("Node", "gpu-017")),
    place="Line 41 of stdout",
    line="NVRM: Xid (PCI:0000:4f:00): 79 <!channel>",
    action="cordon_and_resubmit",
    link="http://diagnoser.example/diagnoses/1",
    cluster="east",
    node="gpu-017",
    category="infrastructure",
    type="gpu_lost",
    severity=Severity.CRITICAL,
    diagnosis="d1",
)
RECOVERED = replace(FAILURE, kind=AlertKind.RECOVERED, title="llm-7b attempt 1: the plan was carried out")


class Slack(Receiver):
    """Slack's Web API, as far as alerts use it: tokens, channels, threads, its limits on blocks and its rate limits."""

    def __init__(self) -> None:
        super().__init__(_SlackMethods)
        self.posts: list[dict[str, Any]] = []
        self.updates: list[dict[str, Any]] = []
        self.failures: list[tuple[int, dict[str, Any], dict[str, str]]] = []
        self.refused: dict[str, str] = {}

    def answer(self, method: str, token: str, body: dict[str, Any]) -> tuple[int, dict[str, Any], dict[str, str]]:
        if self.failures:
            return self.failures.pop(0)
        if method in self.refused:
            return 200, {"ok": False, "error": self.refused[method]}, {}
        if token != "Bearer xoxb-1":
            return 200, {"ok": False, "error": "invalid_auth"}, {}
        if body.get("channel") not in ("#gpu-oncall", "#other", "C1"):
            return 200, {"ok": False, "error": "channel_not_found"}, {}
        fault = _block_fault(body)
        if fault:
            return 200, {"ok": False, "error": "invalid_blocks", "response_metadata": {"messages": [fault]}}, {}
        if method == "chat.update":
            self.updates.append(body)
            return 200, {"ok": True, "channel": "C1", "ts": body["ts"]}, {}
        self.posts.append(body)
        return 200, {"ok": True, "channel": "C1", "ts": f"17.{len(self.posts)}"}, {}


class _SlackMethods(BaseHTTPRequestHandler):
    server: Slack

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method = self.path.rpartition("/")[2]
        status, answer, headers = self.server.answer(method, self.headers["authorization"], body)
        payload = json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {**headers, "content-type": "application/json", "content-length": str(len(payload))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


def _block_fault(body: dict[str, Any]) -> str:
    """What Slack refuses (reference of Block Kit): numbers of blocks, fields and buttons, lengths of their texts."""
    blocks = body["blocks"]
    sections = [block["text"]["text"] for block in blocks if block["type"] == "section" and "text" in block]
    fields = [field for block in blocks for field in block.get("fields", ())]
    buttons = [element for block in blocks if block["type"] == "actions" for element in block["elements"]]
    faults = {
        "too many blocks": len(blocks) > 50,
        "header too long": any(len(b["text"]["text"]) > 150 for b in blocks if b["type"] == "header"),
        "section too long": any(not 1 <= len(text) <= 3000 for text in sections),
        "fields": len(fields) > 10 or any(len(field["text"]) > 2000 for field in fields),
        "buttons": any(len(b["value"]) > 2000 or len(b["text"]["text"]) > 75 for b in buttons),
        "button ids": len({b["action_id"] for b in buttons}) != len(buttons),
    }
    return next((name for name, is_fault in faults.items() if is_fault), "")


@pytest.fixture
def slack() -> Iterator[Slack]:
    server = Slack()
    with running(server):
        yield server


def bot(slack: Slack, channel: str = "#gpu-oncall", token: str = "xoxb-1") -> SlackBot:
    return SlackBot(token, channel, buttons=True, api=f"http://127.0.0.1:{slack.server_port}/api/")


async def test_an_incident_is_one_thread(slack: Slack) -> None:
    """The first alert opens it, later ones answer in it, and the first message always says how it stands."""
    chat = bot(slack)
    thread = None
    for alert in (FAILURE, replace(FAILURE, kind=AlertKind.DECISION, plan="p1", why="it waits"), RECOVERED):
        handle = await chat.post(alert, thread, "")
        thread = AlertThread("slack", FAILURE.incident, handle, 1.0)
    assert [(post["channel"], post.get("thread_ts")) for post in slack.posts] == [
        ("#gpu-oncall", None),
        ("C1", "17.1"),
        ("C1", "17.1"),
    ]
    states = [update["blocks"][1]["text"]["text"] for update in slack.updates]
    assert states[0].startswith("*2 alerts in this thread")
    assert states[1] == "*Recovered*"
    assert {update["ts"] for update in slack.updates} == {"17.1"}
    assert "<!channel>" not in json.dumps(slack.posts)
    values = [element["value"] for post in slack.posts[:2] for element in post["blocks"][-2]["elements"]]
    assert values == ["d1", FAILURE.incident, "p1", "p1", FAILURE.incident]


async def test_what_was_posted_is_not_posted_again_where_the_first_message_cannot_be_changed(slack: Slack) -> None:
    """Slack limits changes sooner than posts, and a person may have deleted the first message."""
    chat = bot(slack)
    thread = AlertThread("slack", FAILURE.incident, await chat.post(FAILURE, None, ""), 1.0)
    slack.refused["chat.update"] = "ratelimited"
    handle = await chat.post(replace(FAILURE, job="other"), thread, "")
    assert len(slack.posts) == 2
    assert json.loads(handle)["failed"] == ["llm-7b", "other"]


async def test_an_incident_has_recovered_when_all_its_jobs_have(slack: Slack) -> None:
    """The first message counts them; a job that fails again is open again."""
    chat, thread = bot(slack), None
    for alert in (
        FAILURE,
        replace(FAILURE, job="llm-70b"),
        RECOVERED,
        FAILURE,
        RECOVERED,
        replace(RECOVERED, job="llm-70b"),
    ):
        handle = await chat.post(alert, thread, "")
        thread = AlertThread("slack", FAILURE.incident, handle, 1.0)
    states = [update["blocks"][1]["text"]["text"] for update in slack.updates]
    assert [states[1], *states[3:]] == ["*Recovered 1 of 2 jobs*", "*Recovered 1 of 2 jobs*", "*Recovered*"]


async def test_a_thread_of_a_place_begins_with_the_place(slack: Slack) -> None:
    """Once a second node of a switch fails, the first message names the switch and not the node that failed first."""
    nodes = ("gpu-017", "gpu-018", "gpu-019")
    lost = Category.INFRASTRUCTURE, FailureType.GPU_LOST
    incident = Incident("i", "east", "", *lost, "", "d1", 1.0, 2.0, place="switch:leaf-07", nodes=nodes)
    chat, thread = bot(slack), None
    for alert in (FAILURE, with_place(FAILURE, incident), RECOVERED):
        thread = AlertThread("slack", "i", await chat.post(alert, thread, ""), 1.0)
    headers = [update["blocks"][0]["text"]["text"] for update in slack.updates]
    assert headers == ["Switch leaf-07: 3 nodes failed"] * 2
    assert slack.posts[1]["text"].startswith("Switch leaf-07: 3 nodes failed. llm-7b attempt 1")
    assert "gpu-017, gpu-018, gpu-019" in json.dumps(slack.posts[1]["blocks"])


async def test_a_place_of_the_route_wins(slack: Slack) -> None:
    """`slack:#other` tells another channel than the usual one."""
    await bot(slack).post(FAILURE, None, "#other")
    assert slack.posts[0]["channel"] == "#other"


async def test_slacks_rate_limit_is_kept(slack: Slack) -> None:
    """Another try is made, and not before Slack's own time."""
    slack.failures = [(429, {"ok": False, "error": "ratelimited"}, {"Retry-After": "7"})]
    with pytest.raises(DeliveryError) as error:
        await bot(slack).post(FAILURE, None, "")
    assert (error.value.permanent, error.value.retry_after) == (False, 7.0)


@pytest.mark.parametrize(
    ("channel", "token", "why"), [("#x", "xoxb-1", "channel_not_found"), ("C1", "no", "invalid_auth")]
)
async def test_what_slack_refuses_is_told_in_its_words(slack: Slack, channel: str, token: str, why: str) -> None:
    """And is not tried again: somebody has to mend it."""
    with pytest.raises(DeliveryError, match=why) as error:
        await bot(slack, channel, token).post(FAILURE, None, "")
    assert error.value.permanent


async def test_slack_away_is_tried_again() -> None:
    """Nobody listens at its address."""
    chat = SlackBot("xoxb-1", "C1", buttons=False, api=f"http://127.0.0.1:{free_port()}/api/")
    with pytest.raises(DeliveryError, match="network") as error:
        await chat.post(FAILURE, None, "")
    assert not error.value.permanent


@contextmanager
def alertmanager(folder: Path, settings: str = "route: {receiver: none}\nreceivers: [{name: none}]\n") -> Iterator[str]:
    """The real one, on loopback, without a cluster and, as a rule, without receivers."""
    port = free_port()
    config = folder / "alertmanager.yml"
    config.write_text(settings)
    process = subprocess.Popen(
        [
            "prometheus-alertmanager",
            f"--config.file={config}",
            f"--storage.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(600):
            if process.poll() is not None:
                raise AssertionError("Alertmanager has ended")
            try:
                if httpx.get(f"{url}/-/ready").is_success:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(120)


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with create_client() as opened:
        yield opened


async def firing(url: str) -> list[dict[str, Any]]:
    async with httpx.AsyncClient() as reader:
        listed: list[dict[str, Any]] = (await reader.get(f"{url}/api/v2/alerts")).json()
        return listed


@pytest.mark.skipif(
    shutil.which("prometheus-alertmanager") is None,
    reason="needs Alertmanager: apt-get install prometheus-alertmanager",
)
async def test_alertmanager_fires_and_resolves(tmp_path: Path, client: httpx.AsyncClient) -> None:
    """A failure and a decision fire as two alerts, a repeat changes nothing, and recovery ends both."""
    with alertmanager(tmp_path) as url:
        receiver = Alertmanager(url, client, time.time)
        thread = None
        decision = replace(FAILURE, kind=AlertKind.DECISION, title="the plan waits for your approval")
        for alert in (FAILURE, decision, FAILURE):
            handle = await receiver.post(alert, thread, "")
            thread = AlertThread("alertmanager", FAILURE.incident, handle, 1.0)
        alerts = await firing(url)
        assert sorted(alert["labels"]["alertname"] for alert in alerts) == ["RecoveryNeedsDecision", "TrainingFailure"]
        shown = next(alert for alert in alerts if alert["labels"]["alertname"] == "TrainingFailure")
        assert (
            shown["labels"] | {"severity": "critical", "category": "infrastructure", "node": "gpu-017"}
            == shown["labels"]
        )
        assert shown["annotations"]["summary"] == FAILURE.title
        assert "Xid" in shown["annotations"]["description"]
        assert shown["generatorURL"] == FAILURE.link
        await receiver.post(RECOVERED, thread, "")
        for _ in range(100):  # what has ended leaves the list a moment later
            if not await firing(url):
                break
            await asyncio.sleep(0.1)
        assert await firing(url) == []


async def test_apprise_tells_by_its_own_urls() -> None:
    """Title, text and kind arrive at a real receiver, and a receiver that fails is tried again."""
    with running(receiver := Receiver()):
        channel = AppriseReceiver("hook", f"json://127.0.0.1:{receiver.server_port}/alerts")
        await channel.post(FAILURE, None, "")
        ((_, body),) = receiver.requests
        told = json.loads(body)
        assert (told["title"], told["type"]) == (FAILURE.title, "failure")
        assert "Line 41 of stdout:\nNVRM: Xid" in told["message"]
        receiver.script = [(500, {})]
        with pytest.raises(DeliveryError, match="could not tell hook") as error:
            await channel.post(FAILURE, None, "")
        assert not error.value.permanent


def test_a_url_that_apprise_does_not_know_stops_the_start() -> None:
    """Without showing it: it may hold a secret."""
    with pytest.raises(BadInput, match="the URL of 'pager'") as error:
        AppriseReceiver("pager", "nonsense://s3cr3t")
    assert "s3cr3t" not in str(error.value)
