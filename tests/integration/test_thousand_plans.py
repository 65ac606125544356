"""1,000 plans (60 unless tests are thorough) from the outbox to the cluster, over links that fail three times in ten,
also after the work was done.

Real are the store, the outbox, the signed webhook and its receiver, the API, the agent's loop and its executor. Slurm
is a double that keeps state and counts what it is told to do.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import ColumnElement, Table, func, select
from starlette.types import ASGIApp
from structlog.testing import capture_logs

from diagnoser.adapters.sql import codec
from diagnoser.adapters.sql.database import insert_new
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.adapters.sql.tables import attempts, jobs, outbox, plans
from diagnoser.adapters.wake_signals import LocalWakeSignal
from diagnoser.adapters.webhook import RecoveryWebhook
from diagnoser.agent import runtime, webhook_listener
from diagnoser.agent.api_client import ApiClient
from diagnoser.agent.executor import Executor
from diagnoser.agent.nodes import NodeRecord
from diagnoser.agent.slurm.cluster import SlurmCluster
from diagnoser.agent.slurm.commands import CommandResult, Slurm
from diagnoser.agent.slurm.parsing import JobRecord
from diagnoser.agent.slurm.reconcile import SlurmState
from diagnoser.model import AttemptKey, Job, MessageKind, Mode, Plan, PlanState
from diagnoser.model.queries import PlanFilter
from diagnoser.model.taxonomy import Action
from diagnoser.model.work import DiagnosisRecord
from diagnoser.observability.metrics import Metrics
from diagnoser.recovery.policy import in_mode, plan_key
from diagnoser.web.server import create
from diagnoser.worker.outbox import Outbox, OutboxConfig
from tests.proofs import proven
from tests.serving import ECC, plan_commands, serving
from tests.thorough import THOROUGH

COUNT = 1000 if THOROUGH else 60
FAILING = 0.3
SECRET = "whsec_c2VjcmV0IG9mIHRoZSB0ZXN0IHJ1bg=="


@dataclass
class Clock:
    """Moves only when a test says so: a claim whose answer was lost is free again when its lease has run out."""

    now: float = field(default_factory=time.time)

    def __call__(self) -> float:
        return self.now


class FlakyTransport(httpx.AsyncBaseTransport):
    """Three calls in ten fail: before they arrive, with 503, or on the way back when the work is done."""

    def __init__(self, app: ASGIApp, seed: int) -> None:
        self._inner, self._rng, self.failed = httpx.ASGITransport(app=app), Random(seed), Counter[int]()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        how = self._rng.randrange(3) if self._rng.random() < FAILING else -1
        self.failed[how] += 1
        if how == 0:
            raise httpx.ConnectError("cut")
        if how == 1:
            return httpx.Response(503, request=request)
        answer = await self._inner.handle_async_request(request)
        if how == 2:
            raise httpx.ReadError("cut")
        return answer


@dataclass
class Cluster:
    """A Slurm that does what it is told at once. told: command -> how often."""

    jobs: dict[int, JobRecord]
    nodes: dict[str, NodeRecord]
    told: Counter[tuple[str, ...]] = field(default_factory=Counter)

    async def run(self, words: Sequence[str], seconds: float) -> CommandResult:
        given = tuple(words)
        self.told[given] += 1
        if given[1] == "update":
            name = given[2].removeprefix("nodename=")
            self.nodes[name] = NodeRecord(name, cordoned=True, reason=given[4].removeprefix("reason="))
        else:
            job = self.jobs[int(given[2])]
            self.jobs[job.number] = replace(job, state="PENDING", restarts=job.restarts + 1, nodes=())
        return CommandResult(given, 0)


@dataclass(frozen=True, slots=True)
class Reads(Slurm):
    """Reads the double's state as it is, without the text between."""

    cluster: Cluster = field(default_factory=lambda: Cluster({}, {}))

    async def jobs(self) -> dict[int, JobRecord]:
        return self.cluster.jobs

    async def nodes(self) -> dict[str, NodeRecord]:
        return self.cluster.nodes


def acting(number: int, now: float) -> Plan:
    key, nodes = AttemptKey(f"slurm-east-{number}", 1), (f"n{number}",)
    action = Action.CORDON_AND_RESUBMIT
    plan = Plan(
        id=f"{number:06}",
        key=plan_key(key, action, nodes),
        job=key.job,
        attempt=1,
        action=action,
        nodes=nodes,
        mode=Mode.ACT,
        state=PlanState.SENT,
        reason="",
        created=now,
        expires=now + 86_400.0,
        cluster="east",
    )
    return in_mode(proven(plan), Mode.ACT)


async def stored(store: SqlStore, made: Sequence[Plan]) -> None:
    """Plans with the messages that announce them, as a worker leaves them."""
    announce = plan_commands(webhook=True).planner.announce
    row: dict[str, Any] = {"number": 1, "opened": 0.0}
    async with store.db.writing() as connection:
        for plan in made:
            record = DiagnosisRecord(f"d{plan.id}", AttemptKey(plan.job, 1), 1, plan.created, True, ECC)
            await insert_new(connection, jobs, [{"id": plan.job, "body": codec.job_text(Job(plan.job))}])
            await insert_new(connection, attempts, [{"job": plan.job, **row}])
            await insert_new(connection, plans, [codec.plan_row(plan)])
            await insert_new(connection, outbox, [codec.message_row(one) for one in announce(plan, record)])


def cluster_of(count: int) -> Cluster:
    """Each job has failed on a node of its own."""
    numbers = range(1, count + 1)
    return Cluster(
        {number: JobRecord(number, "FAILED", nodes=(f"n{number}",)) for number in numbers},
        {f"n{number}": NodeRecord(f"n{number}") for number in numbers},
    )


@pytest.mark.timeout(900)
async def test_each_of_many_plans_is_carried_out_exactly_once(tmp_path: Path) -> None:
    """Each node is drained once, each job requeued once, each plan is reached, each delivery arrives."""
    clock, cluster, bell = Clock(), cluster_of(COUNT), asyncio.Event()
    async with AsyncExitStack() as stack:
        stack.enter_context(capture_logs())  # thousands of lines
        web = await stack.enter_async_context(serving(tmp_path, clock=clock, commands=plan_commands(webhook=True)))
        await stored(web.store, [acting(number, clock.now) for number in range(1, COUNT + 1)])
        hook, api = (
            FlakyTransport(webhook_listener.application(SECRET, bell), 1),
            FlakyTransport(create(web.services), 2),
        )
        out = await stack.enter_async_context(httpx.AsyncClient(transport=hook))
        client = await stack.enter_async_context(httpx.AsyncClient(transport=api, base_url="http://diagnoser.test"))
        service = ApiClient(client, pause=lambda _: asyncio.sleep(0))
        slurm = SlurmCluster(Reads(cluster.run, cluster), "east", folder=tmp_path)
        executor: Executor[SlurmState] = Executor(service, slurm, "slurm-1", time.monotonic, time.time)
        agent = asyncio.create_task(runtime.run(executor, woken=bell))
        sending = asyncio.create_task(sending_outbox(web.store, out).run())
        await asyncio.gather(ended(web.store, clock, bell, agent), delivered(web.store))
        for task in (agent, sending):
            task.cancel()
        await asyncio.gather(agent, sending, return_exceptions=True)
        states = {one.state for one in await everything(web.store)}
    assert states == {PlanState.REACHED}
    assert set(cluster.told.values()) == {1}
    assert Counter(command[1] for command in cluster.told) == {"update": COUNT, "requeue": COUNT}
    assert {job.restarts for job in cluster.jobs.values()} == {1}
    assert all(flaky.failed[how] > COUNT / 60 for flaky in (hook, api) for how in (0, 1, 2))


def sending_outbox(store: SqlStore, client: httpx.AsyncClient) -> Outbox:
    sender = RecoveryWebhook("http://10.0.0.1/plans", SECRET, client, time.time, allow_private=True)
    pace = OutboxConfig(first=0.001, longest=0.01, poll=0.01)
    senders = {MessageKind.RECOVERY: sender}
    return Outbox(store.outbox, senders, time.time, LocalWakeSignal(), Random(3), Metrics(CollectorRegistry()), pace)


async def ended(store: SqlStore, clock: Clock, bell: asyncio.Event, agent: asyncio.Task[None]) -> None:
    """Waits for all plans. What nobody has moved for a while was lost with an answer: its lease runs out."""
    before = -1
    while left := await count(store, plans, "sent"):
        assert not agent.done(), agent.exception()
        if left == before:
            clock.now += 61.0
            bell.set()
        before = left
        await asyncio.sleep(1.0)


async def delivered(store: SqlStore) -> None:
    """Waits for the requests to the recovery webhook; the alerts beside them have no receiver here."""
    while await count(store, outbox, "pending", outbox.c.kind == MessageKind.RECOVERY):  # noqa: ASYNC110 - rows
        await asyncio.sleep(0.5)


async def count(store: SqlStore, table: Table, state: str, *more: ColumnElement[bool]) -> int:
    query = select(func.count()).select_from(table).where(table.c.state == state, *more)
    async with store.db.reading() as connection:
        found = await connection.execute(query)
        return int(found.scalar_one())


async def everything(store: SqlStore) -> list[Plan]:
    return await store.plans.page(PlanFilter(), "", COUNT + 1)
