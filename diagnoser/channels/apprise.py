"""Alerts through Apprise: Teams, PagerDuty, Opsgenie, mail, Matrix and whatever else it knows. Extra `apprise`."""

import asyncio
import re
from collections.abc import Mapping
from functools import partial

from pydantic import BaseModel, Field, SecretStr

from diagnoser.channels.channel import Channel, OpenReceiver, Transport
from diagnoser.model.alerts import Alert, AlertThread, Severity
from diagnoser.model.errors import BadInput, DeliveryError
from diagnoser.notifications import text
from diagnoser.ports import AlertChannel
from diagnoser.redaction.exits import Exit

BODY_LENGTH = 3_000
_NAME_AND_URL = re.compile(r"([a-z0-9_-]+)=(\S+)")


class AppriseReceiver:
    """An AlertChannel. url: of Apprise's, which often holds a secret. Raises BadInput where it is none, or where the
    package is missing."""

    threaded = False

    def __init__(self, name: str, url: str) -> None:
        try:
            import apprise
        except ImportError:
            raise BadInput(
                "DIAGNOSER_APPRISE_URLS needs the package apprise: pip install 'diagnoser[apprise]'"
            ) from None
        self._name = name
        self._types = {
            Severity.INFO: apprise.NotifyType.INFO,
            Severity.WARNING: apprise.NotifyType.WARNING,
            Severity.CRITICAL: apprise.NotifyType.FAILURE,
        }
        self._receiver = apprise.Apprise()
        if not self._receiver.add(url):
            raise BadInput(f"DIAGNOSER_APPRISE_URLS: the URL of {name!r} is none that Apprise knows")

    async def post(self, alert: Alert, thread: AlertThread | None, place: str) -> str:
        """Apprise says only whether it worked: another try may help."""
        sent = await asyncio.to_thread(
            self._receiver.notify,
            title=alert.title,
            body=text.body(alert)[:BODY_LENGTH],
            notify_type=self._types[alert.severity],
            body_format="text",
            interpret_escapes=False,
        )
        if not sent:
            raise DeliveryError(f"Apprise could not tell {self._name}", permanent=False)
        return ""


class AppriseSettings(BaseModel):
    apprise_urls: SecretStr = Field(
        SecretStr(""),
        description="Further receivers of alerts, as `name=URL` in Apprise's form, separated by white space: "
        "`pager=pagerduty://... mail=mailtos://...`. Needs the package `apprise`. Empty: none.",
    )


def _receivers(settings: AppriseSettings) -> Mapping[str, OpenReceiver]:
    """The URLs are secrets: no message shows them."""
    receivers: dict[str, OpenReceiver] = {}
    for place, word in enumerate(settings.apprise_urls.get_secret_value().split(), 1):
        match = _NAME_AND_URL.fullmatch(word)
        if match is None:
            raise BadInput(f"DIAGNOSER_APPRISE_URLS: entry {place} is not name=URL")
        name, url = match.groups()
        if name in receivers:
            raise BadInput("DIAGNOSER_APPRISE_URLS: each receiver needs a name of its own")
        receivers[name] = partial(_open, name, url)
    return receivers


def _open(name: str, url: str, _transport: Transport) -> AlertChannel:
    return AppriseReceiver(name, url)


CHANNEL = Channel(
    name="apprise",
    settings=AppriseSettings,
    receivers=_receivers,
    exits=(Exit("Apprise", ("channels.apprise",), "planning.planner", ("alert",)),),
)
