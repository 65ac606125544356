"""The way of each request: it may get lost, arrive late or twice, and so may its answer; who asks may die meanwhile."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any

import httpx

from tests.simulation.cluster import Agent
from tests.simulation.virtual_time import Killed, Process

if TYPE_CHECKING:
    from tests.simulation.site import Replica, Site

LATE_SECONDS = 30.0
"""Longest time after which a request arrives that its sender has given up, or that has arrived before."""


@dataclass
class Network(httpx.AsyncBaseTransport):
    """Leads each request to one of the replicas that live. sender: whose requests they are."""

    site: "Site"
    sender: Process

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        chance, trouble = self.site.chance, self.site.trouble
        await request.aread()
        await asyncio.sleep(chance.uniform(0.0, 0.2))
        self._die_now_and_then()
        if isinstance(self.sender, Agent) and self.sender.is_cut_off:
            raise httpx.ConnectError("the network is parted")
        if chance.random() < trouble:
            raise httpx.ConnectError("the request did not arrive")
        if request.method == "POST" and chance.random() < trouble:
            self.site.outside.spawn(self._arrive_late(request))
            if chance.random() < 0.5:
                raise httpx.ReadTimeout("the request is late")
        answer = await self._answer(request)
        if chance.random() < trouble:
            raise httpx.ReadError("the answer was lost")
        if isinstance(self.sender, Agent) and request.url.path.endswith("/claim") and answer.status_code == 200:
            self._part_soon(self.sender)
        self._die_now_and_then()
        return answer

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        alive = [replica for replica in self.site.replicas if replica.serves]
        if not alive:
            raise httpx.ConnectError("nobody listens")
        replica = self.site.chance.choice(alive)
        assert replica.serves
        answering = replica.spawn(replica.serves.handle_async_request(request))
        await asyncio.wait([answering])
        if answering.cancelled() or answering.exception():
            raise httpx.ReadError("the connection was closed")
        answer: httpx.Response = answering.result()
        return answer

    async def _arrive_late(self, request: httpx.Request) -> None:
        await asyncio.sleep(self.site.chance.uniform(0.0, LATE_SECONDS))
        await self._answer(request)

    def _part_soon(self, agent: Agent) -> None:
        """Cut an agent off now and then while it carries out what it has claimed."""
        if self.site.chance.random() < 5 * self.site.trouble:
            asyncio.get_running_loop().call_later(self.site.chance.uniform(0.0, 20.0), self.site.part, agent)

    def _die_now_and_then(self) -> None:
        """Raises Killed."""
        self.sender.check_alive()
        if isinstance(self.sender, Agent) and self.site.chance.random() < self.site.death:
            self.site.bury(self.sender)
            raise Killed


def dated(served: Any, replica: "Replica") -> Any:
    """The application with the time in its answers, as a server adds it."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        async def send_dated(message: Any) -> None:
            if message["type"] == "http.response.start":
                date = format_datetime(datetime.fromtimestamp(replica.clock(), UTC), usegmt=True)
                message = {**message, "headers": [*message["headers"], (b"date", date.encode())]}
            await send(message)

        await served(scope, receive, send_dated)

    return application
