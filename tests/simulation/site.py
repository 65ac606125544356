"""Two small clusters with replicas of the service, agents and shippers, all of which may be killed."""

import asyncio
import random
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import CollectorRegistry

from diagnoser import app
from diagnoser.adapters.sql.database import create_engine
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.adapters.wake_signals import LocalWakeSignal
from diagnoser.app import Shared, WakeSignals, World
from diagnoser.client.service import API
from diagnoser.config.alerting import load_routing
from diagnoser.config.settings import Settings
from diagnoser.model.plans import MessageKind
from diagnoser.model.taxonomy import Outcome
from diagnoser.observability.metrics import Metrics
from diagnoser.observability.tracing import untraced
from diagnoser.recovery.node_query import NO_QUERIES
from diagnoser.web.server import create
from tests import accuracy_bars
from tests.serving import NOW
from tests.simulation.cluster import Agent, Scheduler
from tests.simulation.database import Disk, Memory, MemoryDatabase, ServerDatabase
from tests.simulation.network import Claims, Network, dated
from tests.simulation.receivers import CALM_SECONDS, Channel, Deliveries
from tests.simulation.virtual_time import Process
from tests.unit.memory_cluster import PREFIX, Fault

BATCH, BATCHES = 5, 4
"""Lines that a rank ships at once, and how often."""
ENDS: Mapping[str, tuple[str, ...]] = {
    "gpu": ("[rank1]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",),
    "script": ("Traceback (most recent call last):", '  File "train.py", line 7, in <module>', "ValueError: bad shape"),
    "storage": ("botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL",),
    "clean": ("Training completed",),
}
"""How a first launch ends -> its last lines."""
_TEXT = {"content-type": "text/plain"}


class Doorbell(LocalWakeSignal):
    """Wakes the outboxes of all replicas, as NOTIFY does."""

    def __init__(self, all: list["Doorbell"]) -> None:
        super().__init__()
        self.all = all
        all.append(self)

    def notify(self) -> None:
        for bell in self.all:
            LocalWakeSignal.notify(bell)


class Replica(Process):
    """A process of the service over the database that all share. skew: of its clock, in seconds."""

    def __init__(self, name: str, site: "Site", skew: float) -> None:
        super().__init__(name)
        self.site, self.skew = site, skew
        self.serves: httpx.ASGITransport | None = None
        self.stack = AsyncExitStack()

    def clock(self) -> float:
        return NOW + asyncio.get_running_loop().time() + self.skew

    async def start(self) -> None:
        site = self.site
        store = site.open_store(self)
        self.stack.push_async_callback(store.close)
        wakes = WakeSignals(LocalWakeSignal(), Doorbell(site.doorbells))
        senders = dict.fromkeys((MessageKind.ALERT, MessageKind.RECOVERY), Channel(site, self))
        metrics = Metrics(CollectorRegistry())
        world = World(store, None, senders, None, None, wakes, self.clock, metrics, untraced)  # type: ignore[arg-type]
        shared = Shared(accuracy_bars.load(), NO_QUERIES, load_routing(site.settings), None)
        service = await app.compose(site.settings, shared, world, asyncio.Event(), self.stack)
        for loop in await app._loops(site.settings, shared, service):
            self.spawn(loop)
        self.serves = httpx.ASGITransport(app=dated(create(service.web), self), raise_app_exceptions=False)

    def kill(self) -> None:
        self.serves = None
        super().kill()

    async def end(self) -> None:
        await super().end()
        await self.stack.aclose()


@dataclass
class Site:
    """trouble: chance that a request or its answer gets lost. death: that an agent dies at a request. acknowledged:
    lines of rank 1 that were, and ended: how, by job and launch. jobs: what trains. started: all
    replicas and agents that ever were."""

    url: str
    chance: random.Random
    settings: Settings
    memory: Memory | None = None
    trouble: float = 0.05
    death: float = 0.005
    replicas: list[Replica] = field(default_factory=list)
    schedulers: dict[str, Scheduler] = field(default_factory=dict)
    agents: list[Agent] = field(default_factory=list)
    jobs: list["asyncio.Task[None]"] = field(default_factory=list)
    acknowledged: dict[tuple[str, int], int] = field(default_factory=dict)
    ended: dict[tuple[str, int], Outcome] = field(default_factory=dict)
    started: list[Process] = field(default_factory=list)
    doorbells: list[Doorbell] = field(default_factory=list)
    claims: Claims = field(default_factory=Claims)

    def __post_init__(self) -> None:
        self.deliveries = Deliveries()
        self.outside = Process("the outside")
        self.disk = Disk(self.chance, self.bury)

    def open_store(self, process: Process) -> SqlStore:
        """What the process sees of the database; close it."""
        if self.memory:
            return SqlStore(MemoryDatabase(self.memory, self.disk, process))
        return SqlStore(ServerDatabase(create_engine(self.url), self.disk, process))

    def connect(self, sender: Process) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=Network(self, sender), base_url="http://diagnoser.test")

    def bury(self, process: Process) -> None:
        """Kill a replica or an agent; it is started again after a while."""
        if not process.is_dead:
            process.kill()
            self.outside.spawn(self._start_again(process))

    async def _start_again(self, process: Process) -> None:
        await process.end()
        await asyncio.sleep(self.chance.uniform(0.0, 20.0))
        if isinstance(process, Replica):
            await self.start_replica(process.name, process.skew)
        if isinstance(process, Agent):
            self.start_agent(process.name, process.cluster, process.path, process.skew)

    async def start_replica(self, name: str, skew: float) -> None:
        replica = Replica(name, self, skew)
        self.started.append(replica)
        self.replicas = [*(other for other in self.replicas if not other.is_dead), replica]
        await replica.start()

    def start_agent(self, name: str, cluster: str, path: Path, skew: float) -> None:
        agent = Agent(self, name, cluster, path, skew)
        self.started.append(agent)
        self.agents = [*(other for other in self.agents if not other.is_dead), agent]
        self.deliveries.woken[name] = agent.woken
        agent.start(self.connect(agent))

    async def train(self, cluster: str, name: str, end: str) -> None:
        """Run a job whose first launch ends in one way, and whose next one is well. Its owner relaunches a script."""
        scheduler, launch, is_clean = self.schedulers[cluster], 1, end == "clean"
        await self._run(scheduler, name, launch, end)
        while not is_clean:
            if end == "script":
                await asyncio.sleep(self.chance.uniform(60.0, 200.0))
                scheduler.apply(("launch", name))  # its owner has repaired it
            launch, is_clean = launch + 1, True
            while scheduler.jobs[name].attempt < launch:  # noqa: ASYNC110 - the scheduler tells nobody
                await asyncio.sleep(5.0)
            await self._run(scheduler, name, launch, "clean")

    async def _run(self, scheduler: Scheduler, name: str, launch: int, end: str) -> None:
        """One launch. Its shipper may be the last to end."""
        shipping = self.outside.spawn(self._ship_rank(name, launch))
        for step in range(self.chance.randint(3, 8)):
            await asyncio.sleep(self.chance.uniform(1.0, 10.0))
            self._print(scheduler, name, (f"step {step} loss 2.{step}", f"step {step} saved"))
        self._print(scheduler, name, ENDS[end])
        self.ended[name, launch] = Outcome.COMPLETED if end == "clean" else Outcome.FAILED
        scheduler.jobs[name] = replace(scheduler.jobs[name], state=self.ended[name, launch].value)
        await shipping

    def _print(self, scheduler: Scheduler, name: str, lines: tuple[str, ...]) -> None:
        job = scheduler.jobs[name]
        scheduler.jobs[name] = replace(job, log=(*job.log, *lines))

    async def _ship_rank(self, name: str, launch: int) -> None:
        """Send what rank 1 prints: overlapping batches in any order, each until it is acknowledged."""
        batches = [place * BATCH for place in range(BATCHES)]
        again = [max(0, first - 2) for first in self.chance.sample(batches, 2)]
        async with self.connect(self.outside) as http:
            for first in self.chance.sample([*batches, *again], len(batches) + len(again)):
                await asyncio.sleep(self.chance.uniform(0.0, 5.0))
                numbers = range(first, first + BATCH)
                query: dict[str, Any] = {"job": PREFIX + name, "attempt": launch, "rank": 1, "offset": first}
                await self._deliver(http, query, "".join(f"[rank1]: batch {number} is read\n" for number in numbers))
        self.acknowledged[name, launch] = BATCH * BATCHES

    async def _deliver(self, http: httpx.AsyncClient, query: dict[str, Any], body: str) -> None:
        while True:
            answer = None
            with suppress(httpx.TransportError):
                answer = await http.post(f"{API}/logs", params=query, content=body, headers=_TEXT)
            if answer is not None and answer.is_success:
                return
            assert answer is None or answer.status_code in (429, 503), answer.text
            await asyncio.sleep(1.0)

    async def decide_plans(self) -> None:
        """Approve what waits, as a person does now and then."""
        async with self.connect(self.outside) as http:
            while True:
                await asyncio.sleep(self.chance.uniform(30.0, 90.0))
                try:
                    plans = (await http.get(f"{API}/plans", params={"state": "waiting"})).json()["items"]
                    for plan in plans:
                        await http.post(f"{API}/plans/{plan['id']}/approve", json={})
                except (httpx.TransportError, ValueError, KeyError):
                    continue

    async def make_trouble(self, seconds: float) -> None:
        """Kill agents and part them from the service, lose answers of schedulers, crash replicas at transactions."""
        loop, chance = asyncio.get_running_loop(), self.chance
        self.disk.crash_chance, self.disk.freeze_chance, self.disk.slow_chance = 0.002, 0.003, 0.01
        while loop.time() < seconds:
            await asyncio.sleep(chance.uniform(5.0, 40.0))
            scheduler = self.schedulers[chance.choice(list(self.schedulers))]
            if chance.random() < 0.5:
                scheduler.faults.append(Fault(arrives=chance.random() < 0.5, code=None))
            agent = chance.choice(self.agents)
            if chance.random() < 0.3:
                self.part(agent)
            elif chance.random() < 0.5:
                self.bury(agent)
            elif chance.random() < 0.3:
                agent.freeze(chance.uniform(10.0, 100.0))
        self.disk.crash_chance = self.disk.freeze_chance = self.disk.slow_chance = self.trouble = self.death = 0.0
        self.deliveries.calm = loop.time() + CALM_SECONDS

    @property
    def wrongs(self) -> list[str]:
        """What must not happen, and did."""
        found = [*self.claims.wrongs, *self.deliveries.wrongs]
        for scheduler in self.schedulers.values():
            found += scheduler.wrongs
        for process in self.started:
            found += process.wrongs
        return found

    def part(self, agent: Agent) -> None:
        """Cut an agent off for a while: it works on, and does not reach the service."""
        agent.joined = asyncio.get_running_loop().time() + self.chance.uniform(10.0, 150.0)
