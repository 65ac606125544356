"""Alerts in Slack: through an incoming webhook, or as a bot, which can keep one thread for an incident.

The webhook's URL and the bot's token are secrets, so they live here only. Slack has no idempotency key: a crash between
a post and its record posts an alert twice.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import orjson

from diagnoser.adapters.http import poster
from diagnoser.channels.channel import Transport
from diagnoser.channels.slack.message import slack_message, with_status
from diagnoser.model import OutboxMessage
from diagnoser.model.alerts import Alert, AlertKind, AlertThread
from diagnoser.model.errors import BadInput, DeliveryError, Withheld
from diagnoser.ports import Clock

if TYPE_CHECKING:
    from slack_sdk.errors import SlackApiError

TIMEOUT = 10.0
JOBS_NOTED = 200
"""Jobs of an incident that its thread keeps apart; further ones are not counted."""
_TEMPORARY = frozenset({"ratelimited", "rate_limited", "internal_error", "fatal_error", "service_unavailable"})
"""Errors that Slack's methods answer with status 200, after which another try can succeed."""


class SlackWebhook:
    """An AlertChannel: an incoming webhook, which knows no threads."""

    threaded = False
    resolves = False

    def __init__(self, url: str, client: httpx.AsyncClient, clock: Clock, *, allow_private: bool = False) -> None:
        self._poster = poster(url, client, clock, TIMEOUT, allow_private)

    async def post(self, alert: Alert, thread: AlertThread | None, place: str) -> str:
        await self._poster.post(orjson.dumps(slack_message(alert)), {})
        return ""


class SlackMethods:
    """Methods of Slack's Web API, called with the token of a bot. api: of Slack, or of what speaks like it."""

    def __init__(self, token: str, api: str) -> None:
        """Raises BadInput."""
        if urlsplit(api).scheme not in ("http", "https"):
            raise BadInput("the address of Slack's API must start with http:// or https://")
        from slack_sdk import WebClient  # loads for a while, and most sites have no Slack bot

        self._client = WebClient(token=token, base_url=api, timeout=int(TIMEOUT))

    async def call(self, method: str, body: dict[str, Any]) -> dict[str, Any]:
        """Raises DeliveryError. In a thread: the client of the SDK that waits in the event loop brings another HTTP
        library along."""
        from slack_sdk.errors import SlackApiError, SlackClientError

        try:
            answer = await asyncio.to_thread(self._client.api_call, method, json=body)
        except SlackApiError as error:
            raise _failed(error) from None
        except (OSError, HTTPException, SlackClientError) as error:
            raise DeliveryError(f"network: {type(error).__name__}", permanent=False) from None
        return {"channel": answer.get("channel", ""), "ts": answer.get("ts", "")}


@dataclass(frozen=True, slots=True)
class SlackAnswers:
    """A Sender: what a person is told who pressed a button, at the address that Slack gave for it, and what one is
    answered who asked in a thread. methods: of the bot, None where there is none."""

    transport: Transport
    methods: SlackMethods | None

    async def send(self, message: OutboxMessage) -> None:
        answer = orjson.loads(message.body)
        if "method" in answer:
            if self.methods is None:
                raise Withheld("no Slack bot is configured any more")
            await self.methods.call(answer["method"], answer["message"])
            return
        client, clock, allow_private = self.transport
        receiver = poster(answer["response_url"], client, clock, TIMEOUT, allow_private)
        await receiver.post(orjson.dumps(answer["message"]), {})


class SlackBot:
    """An AlertChannel: one thread an incident, whose first message always shows how it stands.

    channel: where alerts go that name no channel of their own, by name or id. buttons: whether a signing secret and
    operators are configured, so that pressing them leads somewhere.
    """

    threaded = True
    resolves = False

    def __init__(self, token: str, channel: str, *, buttons: bool, api: str) -> None:
        """Raises BadInput."""
        if not channel:
            raise BadInput("alerts of the Slack bot need a channel: set DIAGNOSER_SLACK_CHANNEL")
        self._methods = SlackMethods(token, api)
        self._channel = channel
        self._buttons = buttons

    async def post(self, alert: Alert, thread: AlertThread | None, place: str) -> str:
        """The handle is a JSON object: where the first message stands (``place_of``), what it said, and what of."""
        message = slack_message(alert, buttons=self._buttons)
        if thread is None:
            answer = await self._methods.call("chat.postMessage", {"channel": place or self._channel, **message})
            first = {"channel": answer["channel"], "ts": answer["ts"], "alerts": 1, "message": message}
            _note_alert(first, alert)
        else:
            first = orjson.loads(thread.handle)
            where, first["alerts"] = {"channel": first["channel"]}, first["alerts"] + 1
            _note_alert(first, alert)
            await self._methods.call("chat.postMessage", {**where, "thread_ts": first["ts"], **message})
            updated = with_status(first["message"], _status(alert, first), alert.about)
            first["message"] = updated
            # A failed update is not tried again: the alert would be posted twice. The next alert updates the message.
            with suppress(DeliveryError):
                await self._methods.call("chat.update", {**where, "ts": first["ts"], **updated})
        return orjson.dumps(first).decode()


def _failed(error: "SlackApiError") -> DeliveryError:
    """Slack's own word for what is wrong, such as `channel_not_found`, and when to come again."""
    status, code = error.response.status_code, str(error.response.get("error") or "no reason")
    wait = error.response.headers.get("Retry-After", "")
    seconds = float(wait) if wait.isdecimal() else None
    permanent = code not in _TEMPORARY and status not in (429, *range(500, 600))
    return DeliveryError(f"Slack says {code[:100]}", permanent=permanent, retry_after=seconds)


def _note_alert(first: dict[str, Any], alert: Alert) -> None:
    """Keep in the handle of a thread which jobs failed, which of them were recovered, and the failure told last."""
    if alert.diagnosis:
        first["diagnosis"] = alert.diagnosis
    failed, recovered = first.setdefault("failed", []), first.setdefault("recovered", [])
    if alert.kind is AlertKind.RECOVERED:
        if alert.job in failed and alert.job not in recovered:
            recovered.append(alert.job)
    elif alert.kind is AlertKind.FAILURE:
        if alert.job in recovered:
            recovered.remove(alert.job)  # it failed again
        elif alert.job not in failed and len(failed) < JOBS_NOTED:
            failed.append(alert.job)


def _status(alert: Alert, first: dict[str, Any]) -> str:
    """How the incident stands. first: the handle of its thread."""
    failed, recovered = len(first["failed"]), len(first["recovered"])
    if alert.kind is not AlertKind.RECOVERED:
        return f"{first['alerts']} alerts in this thread, the last: {alert.title}"
    if recovered >= failed:
        return "Recovered"
    return f"Recovered {recovered} of {failed} jobs"
