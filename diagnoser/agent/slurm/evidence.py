"""Evidence of a job on Slurm: its dump files, and a program on each of its nodes, within its own allocation.

The program runs as the job's user: Slurm lets nobody else, not even root, into a user's allocation, and so nothing that
is run here has rights that the job does not have.
"""

import os
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from functools import partial

import orjson

from diagnoser.agent import evidence
from diagnoser.agent.cluster import NotCollected
from diagnoser.agent.evidence import CLOCKS, PROGRAM_SECONDS, RAS_NODES, EvidenceOptions, LaunchWindow
from diagnoser.agent.slurm import commands
from diagnoser.agent.slurm.commands import Runner, Slurm
from diagnoser.agent.slurm.parsing import JobRecord
from diagnoser.agent.slurm.reconcile import job_number
from diagnoser.model import EvidenceRequest, RuntimeFile
from diagnoser.model.errors import Unavailable

FIELDS = ("job", "user")
STEP = "diagnoser-evidence"
STEP_SECONDS = 4 * PROGRAM_SECONDS
OUTPUT_BYTES = 32 << 20
"""Of one node, packed."""


@dataclass(frozen=True, slots=True)
class SlurmEvidence:
    """dry: nothing is run on nodes. runner: of steps; what they print is kept within bounds."""

    slurm: Slurm
    cluster: str
    options: EvidenceOptions = field(default_factory=EvidenceOptions)
    dry: bool = False
    runner: Runner = field(default=partial(commands.run, limit=OUTPUT_BYTES))

    async def collect(self, asked: EvidenceRequest) -> AsyncGenerator[RuntimeFile | NotCollected]:
        number = job_number(self.cluster, asked.attempt.job)
        job = (await self.slurm.jobs()).get(number)
        if job is None or not job.has_launch(asked.attempt.number):
            yield NotCollected(f"Slurm knows launch {asked.attempt.number} of job {number} no more")
            return
        window = _window(job, asked)
        refusal = self._why_no_programs(job, asked.attempt.number)
        ask = partial(self._step, job, window)
        async for item in evidence.collect(self.options, asked, window, job.nodes, ask, refusal):
            yield item

    def _why_no_programs(self, job: JobRecord, attempt: int) -> str:
        """Say why nothing may be run beside the launch; "" where it may."""
        if self.dry:
            return "dry run: nothing is run on the nodes"
        if job.is_suspended:
            return "the job is suspended"
        if not job.runs:
            return f"launch {attempt} has ended"
        if job.attempt != attempt:
            return f"launch {attempt} has ended"
        return ""

    async def _step(self, job: JobRecord, window: LaunchWindow, place: int, node: str) -> str:
        """Beside the steps that run: it takes no processors, memory or GPUs from them."""
        program = evidence.program(self.options.node_dumps, window, str(job.number), ras=place < RAS_NODES)
        options = (
            f"--jobid={job.number}",
            f"--job-name={STEP}",
            f"--nodelist={node}",
            "--overlap",
            "--nodes=1",
            "--ntasks=1",
            "--mem=0",
            "--gres=none",
            "--mpi=none",
            "--input=none",
            "--quiet",
            "--time=2",
            "--export=PATH",
            "--chdir=/",
        )
        words = (*_as_user(job), "srun", *options, *program)
        result = await self.runner(words, STEP_SECONDS)
        if result.not_started:
            raise Unavailable(f"Slurm did not start the collector: {result.message[-300:]}")
        if result.code == 0:
            return result.output
        how = str(result.code)
        if not result.output:
            how = result.message[-200:]
        note = orjson.dumps({"note": f"the collector ended early: {how}"})
        return f"{result.output}\n{note.decode()}"


def _window(job: JobRecord, asked: EvidenceRequest) -> LaunchWindow:
    """A launch before the present one ended before that began."""
    since, until = asked.since - CLOCKS, float("inf")
    if job.attempt == asked.attempt.number:
        since = max(since, job.started)
    elif job.runs:
        until = job.started
    return LaunchWindow({"job": str(job.number), "user": job.user}, job.uid, since, until)


def _as_user(job: JobRecord) -> Sequence[str]:
    """Without our groups and privileges. An agent that is not root is refused by Slurm, unless the job is its own."""
    if os.getuid() != 0:
        return ()
    return ("setpriv", f"--reuid={job.uid}", f"--regid={job.gid}", "--clear-groups", "--no-new-privs", "--")
