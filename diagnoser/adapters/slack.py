"""Posts alerts to a Slack-format incoming webhook. Its URL is the secret, so it lives here only."""

import httpx

from diagnoser.adapters.http import poster
from diagnoser.model import OutboxMessage
from diagnoser.ports import Clock

TIMEOUT = 10.0


class SlackWebhook:
    """A Sender: the effect's body is the message. Slack has no idempotency key, so a crash can post an alert twice."""

    def __init__(
        self,
        url: str,
        client: httpx.AsyncClient,
        clock: Clock,
        *,
        allow_private: bool = False,
        timeout: float = TIMEOUT,
    ) -> None:
        self._poster = poster(url, client, clock, timeout, allow_private)

    async def send(self, effect: OutboxMessage) -> None:
        await self._poster.post(effect.body, {})
