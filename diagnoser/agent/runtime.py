"""The agent as it runs: it watches its cluster, and carries out plans."""

import asyncio
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from diagnoser.agent import state_file, webhook_listener
from diagnoser.agent.api_client import ApiClient, ClaimedPlan
from diagnoser.agent.claims import CLAIM_SECONDS
from diagnoser.agent.cluster import Cluster, J, JobSource, S
from diagnoser.agent.dry_run import DryRunReporter
from diagnoser.agent.evidence import EvidenceCollector, EvidenceOptions
from diagnoser.agent.executor import Executor
from diagnoser.agent.node_query import known_commands
from diagnoser.agent.observer import Observer
from diagnoser.agent.places import Places
from diagnoser.agent.return_check import ReturnCheck
from diagnoser.agent.state_file import AgentState
from diagnoser.agent.uncordon import Uncordoner
from diagnoser.integrations import http_api
from diagnoser.model.errors import BadInput, Conflict, NotFound, Unavailable
from diagnoser.recovery.node_query import NO_QUERIES, NodeQueryTable

WEBHOOK_SECONDS = 60.0
LONGEST_WAIT = 30.0
PLANS_AT_ONCE = 8

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """Options that the agents of all schedulers share. poll: longest time between two looks, in seconds. state: folder.

    listen: address for the service's signed webhook, instead of a long poll. secret: of that webhook. queries: what
    a node may be asked, and what its answers prove. script: of the site, one more query, "" for none. evidence: what
    may be collected of a run that hangs. places: where nodes stand, as the operator says.
    """

    server: str
    cluster: str
    token: str = ""
    poll: float = 2.0
    logs: bool = True
    state: Path = Path()
    dry: bool = False
    listen: str = ""
    secret: str = ""
    queries: NodeQueryTable = NO_QUERIES
    script: str = ""
    evidence: EvidenceOptions = field(default_factory=EvidenceOptions)
    places: Places = field(default_factory=dict)


Build = Callable[[ApiClient, AgentState], tuple[Cluster[S], JobSource[J]]]
"""(client, what is known from the last run) -> the scheduler's own parts."""


def executor_name(scheduler: str) -> str:
    """Name this agent, as the service shows who carries a plan out."""
    return f"{scheduler}@{socket.gethostname()}"


async def run_agent(
    options: AgentOptions, scheduler: str, build: Build[S, J], *duties: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Run until SIGTERM or SIGINT. duties: the scheduler's own, which never end. Raises Denied, Unavailable,
    BadInput."""
    path = options.state / f"{options.cluster}.json"
    state = state_file.load(path, time.time())
    async with http_api.connect(options.server, options.token) as http:
        client = ApiClient(http)
        cluster, source = build(client, state)
        observer = Observer(client, source, options.cluster, path, state, places=options.places)
        commands = known_commands(options.queries, options.script)
        executor = Executor(
            client,
            cluster,
            executor_name(scheduler),
            clock=time.monotonic,
            now=time.time,
            dry=options.dry,
            commands=commands,
            state=state,
            queries=options.queries,
        )
        check = ReturnCheck(cluster, options.queries, commands)
        uncordoner = Uncordoner(client, cluster, options.cluster, options.dry, check, state)
        running = [observer.run(options.poll), *(duty() for duty in duties), uncordoner.run()]
        woken = None
        if options.dry:
            running.append(DryRunReporter(client, cluster).run())
        if cluster.can_collect:
            running.append(EvidenceCollector(client, cluster).run())
        if options.listen:
            woken = asyncio.Event()
            running.append(webhook_listener.listen(options.listen, options.secret, woken))
        await run(executor, *running, woken=woken)


async def run(executor: Executor[S], *duties: Coroutine[Any, Any, None], woken: asyncio.Event | None = None) -> None:
    """Run until SIGTERM or SIGINT. Raises Denied.

    duties: run beside the executor.
    woken: set when there may be a plan, so that no request has to be held open.
    """
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    log.info("agent_started", cluster=executor.cluster.name, executor=executor.name, dry_run=executor.dry)
    try:
        async with asyncio.TaskGroup() as group:
            for duty in duties:
                group.create_task(duty)
            group.create_task(executor.restore_held_jobs())
            group.create_task(_take_plans(executor, group, woken))
    except asyncio.CancelledError:
        log.info("agent_stopped")
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _take_plans(executor: Executor[S], group: asyncio.TaskGroup, woken: asyncio.Event | None) -> None:
    """Claim plans and carry them out, several at a time: a node check of one job must not hold up the others."""
    turn, pause, wait = asyncio.Semaphore(PLANS_AT_ONCE), 1.0, CLAIM_SECONDS
    if woken:
        wait = 0.0
    while True:
        await turn.acquire()
        try:
            claimed = await executor.client.claim(executor.name, executor.cluster.name, wait)
            pause = 1.0
        except (Unavailable, BadInput, NotFound, Conflict) as error:
            claimed, pause = None, min(2 * pause, LONGEST_WAIT)
            log.warning("claim_failed", why=str(error), again_in=pause)
            await asyncio.sleep(pause)
        if claimed:
            group.create_task(_carry_out(executor, claimed, turn))
            continue
        turn.release()
        if woken and pause == 1.0:  # else it has waited already
            with suppress(TimeoutError):  # a delivery may get lost: ask without one now and then
                async with asyncio.timeout(WEBHOOK_SECONDS):
                    await woken.wait()
            woken.clear()


async def _carry_out(executor: Executor[S], claimed: ClaimedPlan, turn: asyncio.Semaphore) -> None:
    plan = claimed.plan
    log.info("plan_claimed", plan=plan["id"], action=plan["action"], job=plan["job"], nodes=plan["nodes"])
    try:
        await executor.carry_out(claimed)
    except Unavailable as error:
        log.warning("plan_left", plan=plan["id"], why=str(error))
    finally:
        turn.release()
