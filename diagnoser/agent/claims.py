"""Asks the service for requests, as long as the agent runs."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
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


async def claimed_requests(
    claim: Callable[[], Awaitable[Sequence[Mapping[str, Any]]]], pause: Callable[[float], Any], failed: str
) -> AsyncIterator[Mapping[str, Any]]:
    """Give each request as it is claimed, for ever. Raises Denied.

    pause: how to sleep.
    failed: event of the log where a claim gets no answer.
    """
    wait = PAUSE_SECONDS
    while True:
        await pause(wait * random.uniform(0.75, 1.25))  # noqa: S311 - agents of many clusters do not ask in step
        try:
            claimed = await claim()
            wait = PAUSE_SECONDS
        except (Unavailable, BadInput, NotFound, Conflict) as error:
            wait = min(2 * wait, LONGEST_WAIT)
            log.warning(failed, why=str(error), again_in=wait)
            continue
        for request in claimed:
            yield request
