"""Asks the service for requests, as long as the agent runs."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from diagnoser.model.errors import BadInput, Conflict, NotFound, Unavailable

CLAIM_SECONDS = 20.0
"""How long the service may hold a claim until there is a request."""
PAUSE_SECONDS = 0.5
"""Between two claims: an answer without a request may come at once."""
LONGEST_WAIT = 300.0
"""Between two claims from a service that is away, or knows no such requests."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ClaimLoop:
    """jitter: numbers from 0 to 1, so that the agents of many clusters do not ask in step. pause: how to sleep."""

    jitter: Callable[[], float]
    pause: Callable[[float], Any] = asyncio.sleep

    async def requests(
        self, claim: Callable[[], Awaitable[Sequence[Mapping[str, Any]]]], failed: str
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Give each request as it is claimed, for ever. Raises Denied.

        failed: event of the log where a claim gets no answer.
        """
        wait = PAUSE_SECONDS
        while True:
            await self.pause(wait * (0.75 + self.jitter() / 2))
            try:
                claimed = await claim()
                wait = PAUSE_SECONDS
            except (Unavailable, BadInput, NotFound, Conflict) as error:
                wait = min(2 * wait, LONGEST_WAIT)
                log.warning(failed, why=str(error), again_in=wait)
                continue
            for request in claimed:
                yield request
