"""A scheduler in memory, as the agent's third: jobs, nodes, launches. It keeps state, and loses answers when told to.

Its commands: ``cordon NODE REASON``, ``uncordon NODE``, ``hold JOB``, ``launch JOB [NAME=VALUE ...]``.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from diagnoser.agent import node_check, node_query
from diagnoser.agent.changes import Body, Changes, LifecycleEvent, registration
from diagnoser.agent.cluster import (
    AskResults,
    Attempts,
    CheckResults,
    ClusterSnapshot,
    Command,
    CommandAttempt,
    Done,
    Held,
    NextStep,
    NodeQuestion,
    NotCollected,
)
from diagnoser.agent.nodes import NodeRecord
from diagnoser.agent.plan_spec import PlanSpec, parse_plan
from diagnoser.agent.state_file import AgentState, JobCheckpoint, LogOffset
from diagnoser.model import EvidenceRequest, RuntimeFile
from diagnoser.model.errors import BadInput, Unavailable

PREFIX = "memory-"


@dataclass(frozen=True, slots=True)
class MemoryJob:
    """state: running, failed, or held. log: what the present launch has printed."""

    name: str
    nodes: tuple[str, ...]
    attempt: int = 1
    state: str = "running"
    variables: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    user: str = "ida"

    @property
    def held(self) -> str:
        return "the job is held" if self.state == "held" else ""


@dataclass(slots=True)
class Fault:
    """What becomes of the next command: whether it arrives, and what is answered (None: nothing)."""

    arrives: bool = True
    code: int | None = 0
    passing: bool = False


@dataclass(slots=True)
class MemoryScheduler:
    """away: how many more reads fail. faults: of the next commands. asked: every command. done: those that arrived.

    no_room: how many more checks cannot be started. bad: nodes that fail a check. gate: what a check waits for.
    said: what nodes print when they are asked. dumps: what can be collected of any job. collected: how often it was
    begun. hangs: collecting does not come to an end. lent: nodes that only a check may use now.
    """

    jobs: dict[str, MemoryJob] = field(default_factory=dict)
    all_nodes: dict[str, NodeRecord] = field(default_factory=dict)
    away: int = 0
    faults: list[Fault] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    no_room: int = 0
    bad: frozenset[str] = frozenset()
    gate: asyncio.Event | None = None
    said: dict[str, str] = field(default_factory=dict)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    dumps: list[RuntimeFile | NotCollected] = field(default_factory=list)
    collected: int = 0
    hangs: bool = False
    lent: list[str] = field(default_factory=list)

    def read(self) -> None:
        if self.away:
            self.away -= 1
            raise Unavailable("the scheduler is slow")

    def apply(self, words: Sequence[str]) -> None:
        self.done[" ".join(words)] += 1
        self.arrived.set()
        verb, name, *rest = words
        if verb == "cordon":
            self.all_nodes[name] = replace(self.all_nodes[name], cordoned=True, reason=rest[0])
        elif verb == "uncordon":
            self.all_nodes[name] = replace(self.all_nodes[name], cordoned=False, reason="")
        elif verb == "hold":
            self.jobs[name] = replace(self.jobs[name], state="held")
        else:
            job = self.jobs[name]
            free = [node.name for node in self.all_nodes.values() if node.up and not node.cordoned]
            nodes = tuple(free[: len(job.nodes)])
            self.jobs[name] = MemoryJob(name, nodes, job.attempt + 1, "running", tuple(rest), user=job.user)


@dataclass(frozen=True, slots=True)
class MemoryCluster:
    """checks: whether there is a node check. vouched: whether it is the operator's."""

    scheduler: MemoryScheduler
    name: str = "lab"
    checks: bool = True
    vouched: bool = True

    @property
    def can_check(self) -> bool:
        return self.checks

    @property
    def check_is_vouched(self) -> bool:
        return self.vouched

    @property
    def can_ask(self) -> bool:
        return bool(self.scheduler.said)

    def spec(self, plan: Mapping[str, Any], failure_type: str) -> PlanSpec:
        if not plan["job"].startswith(PREFIX):
            raise BadInput(f"{plan['job']} is no job of this cluster")
        return parse_plan(plan, failure_type, str, re.compile(r"[ -~]+"))

    async def nodes(self, names: Collection[str]) -> Mapping[str, NodeRecord]:
        self.scheduler.read()
        return dict(self.scheduler.all_nodes)

    async def job(self, spec: PlanSpec) -> MemoryJob:
        self.scheduler.read()
        return self.scheduler.jobs[spec.job.removeprefix(PREFIX)]

    def running(self, spec: PlanSpec, state: MemoryJob) -> bool:
        return state.attempt == spec.attempt and state.state == "running"

    def cordon(self, spec: PlanSpec, node: NodeRecord) -> Command:
        return Command(("cordon", node.name, spec.reason))

    def uncordon(self, node: NodeRecord) -> Command:
        return Command(("uncordon", node.name))

    def hold(self, spec: PlanSpec, state: MemoryJob, attempts: Attempts) -> NextStep:
        if state.attempt > spec.attempt:
            return Done(False, f"launch {state.attempt} runs already")
        if state.state == "held":
            return Held()
        return attempts.unless_refused(Command(("hold", state.name)), "the job could not be held")

    def relaunch(self, spec: PlanSpec, state: MemoryJob, attempts: Attempts) -> NextStep:
        if state.attempt > spec.attempt:
            return Done(True, f"launch {state.attempt} runs", spec.job)
        variables = (f"{name}={value}" for name, value in spec.variables)
        return attempts.unless_refused(Command(("launch", state.name, *variables)), "the job could not be launched")

    def put_back(self, spec: PlanSpec, state: MemoryJob, attempts: Attempts) -> NextStep:
        return self.relaunch(replace(spec, variables=()), state, attempts) if state.held else Done(True, "it runs")

    async def run(self, command: Command) -> CommandAttempt:
        self.scheduler.asked.append(" ".join(command.words))
        fault = self.scheduler.faults.pop(0) if self.scheduler.faults else Fault()
        if fault.arrives:
            self.scheduler.apply(command.words)
        await asyncio.sleep(0)  # where an agent may die: the work is done, and nobody knows
        return CommandAttempt(command, fault.code, "" if fault.code == 0 else "no", fault.passing)

    async def lend(self, node: NodeRecord) -> None:
        self.scheduler.lent.append(node.name)

    async def end_loan(self, node: NodeRecord) -> None:
        self.scheduler.lent.remove(node.name)

    async def check(self, spec: PlanSpec, round: Mapping[str, Any]) -> CheckResults:
        async def run_group(
            place: int, group: Sequence[str], attempts: list[CommandAttempt]
        ) -> tuple[bool, str, float]:
            if self.scheduler.gate:
                await self.scheduler.gate.wait()
            if self.scheduler.no_room:
                self.scheduler.no_room -= 1
                raise Unavailable("the check was not started")
            attempts.append(CommandAttempt(Command(("check", *group)), 0))
            return self.scheduler.bad.isdisjoint(group), 'printed {"seconds": 2.5}', 9.0

        return await node_check.run_groups(round, self.scheduler.all_nodes, run_group)

    async def ask(self, spec: PlanSpec, questions: Sequence[NodeQuestion]) -> AskResults:
        async def ask_node(place: int, node: str, asked: Sequence[NodeQuestion], attempts: list[CommandAttempt]) -> str:
            attempts.append(CommandAttempt(Command(("ask", node, *(question.id for question in asked))), 0))
            if node not in self.scheduler.said:
                raise Unavailable(f"{node} cannot be asked")
            return self.scheduler.said[node]

        return await node_query.ask_nodes(questions, self.scheduler.all_nodes, ask_node)

    @property
    def can_collect(self) -> bool:
        return True

    async def collect(self, asked: EvidenceRequest) -> AsyncGenerator[RuntimeFile | NotCollected]:
        self.scheduler.collected += 1
        self.scheduler.read()
        if not asked.attempt.job.startswith(PREFIX):
            raise BadInput(f"{asked.attempt.job} is no job of this cluster")
        for dump in self.scheduler.dumps:
            yield dump
        if self.scheduler.hangs:
            await asyncio.Event().wait()

    async def free(self, spec: PlanSpec) -> None:
        self.scheduler.asked.append("free")


@dataclass(slots=True)
class MemorySource:
    """client: where logs are sent."""

    client: Any
    scheduler: MemoryScheduler
    state: AgentState
    log_source: str = "memory"

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(0)

    async def snapshot(self, state: AgentState) -> ClusterSnapshot[MemoryJob]:
        self.scheduler.read()
        return ClusterSnapshot(dict(self.scheduler.jobs), dict(self.scheduler.all_nodes), 100.0)

    async def first_checkpoint(self, job: MemoryJob) -> JobCheckpoint | None:
        return JobCheckpoint(PREFIX + job.name, job.attempt) if job.state != "held" else None

    def diff(
        self, job: MemoryJob, nodes: Mapping[str, NodeRecord], before: JobCheckpoint
    ) -> tuple[JobCheckpoint, Changes]:
        known, changes = before, Changes()
        if job.attempt > known.attempt:
            known = JobCheckpoint(known.job, job.attempt, earlier_nodes=known.all_nodes)
        if not known.started:
            changes.append((registration(known, "lab", job.name, job.nodes, {}, {}, job.user), known))
            known = replace(known, started=True, nodes=job.nodes)
            changes.append((LifecycleEvent(job.attempt, {"kind": "started", "attempt": job.attempt}), known))
        if job.state == "failed" and not known.ended:
            known = replace(known, ended=True)
            body: Body = {"kind": "exit", "attempt": job.attempt, "code": 1}
            lines = tuple(nodes[name].record for name in job.nodes if not nodes[name].up)
            changes.append((LifecycleEvent(job.attempt, body, ends=True, lines=lines), known))
        return known, changes

    async def ship(self, job: MemoryJob, checkpoint: JobCheckpoint, *, rest: bool) -> None:
        key = f"{job.name}/{checkpoint.attempt}"
        sent = self.state.logs.get(key, LogOffset()).lines
        if job.log[sent:] and checkpoint.attempt == job.attempt:
            body = "".join(f"{line}\n" for line in job.log[sent:]).encode()
            await self.client.lines(checkpoint.job, checkpoint.attempt, "stdout", sent, body)
            self.state.logs[key] = LogOffset(len(job.log))
