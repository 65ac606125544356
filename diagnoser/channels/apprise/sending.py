"""Sends alerts through Apprise."""

import asyncio
from typing import Any
from urllib.parse import quote

from diagnoser.model.alerts import Alert, AlertThread, Severity
from diagnoser.model.errors import BadInput, DeliveryError
from diagnoser.notifications import text

BODY_LENGTH = 3_000


class AppriseReceiver:
    """An AlertChannel. url: of Apprise's, which often holds a secret. Raises BadInput where it is none, or where the
    package is missing."""

    threaded = False
    resolves = False

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
        self._url = url
        self._apprise = apprise.Apprise
        if not self._receiver(""):
            raise BadInput(f"DIAGNOSER_APPRISE_URLS: the URL of {name!r} is none that Apprise knows")

    def _receiver(self, place: str) -> Any:
        """place: whom it goes to instead of whom the URL names, such as an address of mail."""
        to = f"{'&' if '?' in self._url else '?'}to={quote(place, safe='')}" if place else ""
        receiver = self._apprise()
        receiver.add(self._url + to)
        return receiver

    async def post(self, alert: Alert, thread: AlertThread | None, place: str) -> str:
        """Apprise says only whether it worked: another try may help."""
        sent = await asyncio.to_thread(
            self._receiver(place).notify,
            title=alert.title,
            body=text.body(alert)[:BODY_LENGTH],
            notify_type=self._types[alert.severity],
            body_format="text",
            interpret_escapes=False,
        )
        if not sent:
            raise DeliveryError(f"Apprise could not tell {self._name}", permanent=False)
        return ""
