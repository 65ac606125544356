"""Slurm, as plans are carried out on it."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from diagnoser.agent import node_check, node_query
from diagnoser.agent.cluster import AskResults, CheckResults, Command, CommandAttempt, NodeQuestion, NotCollected
from diagnoser.agent.nodes import NodeRecord
from diagnoser.agent.plan_spec import PlanSpec, parse_plan, return_spec
from diagnoser.agent.slurm import reconcile
from diagnoser.agent.slurm.check import CHECK_JOB, QUERY_JOB, SrunCheck, SrunQueries
from diagnoser.agent.slurm.commands import COMMAND_SECONDS, LENT, Slurm, in_maintenance
from diagnoser.agent.slurm.evidence import SlurmEvidence
from diagnoser.agent.slurm.parsing import JobRecord, valid_node
from diagnoser.agent.slurm.reconcile import SlurmState, scontrol
from diagnoser.model import EvidenceRequest, RuntimeFile
from diagnoser.model.errors import Denied, Unavailable
from diagnoser.model.taxonomy import Action

AWAY = re.compile(
    r"Unable to contact slurm controller|slurmrestd is away|Socket timed out|Connection refused|"
    r"Zero Bytes were transmitted"
)
"""Slurm's words when a command did not reach the controller: it is run again when the controller is back."""
RETURN_LOOKS = 60
_VALUE = re.compile(r"[^,'\"\\\x00-\x1f\x7f]{1,1000}")
"""Of a variable of sbatch: other characters would end it early."""


@dataclass(frozen=True, slots=True)
class SlurmCluster:
    """program: of the node check and its arguments, as the nodes call it; empty for none. user: whom Slurm knows this
    process as. folder: for batch scripts. evidence: how it is collected, None for not at all."""

    slurm: Slurm
    name: str
    program: tuple[str, ...] = ()
    user: str = "root"
    folder: Path = Path()
    evidence: SlurmEvidence | None = None

    running = staticmethod(reconcile.running)
    hold = staticmethod(reconcile.hold)
    relaunch = staticmethod(reconcile.relaunch)
    put_back = staticmethod(reconcile.put_back)
    check_is_vouched = True
    can_ask = True

    @property
    def can_check(self) -> bool:
        return bool(self.program)

    def spec(self, plan: Mapping[str, Any], failure_type: str) -> PlanSpec:
        reconcile.job_number(self.name, plan["job"])
        return parse_plan(plan, failure_type, valid_node, _VALUE)

    async def nodes(self, names: Collection[str] = ()) -> Mapping[str, NodeRecord]:
        return await self.slurm.nodes()

    async def job(self, spec: PlanSpec) -> SlurmState:
        jobs, number = await self.slurm.jobs(), reconcile.job_number(self.name, spec.job)
        job = jobs.get(number)
        copies = [candidate for candidate in jobs.values() if reconcile.is_copy(candidate, spec)]
        copy = next((candidate for candidate in copies if candidate.replaces(job, number)), None)
        reserved: tuple[str, ...] = ()
        if spec.action is Action.CHECK_AND_RESUBMIT:
            reserved = await self.slurm.reservation(reconcile.reservation(spec))
        script = str(self.folder / f"{number}.sh")
        state = SlurmState(job, copy, self.user, script, self._busy(jobs.values(), number), reserved)
        links = (candidate for candidate in jobs.values() if job and not copies and candidate.goes_on_for(job))
        renewals = (reconcile.renewal(other, job, copy) for other in jobs.values() if job)
        return replace(state, next_link=next(links, None), renewals=tuple(filter(None, renewals)))

    def cordon(self, spec: PlanSpec, node: NodeRecord) -> Command:
        return scontrol("update", f"nodename={node.name}", "state=drain", f"reason={spec.reason}")

    def uncordon(self, node: NodeRecord) -> Command:
        return scontrol("update", f"nodename={node.name}", "state=resume")

    async def run(self, command: Command) -> CommandAttempt:
        result = await self.slurm.runner(command.words, COMMAND_SECONDS)
        if result.code != 0 and AWAY.search(result.message):
            return CommandAttempt(command, None, result.message)
        return CommandAttempt(command, result.code, result.message)

    async def lend(self, node: NodeRecord) -> None:
        """A drained node runs nothing: it is resumed inside a reservation that only this user may use."""
        spec = return_spec(node.name)
        if node.name not in await self.slurm.reservation(reconcile.reservation(spec)):
            await self._run_for_loan(reconcile.loan(spec, self.user))
        try:
            await self._wait_until(node.name, in_maintenance)  # before it is resumed: no look takes it for free then
            await self.run(self.uncordon(node))  # Slurm refuses it where an agent died after it
            await self._wait_until(node.name, lambda seen: seen.up)  # it has not answered yet
        except (Denied, Unavailable):
            with suppress(Denied, Unavailable):
                await self.end_loan(node)
            raise

    async def _wait_until(self, node: str, holds: Callable[[NodeRecord], bool]) -> None:
        """Raises Denied when it never does."""
        for _ in range(RETURN_LOOKS):
            seen = (await self.slurm.nodes()).get(node)
            if seen and holds(seen):
                return
            await asyncio.sleep(1.0)
        raise Denied(f"{node} could not be kept for its check within {RETURN_LOOKS} s")

    async def end_loan(self, node: NodeRecord) -> None:
        """The drain first: without the reservation jobs begin on a node that is not drained. What somebody drained
        during the loan keeps that reason."""
        seen = (await self.slurm.nodes()).get(node.name)
        if seen is None or not seen.cordoned or seen.reason == LENT:
            drain = scontrol("update", f"nodename={node.name}", "state=drain", f"reason={node.reason}")
            await self._run_for_loan(drain)
        await self._run_for_loan(reconcile.free(return_spec(node.name)))

    async def _run_for_loan(self, command: Command) -> None:
        """Raises Denied, Unavailable."""
        attempt = await self.run(command)
        if attempt.code is None:
            raise Unavailable(f"{command.line}: {attempt.output}")
        if attempt.code != 0:
            raise Denied(f"{command.line}: {attempt.output}")

    async def check(self, spec: PlanSpec, round: Mapping[str, Any]) -> CheckResults:
        """Raises Denied where another job runs on one of the nodes: a partition may share them whatever srun asks
        for."""
        number = reconcile.job_number(self.name, spec.job) if spec.job else 0
        nodes, jobs, reservation = await asyncio.gather(self.nodes(), self.slurm.jobs(), self._reservation(spec))
        if busy := self._busy(jobs.values(), number).intersection(chain.from_iterable(round["pairs"])):
            raise Denied(f"other jobs run on {', '.join(sorted(busy))}, and are not disturbed")
        check = SrunCheck(self.slurm.runner, self.program, nodes, float(round["timeout_seconds"]), reservation)
        return await node_check.run_groups(round, nodes, check.run)

    def _busy(self, jobs: Iterable[JobRecord], number: int) -> frozenset[str]:
        """Nodes on which jobs run beside the one of this number, and beside our own on nodes that are looked after."""
        ours, busy = {(self.user, CHECK_JOB), (self.user, QUERY_JOB)}, set[str]()
        for job in jobs:
            if not job.runs:
                continue
            if job.number == number:
                continue
            if (job.user, job.name) not in ours:
                busy.update(job.nodes)
        return frozenset(busy)

    async def ask(self, spec: PlanSpec, questions: Sequence[NodeQuestion]) -> AskResults:
        nodes, reservation = await asyncio.gather(self.nodes(), self._reservation(spec))
        return await node_query.ask_nodes(questions, nodes, SrunQueries(self.slurm.runner, nodes, reservation).ask)

    async def _reservation(self, spec: PlanSpec) -> str:
        """Name the one that keeps the nodes for the check; "" where they could not be reserved."""
        name = reconcile.reservation(spec)
        if not await self.slurm.reservation(name):
            return ""
        return name

    @property
    def can_collect(self) -> bool:
        return self.evidence is not None and self.evidence.options.any

    def collect(self, asked: EvidenceRequest) -> AsyncGenerator[RuntimeFile | NotCollected]:
        assert self.evidence is not None, "the caller has asked whether it can collect"
        return self.evidence.collect(asked)

    async def free(self, spec: PlanSpec) -> None:
        await self.run(reconcile.free(spec))
