"""Two small clusters with replicas of the service, agents and shippers, all of which may be killed."""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import CollectorRegistry

from diagnoser import app
from diagnoser.adapters.sql.database import create_engine
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.adapters.wake_signals import LocalWakeSignal
from diagnoser.agent import runtime, state_file
from diagnoser.agent.api_client import ApiClient
from diagnoser.agent.changes import Body, Changes, JobRegistration, LifecycleEvent
from diagnoser.agent.executor import Executor
from diagnoser.agent.nodes import NodeRecord
from diagnoser.agent.observer import Observer
from diagnoser.agent.state_file import AgentState, JobCheckpoint
from diagnoser.app import Shared, WakeSignals, World
from diagnoser.client.service import API
from diagnoser.config.alerting import load_routing
from diagnoser.config.settings import Settings
from diagnoser.model import OutboxMessage
from diagnoser.model.plans import MessageKind
from diagnoser.model.taxonomy import Outcome
from diagnoser.observability.metrics import Metrics
from diagnoser.observability.tracing import untraced
from diagnoser.recovery.node_query import NO_QUERIES
from diagnoser.web.server import create
from tests import accuracy_bars
from tests.serving import NOW
from tests.simulation.virtual_time import Gate, GatedDatabase, Process
from tests.unit.memory_cluster import PREFIX, Fault, MemoryCluster, MemoryJob, MemoryScheduler, MemorySource

JOBS = ("pretrain", "tune")
"""Two families: what fails alike at the same step in one is held back."""
BATCH, BATCHES = 20, 6
"""Lines that a rank ships at once, and how often."""
ENDS: Mapping[str, tuple[str, ...]] = {
    "gpu": ("[rank1]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",),
    "script": ("Traceback (most recent call last):", '  File "train.py", line 7, in <module>', "ValueError: bad shape"),
    "storage": ("botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL",),
    "clean": ("Training completed",),
}
"""How a first launch ends -> its last lines."""


_TEXT = {"content-type": "text/plain"}


@dataclass
class Deliveries:
    """What receivers got: each message at least once, however often its answer was lost."""

    chance: random.Random
    got: Counter[str] = field(default_factory=Counter)

    woken: dict[str, asyncio.Event] = field(default_factory=dict)

    async def send(self, effect: OutboxMessage) -> None:
        await asyncio.sleep(self.chance.uniform(0.0, 2.0))
        self.got[effect.key] += 1
        if effect.kind is MessageKind.RECOVERY:
            for woken in self.woken.values():
                woken.set()


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
        store = SqlStore(GatedDatabase(create_engine(site.url), site.gate, self))
        self.stack.push_async_callback(store.close)
        wakes = WakeSignals(LocalWakeSignal(), LocalWakeSignal())
        senders = {MessageKind.ALERT: site.deliveries, MessageKind.RECOVERY: site.deliveries}
        metrics = Metrics(CollectorRegistry())
        world = World(store, None, senders, None, None, wakes, self.clock, metrics, untraced)  # type: ignore[arg-type]
        shared = Shared(accuracy_bars.load(), NO_QUERIES, load_routing(site.settings), None)
        service = await app.compose(site.settings, shared, world, asyncio.Event(), self.stack)
        for loop in await app._loops(site.settings, shared, service):
            self.spawn(loop)
        self.serves = httpx.ASGITransport(app=_dated(create(service.web), self), raise_app_exceptions=False)

    def kill(self) -> None:
        self.serves = None
        super().kill()

    async def end(self) -> None:
        await super().end()
        await self.stack.aclose()


def _dated(served: Any, replica: Replica) -> Any:
    """The application with the time in its answers, as a server adds it."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        async def send_dated(message: Any) -> None:
            if message["type"] == "http.response.start":
                date = format_datetime(datetime.fromtimestamp(replica.clock(), UTC), usegmt=True)
                message = {**message, "headers": [*message["headers"], (b"date", date.encode())]}
            await send(message)

        await served(scope, receive, send_dated)

    return application


@dataclass
class Network(httpx.AsyncBaseTransport):
    """Leads each request to one of the replicas that live. Some do not arrive, some answers get lost."""

    site: "Site"

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        chance, trouble = self.site.chance, self.site.trouble
        await asyncio.sleep(chance.uniform(0.0, 0.2))
        alive = [replica for replica in self.site.replicas if replica.serves]
        if not alive or chance.random() < trouble:
            raise httpx.ConnectError("the request did not arrive")
        replica = chance.choice(alive)
        assert replica.serves
        answering = replica.spawn(replica.serves.handle_async_request(request))
        await asyncio.wait([answering])
        if answering.cancelled() or answering.exception() or chance.random() < trouble:
            raise httpx.ReadError("the answer was lost")
        answer: httpx.Response = answering.result()
        return answer


@dataclass(slots=True)
class Source(MemorySource):
    """As in memory, with a cluster of its own, time between two looks, and clean ends."""

    cluster: str = ""

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def diff(
        self, job: MemoryJob, nodes: Mapping[str, NodeRecord], before: JobCheckpoint
    ) -> tuple[JobCheckpoint, Changes]:
        known, found = MemorySource.diff(self, job, nodes, before)
        changes: Changes = [(self._here(change), after) for change, after in found]
        if job.state == "completed" and not known.ended:
            known = replace(known, ended=True)
            body: Body = {"kind": "exit", "attempt": job.attempt, "code": 0}
            changes.append((LifecycleEvent(job.attempt, body, ends=True), known))
        return known, changes

    def _here(self, change: JobRegistration | LifecycleEvent) -> JobRegistration | LifecycleEvent:
        if isinstance(change, LifecycleEvent):
            return change
        return replace(change, body={**change.body, "cluster": self.cluster})


@dataclass(slots=True)
class Scheduler(MemoryScheduler):
    """wrongs: what must not happen, a launch beside one that runs, and a node taken out that is sound."""

    wrongs: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, cluster: str) -> "Scheduler":
        """Two jobs on four nodes each, and two nodes to spare. The first node is bad."""
        names = [f"{cluster}-{number}" for number in range(10)]
        jobs = [MemoryJob(f"{cluster}-{JOBS[place]}", tuple(names[4 * place : 4 * place + 4])) for place in range(2)]
        nodes = {name: NodeRecord(name) for name in names}
        return cls({job.name: job for job in jobs}, nodes, bad=frozenset({names[0]}))

    def apply(self, words: Any) -> None:
        verb, name, *_ = words
        if verb == "launch" and self.jobs[name].state == "running":
            self.wrongs.append(f"{name} was launched although launch {self.jobs[name].attempt} runs")
        if verb == "cordon" and name not in self.bad:
            self.wrongs.append(f"{name} was taken out and is sound")
        MemoryScheduler.apply(self, words)


class Agent(Process):
    """The agent of a cluster. What it knows survives it in a file."""

    def __init__(self, site: "Site", cluster: str, path: Path) -> None:
        super().__init__(f"agent of {cluster}")
        self.site, self.cluster, self.path = site, cluster, path

    def start(self) -> None:
        scheduler, clock = self.site.schedulers[self.cluster], asyncio.get_running_loop().time
        state = state_file.load(self.path, NOW) if self.path.exists() else AgentState()
        http = httpx.AsyncClient(transport=Network(self.site), base_url="http://diagnoser.test")
        client = ApiClient(http)
        source, cluster = Source(client, scheduler, state, cluster=self.cluster), MemoryCluster(scheduler, self.cluster)
        observer = Observer(client, source, self.cluster, self.path, state)
        executor: Executor[MemoryJob] = Executor(client, cluster, self.name, clock, lambda: NOW + clock(), state=state)
        self.spawn(observer.run(5.0))
        woken = self.site.deliveries.woken[self.cluster] = asyncio.Event()
        self.spawn(runtime._take_plans(executor, self, woken))  # type: ignore[arg-type]

    def create_task(self, work: Any) -> "asyncio.Task[Any]":
        return self.spawn(work)

    async def end(self) -> None:
        """Without a last word: what it would save on its way out is lost."""
        saved = self.path.read_bytes() if self.path.exists() else None
        await super().end()
        if saved is not None:
            self.path.write_bytes(saved)


@dataclass
class Site:
    """trouble: chance that a request or its answer gets lost. acknowledged: lines of rank 1 that were, and ended: how,
    by job and launch. jobs: what trains."""

    url: str
    chance: random.Random
    gate: Gate
    settings: Settings
    trouble: float = 0.05
    replicas: list[Replica] = field(default_factory=list)
    schedulers: dict[str, Scheduler] = field(default_factory=dict)
    agents: list[Agent] = field(default_factory=list)
    jobs: list["asyncio.Task[None]"] = field(default_factory=list)
    acknowledged: dict[tuple[str, int], int] = field(default_factory=dict)
    ended: dict[tuple[str, int], Outcome] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.deliveries = Deliveries(self.chance)
        self.outside = Process("the outside")
        self.gate.on_crash = self.crash

    def crash(self, process: Process) -> None:
        """Kill a replica at a transaction; it is started again after a while."""
        process.kill()
        self.outside.spawn(self._start_again(process))

    async def _start_again(self, process: Process) -> None:
        await process.end()
        await asyncio.sleep(self.chance.uniform(0.0, 20.0))
        assert isinstance(process, Replica)
        await self.start_replica(process.name, process.skew)

    async def start_replica(self, name: str, skew: float) -> None:
        replica = Replica(name, self, skew)
        self.replicas = [*(other for other in self.replicas if not other.is_dead), replica]
        await replica.start()

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
        again = [max(0, first - 5) for first in self.chance.sample(batches, 2)]
        async with httpx.AsyncClient(transport=Network(self), base_url="http://diagnoser.test") as http:
            for first in self.chance.sample([*batches, *again], len(batches) + len(again)):
                await asyncio.sleep(self.chance.uniform(0.0, 5.0))
                numbers = range(first, first + BATCH)
                query: dict[str, Any] = {"job": PREFIX + name, "attempt": launch, "rank": 1, "offset": first}
                await self._deliver(http, query, "".join(f"[rank1]: batch {number} is read\n" for number in numbers))
        self.acknowledged[name, launch] = BATCH * BATCHES

    async def _deliver(self, http: httpx.AsyncClient, query: dict[str, Any], body: str) -> None:
        while True:
            try:
                answer = await http.post(
                    f"{API}/logs", params=query, content=body, headers={"content-type": "text/plain"}
                )
            except httpx.TransportError:
                answer = None
            if answer is not None and answer.is_success:
                return
            assert answer is None or answer.status_code in (429, 503), answer.text
            await asyncio.sleep(1.0)

    async def decide_plans(self) -> None:
        """Approve what waits, as a person does now and then."""
        async with httpx.AsyncClient(transport=Network(self), base_url="http://diagnoser.test") as http:
            while True:
                await asyncio.sleep(self.chance.uniform(20.0, 60.0))
                try:
                    plans = (await http.get(f"{API}/plans", params={"state": "waiting"})).json()["items"]
                    for plan in plans:
                        await http.post(f"{API}/plans/{plan['id']}/approve", json={})
                except (httpx.TransportError, ValueError, KeyError):
                    continue

    async def make_trouble(self, seconds: float) -> None:
        """Kill agents, lose answers of schedulers, and crash replicas at transactions."""
        loop = asyncio.get_running_loop()
        self.gate.crash_chance = 0.003
        while loop.time() < seconds:
            await asyncio.sleep(self.chance.uniform(5.0, 40.0))
            scheduler = self.schedulers[self.chance.choice(list(self.schedulers))]
            if self.chance.random() < 0.5:
                scheduler.faults.append(Fault(arrives=self.chance.random() < 0.5, code=None))
            place = self.chance.randrange(len(self.agents))
            dying = self.agents[place]
            await dying.end()
            self.agents[place] = Agent(self, dying.cluster, dying.path)
            self.agents[place].start()
        self.gate.crash_chance = self.trouble = 0.0
