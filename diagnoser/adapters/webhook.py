"""Sends recovery plans to the cluster manager's webhook, signed as Standard Webhooks defines."""

from datetime import UTC, datetime

import httpx
from standardwebhooks import Webhook

from diagnoser.adapters.http import poster
from diagnoser.model import OutboxMessage
from diagnoser.model.errors import BadInput
from diagnoser.ports import Clock

TIMEOUT = 10.0


class RecoveryWebhook:
    """A Sender. ``webhook-id`` is the message's key, by which a receiver recognises repeats."""

    def __init__(
        self, url: str, secret: str, client: httpx.AsyncClient, clock: Clock, *, allow_private: bool = False
    ) -> None:
        """secret: ``whsec_`` and base64. Raises BadInput for anything else."""
        try:
            self._signer = Webhook(secret)
        except Exception as error:
            raise BadInput("DIAGNOSER_WEBHOOK_SECRET must be whsec_ and base64, the same at the receiver") from error
        self._clock = clock
        self._poster = poster(url, client, clock, TIMEOUT, allow_private)

    async def send(self, message: OutboxMessage) -> None:
        """Signs every attempt again, because receivers refuse old timestamps."""
        now = datetime.fromtimestamp(self._clock(), UTC)
        headers = {
            "webhook-id": message.key,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": self._signer.sign(message.key, now, message.body.decode()),
        }
        await self._poster.post(message.body, headers)
