"""A claim that waits: the answer comes as soon as there is something to hand out."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fastapi import Request

from diagnoser.model.access import Credential
from diagnoser.model.errors import Denied
from diagnoser.web.http.services import WebServices

WAIT_LIMIT = 30.0
LOOK_SECONDS = 0.25
"""Seconds between two looks of a waiting claim."""

T = TypeVar("T")


async def long_poll(look: Callable[[], Awaitable[T]], seconds: float, request: Request, caller: Credential) -> T:
    """What ``look`` returns as soon as that is something; nothing after ``seconds``, or when the service stops. Claims
    nothing for a caller that has disconnected. Raises Denied when the caller's token has ended meanwhile."""
    services: WebServices = request.app.state.services
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    while True:
        if not await services.people.authenticator.is_valid(caller):
            raise Denied(f"The token {caller.name!r} is not valid any more.")
        if claimed := await look():
            return claimed
        remaining = deadline - clock()
        if remaining <= 0 or services.core.stopping.is_set() or await request.is_disconnected():
            return claimed
        await asyncio.sleep(min(LOOK_SECONDS, remaining))
