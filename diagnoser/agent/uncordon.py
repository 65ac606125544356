"""Gives nodes back as people ask for it on the service's pages, under the rules of ``give_back``: only what a plan took
out. It runs beside observer and executor; a request is a lease, and repeating one is harmless."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from diagnoser.agent.api_client import ApiClient
from diagnoser.agent.cluster import NodeControl
from diagnoser.agent.give_back import give_back
from diagnoser.model.errors import BadInput, Conflict, Denied, DiagnoserError, NotFound, Unavailable

CLAIM_SECONDS = 20.0
"""How long the service may hold a claim until there is something to give back."""
PAUSE_SECONDS = 0.5
"""Between two claims: an answer without a request may come at once."""
LONGEST_WAIT = 300.0
"""Between two claims from a service that is away, or knows no such requests."""
RESULT_LENGTH = 1000

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Uncordoner:
    """name: of the cluster. jitter: numbers from 0 to 1. dry: change nothing. pause: how to sleep."""

    client: ApiClient
    cluster: NodeControl
    name: str
    jitter: Callable[[], float]
    dry: bool = False
    pause: Callable[[float], Any] = asyncio.sleep

    async def run(self) -> None:
        """For ever. Raises Denied."""
        wait = PAUSE_SECONDS
        while True:
            await self.pause(wait * (0.75 + self.jitter() / 2))
            try:
                claimed = await self.client.claim_uncordons(self.name, CLAIM_SECONDS)
                wait = PAUSE_SECONDS
            except (Unavailable, BadInput, NotFound, Conflict) as error:
                wait = min(2 * wait, LONGEST_WAIT)
                log.warning("uncordons_not_claimed", why=str(error), again_in=wait)
                continue
            for request in claimed:
                await self.answer(request)

    async def answer(self, request: Mapping[str, Any]) -> None:
        """Never raises: where cluster or service are away the lease ends, and the request is handed out anew."""
        node = str(request["node"])
        try:
            state, result = await self._give_back(node)
            await self.client.uncordon_result(str(request["id"]), self.name, state, result[:RESULT_LENGTH])
            log.info("uncordon", node=node, by=request.get("by"), state=state, result=result)
        except DiagnoserError as error:
            log.warning("uncordon_left", node=node, why=str(error))

    async def _give_back(self, node: str) -> tuple[str, str]:
        """(done or refused, what to tell). Raises Unavailable while the cluster is away."""
        if self.dry:
            return "refused", "this agent changes nothing (--dry-run)"
        try:
            return "done", "; ".join(await give_back(self.cluster, [node]))
        except (BadInput, Denied) as error:
            return "refused", str(error)
