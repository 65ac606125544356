"""No secret of a log leaves the service, on whichever way; and no way out is missing in the list."""

import ast
import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from diagnoser.adapters.files import bundled, text
from diagnoser.adapters.openai import OpenAIEmbedder, OpenAIModel
from diagnoser.adapters.webhook import RecoveryWebhook
from diagnoser.channels.alertmanager.sending import Alertmanager
from diagnoser.channels.apprise.sending import AppriseReceiver
from diagnoser.channels.slack import buttons, questions
from diagnoser.channels.slack.access import SlackAccess
from diagnoser.channels.slack.message import SILENCE
from diagnoser.channels.slack.sending import SlackWebhook
from diagnoser.failure_agent.inquiry import Reply
from diagnoser.integrations.assistant_text import fenced
from diagnoser.model import (
    Attempt,
    AttemptKey,
    Diagnosis,
    Event,
    EventKind,
    Job,
    Line,
    MessageKind,
    OutboxMessage,
    PlanChange,
    PlanState,
    RootCause,
    Stream,
)
from diagnoser.model.alerts import Alert, decode
from diagnoser.model.errors import BadInput, ModelFailed, NotFound
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.model.work import DiagnosisRecord
from diagnoser.notifications import routing
from diagnoser.notifications.routing import AlertRouting
from diagnoser.observability import logging
from diagnoser.observability.tracing import TraceStep
from diagnoser.planning.planner import DecisionPlanner, verdict_alert
from diagnoser.ports import AlertChannel, ModelRequest, ToolCall, ToolRound
from diagnoser.redaction.redact import Redactor, redact
from diagnoser.web.api import exports
from diagnoser.web.api.schemas import DiagnosisPage, DiagnosisShape
from diagnoser.web.http import problems
from diagnoser.wording.post_mortem import FailureStory, failure_post_mortem
from tests.contract.records import plan
from tests.exits import EXITS, NO_EXIT
from tests.receiver import Receiver, running
from tests.secret_formats import is_told, secrets

ROOT = Path(__file__).resolve().parents[2] / "diagnoser"
NETWORK = {
    *("httpx", "httpx2", "openai", "redis", "aiokafka", "confluent_kafka", "boto3", "botocore", "obstore"),
    *("apprise", "slack_sdk", "opentelemetry", "mcp", "socket", "smtplib", "kubernetes_asyncio", "standardwebhooks"),
    *("http.client", "urllib.request", "aiohttp", "requests", "websockets", "minio"),
}
SECRETS = tuple(secrets(7))
KEY = "whsec_" + "c2VjcmV0LWZvci10ZXN0cy1vbmx5LW5vdC1yZWFs"
NOW = 1_700_000_000.0


def diagnosis(line: str) -> Diagnosis:
    """A verdict with the line wherever text of a job can stand."""
    root = RootCause(3, line, source=line, node=line, gpu=line)
    return Diagnosis(
        outcome=Outcome.FAILED,
        category=Category.SCRIPT,
        type=FailureType.RUNTIME_ERROR,
        confidence=0.9,
        decided_by=line,
        root_cause=root,
        mitigation=line,
        notes=(line,),
        needs_review=line,
    )


def record(line: str) -> DiagnosisRecord:
    return DiagnosisRecord("01J", AttemptKey("job-1"), 1, NOW, True, diagnosis(line))


@cache
def planner() -> DecisionPlanner:
    table = routing.load("alerts.yaml", text(bundled("rules") / "alerts.yaml"))
    return DecisionPlanner(None, str, None, True, AlertRouting(table, ("r",)), "", Redactor(addresses=True))  # type: ignore[arg-type]


@cache
def alerts() -> list[Alert]:
    """Of a verdict and of a plan, for each secret, as they stand in the outbox."""
    made: list[OutboxMessage] = []
    for secret in SECRETS:
        name = secret.text if secret.glued else "job-1"
        job = Job(name, cluster=secret.text, labels={"env": secret.text})
        made += planner()._messages(verdict_alert(record(secret.text), job, "", planner().redact), secret.name, NOW)
        change = PlanChange(NOW, PlanState.NOT_REACHED, "agent", secret.text)
        made += planner().alert_plan(replace(plan(), history=(change,), nodes=(secret.text,), job=name), NOW)
    assert made
    return [decode(message.body) for message in made]


async def through(channel: Callable[[str, httpx.AsyncClient], AlertChannel]) -> str:
    """What a receiver got of all alerts."""
    server = Receiver()
    with running(server):
        async with httpx.AsyncClient() as client:
            sender = channel(server.url, client)
            for alert in alerts():
                await sender.post(alert, None, "")
    return received(server)


def received(server: Receiver) -> str:
    assert server.requests
    return "\n".join(json.dumps(json.loads(body), ensure_ascii=False) for _, body in server.requests)


async def webhook() -> str:
    server = Receiver()
    with running(server):
        async with httpx.AsyncClient() as client:
            sender = RecoveryWebhook(server.url, KEY, client, lambda: NOW, allow_private=True)
            for secret in SECRETS:
                sent = replace(plan(), state=PlanState.SENT, job=secret.text, nodes=(secret.text,), reason=secret.text)
                for message in planner().announce(sent, record(secret.text)):
                    await sender.send(message)
    return received(server)


async def slack() -> str:
    return await through(lambda url, client: SlackWebhook(url, client, lambda: NOW, allow_private=True))


async def alertmanager() -> str:
    return await through(lambda url, client: Alertmanager(url, client, lambda: NOW))


async def apprise() -> str:
    return await through(lambda url, client: AppriseReceiver("r", url.replace("http://", "json://")))


async def answer_in_slack() -> str:
    def fail(*given: object) -> None:
        raise BadInput(lines())

    core = SimpleNamespace(redact=redact)
    user = SimpleNamespace(id="U", username="u")
    core.store = SimpleNamespace(alerts=SimpleNamespace(save_silence=fail))
    core.clock = lambda: NOW
    press = SimpleNamespace(action_id=SILENCE, value="i")
    access, pressed = SlackAccess("", frozenset({"U"})), SimpleNamespace(user=user, actions=[press])
    return await buttons._decide(SimpleNamespace(core=core), None, access, pressed)  # type: ignore[arg-type]


async def question_in_slack() -> str:
    """What a search finds, and what the model says."""
    store, sent = SimpleNamespace(), list[str]()

    async def add(message: OutboxMessage) -> None:
        sent.append(message.body.decode())

    store.outbox = SimpleNamespace(add=add)
    core = SimpleNamespace(redact=redact, store=store, clock=lambda: NOW)
    plans = SimpleNamespace(
        commands=SimpleNamespace(planner=SimpleNamespace(base_url="https://d.example")),
        outbox=SimpleNamespace(notify=lambda: None),
    )
    services = SimpleNamespace(core=core, plans=plans)
    scope = SimpleNamespace(
        core=core, logs=SimpleNamespace(context=None, indexes=SimpleNamespace(load_or_begin=missing))
    )
    message = SimpleNamespace(channel="C1", thread_ts="1.1", ts="1.2", question="?")
    for secret in SECRETS:
        line = Line(Stream(secret.text), 1, secret.text, secret.text)

        async def answer(*given: object, text: str = secret.text, line: Line = line) -> Reply:
            return Reply(text, (line,), ())

        services.inquiries = SimpleNamespace(answer=answer)
        await questions._answer(services, message, scope, record(secret.text))  # type: ignore[arg-type]
    return "\n".join(sent)


async def missing(*given: object) -> object:
    raise NotFound("the log")


async def model() -> str:
    server = Receiver()
    with running(server):
        asked = OpenAIModel(server.url, "m", "", 30.0)
        request = ModelRequest(system="", user=lines(), schema={}, temperature=0.0, max_tokens=10)
        with suppress(ModelFailed):
            looked = ToolRound((ToolCall("search_log", {"pattern": lines()}),), (lines(),))
            tools = replace(request, rounds=(looked,), follow_up=lines(), repair=(lines(), lines()))
            await asked.ask(tools)
        await asked.close()
    return received(server)


async def embeddings() -> str:
    server = Receiver()
    with running(server):
        embedder = OpenAIEmbedder(server.url, "m", "", 30.0, redact)
        with suppress(ModelFailed):
            await embedder.embed([secret.text for secret in SECRETS])
        await embedder.close()
    return received(server)


async def assistant() -> str:
    """Through the one function by which each tool answers; the SDK that serves them lives in another environment."""
    tree = ast.parse(_file("integrations.mcp_server").read_text("utf-8"))
    reader = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Reader")
    tools = [node for node in reader.body if isinstance(node, ast.AsyncFunctionDef)]
    ends = [node for tool in tools for node in ast.walk(tool) if isinstance(node, ast.Return)]
    assert len(tools) >= 6
    assert all(ast.unparse(end).startswith("return self._answer(") for end in ends)
    rows = [{"text": secret.text, secret.text: [secret.text]} for secret in SECRETS]
    settings = (re.fullmatch(r"(?:export )?(\w+)=(\S+)", secret.text) for secret in SECRETS)
    env = [{setting[1]: setting[2]} for setting in settings if setting]  # as JSON carries them: apart from the name
    assert len(env) > 15
    return "\n".join(fenced({"lines": [row]}, "DATA-1", redact) for row in (*rows, *env))


async def traces() -> str:
    from diagnoser.adapters.otlp import OtlpTraces

    spans: list[Any] = []
    noted = OtlpTraces("http://127.0.0.1:9", "1", "all", lambda: NOW)
    noted._spans.shutdown()  # type: ignore[no-untyped-call]
    noted._spans = SimpleNamespace(on_end=spans.append)  # type: ignore[assignment]
    for secret in SECRETS:
        noted.note(TraceStep.DELIVER, AttemptKey(secret.text), NOW, error=secret.text, target=secret.text)
    return "\n".join(f"{dict(span.attributes)} {span.status.description}" for span in spans)


async def own_log() -> str:
    import io

    import structlog

    written, stream = io.StringIO(), sys.stderr
    sys.stderr = written
    try:
        logging.set_up(as_json=True, level="info")
        for secret in SECRETS:
            try:
                raise ValueError(secret.text)
            except ValueError as error:
                structlog.get_logger().bind().warning("x", why=secret.text, nodes=[secret.text], exc_info=error)
    finally:
        sys.stderr = stream
        structlog.reset_defaults()
    return "\n".join(json.dumps(json.loads(line), ensure_ascii=False) for line in written.getvalue().splitlines())


async def downloads() -> str:
    rows = [DiagnosisShape.from_record(record(secret.text), "") for secret in SECRETS]

    async def read(query: exports.DiagnosisExport) -> DiagnosisPage:
        return DiagnosisPage(items=rows, next=None)

    files, every = [], exports.DiagnosisExport()
    for kind in exports.ExportFormat:
        answer = await exports._file("diagnoses", kind, exports._DIAGNOSES, read, every, redact)
        files.append("".join([str(part) async for part in _iterated(answer.body_iterator)]))
    return "\n".join(files)


async def _iterated(parts: Any) -> AsyncIterator[str]:
    async for part in parts:
        yield part


async def post_mortems() -> str:
    stories = []
    for secret in SECRETS:
        change = PlanChange(NOW, PlanState.REFUSED, secret.text, secret.text)
        made = replace(record(secret.text), plan=replace(plan(), history=(change,)))
        attempt = Attempt(AttemptKey(secret.text), 1.0, events=(Event(EventKind.EXIT, 2.0, reason=secret.text),))
        stories.append(FailureStory(made, Job(secret.text), attempt, None))
    return "\n".join(failure_post_mortem(story, 2.0, "", redact) for story in stories)


async def errors() -> str:
    app = FastAPI()
    app.state.services = SimpleNamespace(core=SimpleNamespace(redact=redact))
    app.state.page_roots = frozenset()
    problems.install(app, lambda request, problem: problems.as_json(problem), lambda _: None)

    @app.get("/api/{number}")
    async def fail(number: int) -> None:
        raise BadInput(SECRETS[number].text)

    told = []
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://t") as client:
        for number in range(len(SECRETS)):
            answer = await client.get(f"/api/{number}")
            assert answer.status_code == 400
            told.append(answer.json()["detail"])
    return "\n".join(told)


def lines() -> str:
    return "\n".join(secret.text for secret in SECRETS)


WAYS = {
    "recovery webhook": webhook,
    "Slack": slack,
    "Alertmanager": alertmanager,
    "Apprise": apprise,
    "answer in Slack": answer_in_slack,
    "answer to a question in Slack": question_in_slack,
    "language model": model,
    "embeddings": embeddings,
    "assistant": assistant,
    "traces": traces,
    "own log": own_log,
    "downloaded lists": downloads,
    "post-mortems": post_mortems,
    "error answers": errors,
}


@pytest.mark.parametrize("way", [listed.name for listed in EXITS])
def test_no_secret_leaves(way: str) -> None:
    """Each exit is driven for real with each secret; none comes out plain, url-encoded or as base64."""
    told = asyncio.run(WAYS[way]())
    assert told.count("<") + told.count("&lt;") >= len(SECRETS) // 2
    assert [secret.name for secret in SECRETS if any(is_told(part, told) for part in secret.parts)] == []


def test_every_way_out_is_listed() -> None:
    """Whatever uses the network is an exit, or says why it is none."""
    known = [module for listed in EXITS for module in listed.modules] + list(NO_EXIT)
    assert {
        module for module in known if not (ROOT / module.replace(".", "/")).exists() and not _file(module).exists()
    } == set()
    for path in sorted(ROOT.rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if _imported(path) & NETWORK:
            assert any(module == name or module.startswith(f"{name}.") for name in known), (
                f"{module} is not in exits.py"
            )


def test_every_message_and_download_has_an_exit() -> None:
    """A new kind of message in the outbox, or a new file to download, must be masked somewhere."""
    assert {kind for listed in EXITS for kind in listed.messages} == set(MessageKind)
    named = {module for listed in EXITS for module in listed.modules}
    for path in (ROOT / "web").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if "Content-Disposition" in path.read_text("utf-8"):
            assert module in named | {"web.api.client_archive", "web.api.lines"}, f"{module} is not in exits.py"


def _file(module: str) -> Path:
    return ROOT / (module.replace(".", "/") + ".py")


def _imported(path: Path) -> set[str]:
    """Names of modules that a file imports, wherever in it, with each of their parents."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            found |= {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return found
