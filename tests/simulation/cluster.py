"""A small cluster whose scheduler keeps a record of who did what, and the agents that may all be killed."""

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from diagnoser.agent import runtime, state_file
from diagnoser.agent.api_client import ApiClient, ClaimedPlan
from diagnoser.agent.changes import Body, Changes, JobRegistration, LifecycleEvent
from diagnoser.agent.cluster import CheckResults, Command, CommandAttempt, Done
from diagnoser.agent.executor import Executor
from diagnoser.agent.nodes import NodeRecord
from diagnoser.agent.observer import Observer
from diagnoser.agent.plan_spec import PlanSpec
from diagnoser.agent.state_file import AgentState, JobCheckpoint
from tests.serving import NOW
from tests.simulation.virtual_time import Process
from tests.unit.memory_cluster import MemoryCluster, MemoryJob, MemoryScheduler, MemorySource

if TYPE_CHECKING:
    from tests.simulation.site import Site

JOBS = ("pretrain", "tune")
"""Two families: what fails alike at the same step in one is held back."""
_claimed: ContextVar[ClaimedPlan] = ContextVar("claimed")
"""What the present task carries out."""


@dataclass(slots=True)
class Scheduler(MemoryScheduler):
    """wrongs: what must not happen. acted: plans that changed something, by job and launch. launched: job and launch
    that have a launch after them already. taken_out: node -> plan that it was taken out for."""

    wrongs: list[str] = field(default_factory=list)
    acted: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    launched: set[tuple[str, int]] = field(default_factory=set)
    taken_out: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, cluster: str) -> "Scheduler":
        """Two jobs on four nodes each, and two nodes to spare. The first node is bad."""
        names = [f"{cluster}-{number}" for number in range(10)]
        jobs = [MemoryJob(f"{cluster}-{JOBS[place]}", tuple(names[4 * place : 4 * place + 4])) for place in range(2)]
        nodes = {name: NodeRecord(name) for name in names}
        return cls({job.name: job for job in jobs}, nodes, bad=frozenset({names[0]}))

    def act(self, command: Command, claimed: ClaimedPlan) -> None:
        """Carry out a command of an agent, which acts for a plan."""
        verb, name, *_ = command.words
        plan = claimed.plan
        place = plan["job"], plan["attempt"]
        plans = self.acted.setdefault(place, set())
        plans.add(plan["id"])
        if len(plans) > 1:
            self.wrongs.append(f"plans {', '.join(sorted(plans))} act for launch {place[1]} of {place[0]}")
        if verb == "launch":
            if place in self.launched:
                self.wrongs.append(f"launch {place[1]} of {place[0]} got a second launch after it")
            self.launched.add(place)
        if verb == "cordon":
            self._look_for_proof(name, plan)
        self.apply(command.words)

    def apply(self, words: Any) -> None:
        verb, name, *_ = words
        if verb == "launch" and self.jobs[name].state == "running":
            self.wrongs.append(f"{name} was launched although launch {self.jobs[name].attempt} runs")
        MemoryScheduler.apply(self, words)

    def _look_for_proof(self, node: str, plan: Mapping[str, Any]) -> None:
        if node not in self.bad:
            self.wrongs.append(f"{node} was taken out and is sound")
        self.taken_out[node] = plan["id"]


@dataclass(frozen=True)
class SimulatedCluster(MemoryCluster):
    """As in memory, where commands take time, and arrive although who sent them has died meanwhile."""

    agent: "Agent" = field(kw_only=True)
    site: "Site" = field(kw_only=True)
    scheduler: Scheduler

    async def run(self, command: Command) -> CommandAttempt:
        await self.agent.go_on()
        claimed = _claimed.get()
        plan = claimed.plan["id"]
        if claimed.token != self.site.claims.holder(plan):
            self.scheduler.wrongs.append(f"{self.agent.name} acts for {plan}, which another agent has claimed since")
        self.scheduler.asked.append(" ".join(command.words))
        arriving = self.site.outside.spawn(self._arrive(command, claimed))
        return await asyncio.shield(arriving)

    async def _arrive(self, command: Command, claimed: ClaimedPlan) -> CommandAttempt:
        chance, faults = self.site.chance, self.scheduler.faults
        await asyncio.sleep(chance.uniform(0.0, 2.0))
        fault = faults.pop(0) if faults else None
        if fault is None or fault.arrives:
            self.scheduler.act(command, claimed)
        await asyncio.sleep(chance.uniform(0.0, 2.0))
        return CommandAttempt(command, None if fault else 0, "no" if fault else "")

    async def check(self, spec: PlanSpec, round: Mapping[str, Any]) -> CheckResults:
        await asyncio.sleep(self.site.chance.uniform(0.0, 200.0))
        return await super().check(spec, round)


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


class Carrier(Executor[MemoryJob]):
    """An executor whose commands say for which plan they are."""

    async def carry_out(self, claimed: ClaimedPlan) -> Done | None:
        _claimed.set(claimed)
        return await Executor.carry_out(self, claimed)


class Agent(Process):
    """An agent of a cluster. What it knows survives it in a file.

    skew: of its clock, in seconds. joined: when it reaches the service again, if it is cut off.
    """

    def __init__(self, site: "Site", name: str, cluster: str, path: Path, skew: float) -> None:
        super().__init__(name)
        self.site, self.cluster, self.path, self.skew = site, cluster, path, skew
        self.joined = 0.0
        self.woken = asyncio.Event()

    def now(self) -> float:
        return NOW + asyncio.get_running_loop().time() + self.skew

    def start(self, http: httpx.AsyncClient) -> None:
        scheduler = self.site.schedulers[self.cluster]
        state = state_file.load(self.path, self.now()) if self.path.exists() else AgentState()
        client = ApiClient(http)
        source = Source(client, scheduler, state, cluster=self.cluster)
        cluster = SimulatedCluster(scheduler, self.cluster, agent=self, site=self.site)
        observer = Observer(client, source, self.cluster, self.path, state)
        clock = asyncio.get_running_loop().time
        executor = Carrier(client, cluster, self.name, clock, self.now, state=state)
        self.spawn(observer.run(8.0))
        self.spawn(executor.restore_held_jobs())
        self.spawn(runtime._take_plans(executor, self, self.woken))  # type: ignore[arg-type]

    def create_task(self, work: Any) -> "asyncio.Task[Any]":
        return self.spawn(work)

    async def end(self) -> None:
        """Without a last word: what it would save on its way out is lost."""
        saved = self.path.read_bytes() if self.path.exists() else None
        await super().end()
        if saved is None:
            self.path.unlink(missing_ok=True)
        else:
            self.path.write_bytes(saved)
