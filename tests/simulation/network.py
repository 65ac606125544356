"""The way of each request: it may get lost, arrive late or twice, and so may its answer; who asks may die meanwhile."""

import asyncio
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any

import httpx

from diagnoser.client.service import API
from tests.simulation.cluster import Agent
from tests.simulation.virtual_time import Killed, Process

if TYPE_CHECKING:
    from tests.simulation.site import Replica, Site

LATE_SECONDS = 30.0
"""Longest time after which a request arrives that its sender has given up, or that has arrived before."""


@dataclass
class Claims:
    """Claims of plans as they were answered, whoever got the answer.

    made: plan -> token -> place among the claims of the plan. wrongs: what must not happen.
    """

    made: dict[str, dict[str, int]] = field(default_factory=dict)
    wrongs: list[str] = field(default_factory=list)

    def newest(self, request: httpx.Request) -> int:
        """The place of the newest claim of the plan that the request is about."""
        return max(self.made.get(_plan_of(request), {"": 0}).values())

    def holder(self, plan: str) -> str:
        """The token of the newest claim."""
        claims = self.made[plan]
        return max(claims, key=claims.__getitem__)

    def watch(self, request: httpx.Request, answer: httpx.Response, newest: int) -> None:
        """Note a claim, or look whether a report counted. newest: claim that was answered before the report came."""
        if request.url.path.endswith("/plans/claim"):
            claim = answer.json() if answer.content else None
            if claim:
                claims = self.made.setdefault(claim["plan"]["id"], {})
                claims[claim["token"]] = len(claim["plan"]["history"])
            return
        plan = _plan_of(request)
        token = json.loads(request.content).get("token", "") if plan else ""
        if self.made.get(plan, {}).get(token, newest) < newest:
            self.wrongs.append(f"a report about {plan} counted although another agent had claimed it")


def _plan_of(request: httpx.Request) -> str:
    """The plan that an executor reports about; "" for any other request."""
    path = request.url.path.removeprefix(f"{API}/plans/")
    plan, _, what = path.partition("/")
    return plan if what in ("report", "check/next", "check/results") else ""


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
        await self.sender.go_on()
        if isinstance(self.sender, Agent) and self._is_cut_off(self.sender, request):
            raise httpx.ConnectError("the network is parted")
        if chance.random() < trouble:
            raise httpx.ConnectError("the request did not arrive")
        if request.method == "POST" and chance.random() < trouble:
            self.site.outside.spawn(self._arrive(request, chance.uniform(0.0, LATE_SECONDS)))
            if chance.random() < 0.5:
                raise httpx.ReadTimeout("the request is late")
        answer = await self._wait_for(self.site.outside.spawn(self._answer(request)), request)
        if chance.random() < trouble:
            raise httpx.ReadError("the answer was lost")
        if isinstance(self.sender, Agent) and request.url.path.endswith("/claim") and answer.status_code == 200:
            self._part_soon(self.sender)
        await self.sender.go_on()
        self._die_now_and_then()
        return answer

    def _is_cut_off(self, agent: Agent, request: httpx.Request) -> bool:
        """Whether the request does not arrive now. It may wait on the way until the network is whole."""
        wait = agent.joined - asyncio.get_running_loop().time()
        if wait <= 0:
            return False
        if request.method == "POST" and self.site.chance.random() < 0.5:
            self.site.outside.spawn(self._arrive(request, wait + self.site.chance.uniform(0.0, 5.0)))
        return True

    async def _wait_for(self, answering: "asyncio.Task[httpx.Response]", request: httpx.Request) -> httpx.Response:
        """The answer, as long as the sender waits for it; the request goes on."""
        await asyncio.wait([answering], timeout=request.extensions["timeout"]["read"])
        if not answering.done():
            raise httpx.ReadTimeout("no answer in time")
        return answering.result()

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        alive = [replica for replica in self.site.replicas if replica.serves]
        if not alive:
            raise httpx.ConnectError("nobody listens")
        replica = self.site.chance.choice(alive)
        assert replica.serves
        newest = self.site.claims.newest(request)
        answering = replica.spawn(replica.serves.handle_async_request(request))
        await asyncio.wait([answering])
        if answering.cancelled() or answering.exception():
            raise httpx.ReadError("the connection was closed")
        answer: httpx.Response = answering.result()
        await answer.aread()
        if answer.is_success:
            self.site.claims.watch(request, answer, newest)
        return answer

    async def _arrive(self, request: httpx.Request, wait: float) -> None:
        await asyncio.sleep(wait)
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
