"""Questions in the thread of an alert: whoever mentions the bot there is answered below, with the lines that prove it.

Slack delivers a message at least once, signed, and wants to hear within three seconds that it arrived: the answer is
made after that. Only listed people are answered, in threads that our alerts began, about the failure that the thread
told last. Nothing that anybody types there changes anything.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlencode

import orjson
from fastapi import Depends, Request
from fastapi.responses import PlainTextResponse, Response
from pydantic import Field, StringConstraints, ValidationError
from starlette.background import BackgroundTask
from starlette.routing import BaseRoute

from diagnoser.channels.slack.access import SlackAccess
from diagnoser.channels.slack.message import answer_message, code, escape, place_of, unescape
from diagnoser.failure_agent.inquiry import Reply
from diagnoser.model import Line, MessageKind, OutboxMessage
from diagnoser.model.access import Viewer
from diagnoser.model.alerts import AlertThread
from diagnoser.model.errors import BadInput, DiagnoserError, ModelFailed, NotFound
from diagnoser.model.work import DiagnosisRecord
from diagnoser.web.api.diagnoses import find
from diagnoser.web.api.feedback import find_lines
from diagnoser.web.http.dependencies import services_of
from diagnoser.web.http.routing import Router, Schema
from diagnoser.web.http.services import ScopedServices, WebServices
from diagnoser.web.pages.attempt_axis import log_of
from diagnoser.web.pages.diagnosis_page import QUESTION_LENGTH, cited_places
from diagnoser.web.pages.log_viewer import log_path

OF_USER, OF_THREAD = 10, 20
"""Questions within ``HOUR`` that are answered."""
HOUR, DAY = 3_600.0, 86_400.0
LINES, SEARCHED = 5, 200
"""Lines that a search shows, and characters of a question that it takes."""


class _Refusal(StrEnum):
    """Why a question is not answered."""

    NOT_LISTED = "You may not ask here. Whoever runs diagnoser can add you to DIAGNOSER_SLACK_OPERATORS."
    TOO_MANY = "That was the last answer for now: ask again within the hour, or on the page of the diagnosis."
    NO_FAILURE = "This thread is not about a failure that is stored."
    NOTHING_ASKED = "Ask about this failure, such as: what did rank 12 print before it?"


@dataclass(frozen=True, slots=True)
class _Findings:
    """text: what is said. lines: that prove it, or fit best. note: who says so, as Slack's own markup."""

    text: str
    lines: Sequence[Line]
    note: str


_MENTION = re.compile(r"<@[A-Z0-9]{1,32}(?:\|[^>]{0,80})?>")
_Id = Annotated[str, StringConstraints(pattern=r"^[A-Z0-9]{1,32}$")]
_Ts = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,20}\.[0-9]{1,20}$")]


class _Message(Schema):
    """A mention of the bot, or a message to it alone; in a thread, by a person. Other messages do not fit."""

    type: Literal["app_mention", "message"]
    user: _Id
    text: Annotated[str, Field(max_length=40_000)]
    ts: _Ts
    thread_ts: _Ts
    channel: _Id
    channel_type: str = ""
    subtype: None = None
    bot_id: None = None

    @property
    def is_for_us(self) -> bool:
        """People also talk with each other in a thread."""
        return self.type == "app_mention" or self.channel_type == "im"

    @property
    def question(self) -> str:
        return " ".join(unescape(_MENTION.sub(" ", self.text)).split())[:QUESTION_LENGTH]


class _Call(Schema):
    """What Slack sends: whether this address is ours, or an event."""

    type: Annotated[str, Field(max_length=60)]
    challenge: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{0,200}$")] = ""
    event: Annotated[dict[str, Any], Field(default_factory=dict)]


def routes(access: SlackAccess) -> Sequence[BaseRoute]:
    router = Router(include_in_schema=False)

    @router.post("/slack/events")
    async def hear(request: Request, services: Annotated[WebServices, Depends(services_of)]) -> Response:
        """Raises NotFound where no Slack app is configured, Denied for what Slack did not sign, BadInput."""
        body = await request.body()
        access.check_signature(request, body, services.core.clock)
        try:
            call = _Call.model_validate_json(body)
        except ValidationError:
            raise BadInput("this is no event as Slack sends it") from None
        if call.type == "url_verification":
            return PlainTextResponse(call.challenge)
        try:
            message = _Message.model_validate(call.event)
        except ValidationError:  # of a bot, outside a thread, edited, or no message at all
            return Response()
        subject = await _asked_about(services, access, message)
        if subject is None:
            return Response()
        return Response(background=BackgroundTask(_answer, services, message, *subject))

    return router.routes


async def _asked_about(
    services: WebServices, access: SlackAccess, message: _Message
) -> tuple[ScopedServices, DiagnosisRecord] | None:
    """The failure that a message asks about, and what its readers may see; None where there is nothing to answer."""
    store, now = services.core.store, services.core.clock()
    thread = await store.alerts.thread_at(place_of(message.channel, message.thread_ts))
    if thread is None:
        return None
    if not message.is_for_us:
        return None
    if message.user not in access.operators:
        await _refuse(services, message, _Refusal.NOT_LISTED)
        return None
    if await store.logins.count({f"Slack message {message.channel} {message.ts}": 1}, now, DAY):
        return None  # Slack sends it again, or somebody does
    tries = {
        f"Slack user {message.user}": OF_USER,
        f"Slack thread {message.channel} {message.thread_ts}": OF_THREAD,
    }
    if await store.logins.count(tries, now, HOUR):
        await _refuse(services, message, _Refusal.TOO_MANY)
        return None
    if not message.question:
        await _refuse(services, message, _Refusal.NOTHING_ASKED)
        return None
    try:
        return await _subject(services, thread)
    except NotFound:
        await _refuse(services, message, _Refusal.NO_FAILURE)
        return None


async def _subject(services: WebServices, thread: AlertThread) -> tuple[ScopedServices, DiagnosisRecord]:
    """Where not only operators read, what the job's owner may see is shown. Raises NotFound."""
    whole = services.scopes.whole
    record = await find(whole.core.store, orjson.loads(thread.handle).get("diagnosis", ""))
    if services.plans.commands.planner.alerts.is_operators(thread.receiver):
        return whole, record
    job = await whole.core.store.jobs.find(record.attempt.job)
    if job is None or not job.tenant:
        raise NotFound("nobody knows whose job it is")
    return services.scopes.scoped_to(Viewer(tenant=job.tenant)), record


async def _answer(services: WebServices, message: _Message, scope: ScopedServices, record: DiagnosisRecord) -> None:
    """Sends what the model says, or what a search finds where there is no model or it fails."""
    base, redact = services.plans.commands.planner.base_url, scope.core.redact
    index = None
    try:
        findings = await _findings(services, scope, record, message.question, base)
        index, _ = await log_of(scope.logs, record.attempt)
    except DiagnoserError as error:
        findings = _Findings(f"No answer: {error}", (), "The page of the diagnosis has the rest.")
    cited = []
    for line, name in cited_places(findings.lines, index):
        url = ""
        if base and name:
            url = f"{base}{log_path(record.attempt)}?at={quote(name)}#L{quote(name)}"
        cited.append((redact(f"Line {line.number} of {line.stream.source}"), url, redact(line.text)))
    where = {"channel": message.channel, "thread_ts": message.thread_ts}
    answer = answer_message(redact(findings.text), cited, findings.note)
    await _send(services, f"slack-answer-{message.channel}-{message.ts}", "chat.postMessage", where | answer)


async def _findings(
    services: WebServices, scope: ScopedServices, record: DiagnosisRecord, question: str, base: str
) -> _Findings:
    if services.inquiries is None:
        return await _search(scope, record, question, base, "No language model is set up")
    try:
        reply = await services.inquiries.answer(scope.logs.context, record, question)
    except ModelFailed as error:
        return await _search(scope, record, question, base, f"No answer: {error}")
    return _Findings(reply.text, reply.lines, _looks(reply))


async def _search(scope: ScopedServices, record: DiagnosisRecord, question: str, base: str, why: str) -> _Findings:
    """The lines that fit the words best, as the page finds them."""
    results = await find_lines(scope, record.attempt, question, LINES)
    lines = [Line(found.stream, found.line, found.text, found.text, found.rank) for found in results]
    says = "These lines of its log fit the words best." if lines else "No line that was kept fits the words."
    path = f"{log_path(record.attempt).removesuffix('log')}search?{urlencode({'q': question[:SEARCHED]})}"
    note = "The page of the job searches its whole log."
    if base:
        note = f"<{escape(base + path)}|Search the whole log>"
    return _Findings(f"{why}. {says}", lines, note)


def _looks(reply: Reply) -> str:
    words = ["By the language model, which changes nothing."]
    if not reply.lines:
        words.append("No line proves this answer.")
    if reply.looks:
        words.append(f"It looked at {', '.join(f'`{code(look.call)}`' for look in reply.looks)}.")
    return " ".join(words)


async def _refuse(services: WebServices, message: _Message, why: _Refusal) -> None:
    """Tells the person alone, once an hour."""
    hour = int(services.core.clock() // HOUR)
    body = {"channel": message.channel, "user": message.user, "thread_ts": message.thread_ts, "text": escape(why)}
    key = f"slack-{why.name.lower()}-{message.channel}-{message.user}-{hour}"
    await _send(services, key, "chat.postEphemeral", body)


async def _send(services: WebServices, key: str, method: str, body: dict[str, Any]) -> None:
    now = services.core.clock()
    content = orjson.dumps({"method": method, "message": body})
    await services.core.store.outbox.add(OutboxMessage(key, MessageKind.ANSWER, "slack", content, now, now + HOUR))
    services.plans.outbox.notify()
