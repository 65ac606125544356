"""Watches a Slurm cluster: its jobs, their log files, its nodes."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import structlog

from diagnoser.agent.api_client import ApiClient
from diagnoser.agent.changes import Changes
from diagnoser.agent.cluster import ClusterSnapshot
from diagnoser.agent.nodes import NodeRecord
from diagnoser.agent.places import Places
from diagnoser.agent.slurm import changes
from diagnoser.agent.slurm.commands import Slurm
from diagnoser.agent.slurm.parsing import JobRecord
from diagnoser.agent.slurm.reconcile import job_id
from diagnoser.agent.state_file import AgentState, JobCheckpoint, LogOffset
from diagnoser.client import log_file
from diagnoser.model.errors import BadInput

CHUNKS = 8
"""Of one log in one look: a long log must not hold up the others."""
LAST_BYTES = 256 << 20  # of a log whose job has ended
STUCK_SECONDS, STUCK_PAUSE = 30.0, 600.0
"""For one read, and before the next one of a log whose file system does not answer: events go on meanwhile."""

log = structlog.get_logger()


TOPOLOGY_SECONDS = 3600.0


@dataclass(slots=True)
class SlurmSource:
    """logs: whether to ship them. now: seconds since the epoch. places: where nodes stand, and places_read: when that
    was read, by ``now``. Jobs are known by their number, logs by their file."""

    client: ApiClient
    slurm: Slurm
    cluster: str
    state: AgentState
    now: Callable[[], float]
    logs: bool = True
    places: Places = field(default_factory=dict)
    places_read: float = 0.0
    stuck: dict[str, float] = field(default_factory=dict)
    """Log -> when it is read again, of those whose file system did not answer."""
    log_source: str = field(default="scontrol", init=False)

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def snapshot(self, state: AgentState) -> ClusterSnapshot[JobRecord]:
        now = self.now()
        listed, nodes = await asyncio.gather(self.slurm.jobs(), self.slurm.nodes())
        jobs = await self._concerned({str(number): job for number, job in listed.items()}, state)
        changes.keep_logs(jobs, state)
        jobs = changes.share_logs(jobs, state)
        if now >= self.places_read + TOPOLOGY_SECONDS:
            self.places, self.places_read = await self.slurm.places(), now
        return ClusterSnapshot(jobs, nodes, now, self.places)

    async def _concerned(self, listed: Mapping[str, JobRecord], state: AgentState) -> dict[str, JobRecord]:
        """Pick the jobs to look at, with those that Slurm forgot before their end was reported."""
        state.waits = changes.wait_reasons(listed, state.waits)
        jobs = {}
        for key, job in listed.items():
            if changes.concerns(job, key in state.jobs, state.time):
                output = _output_at_launch(job, state.jobs.get(key))
                jobs[key] = replace(job, wait_reason=state.waits.get(key, ""), output=output)
        for key, checkpoint in state.jobs.items():
            if key in listed:
                continue
            if checkpoint.is_open:
                jobs[key] = changes.forgotten(checkpoint, await self.slurm.ended(int(key)))
        return jobs

    async def first_checkpoint(self, job: JobRecord) -> JobCheckpoint:
        """The log of a job that was requeued before may hold the lines of earlier launches, which nobody can tell apart
        now: only what comes from now on surely belongs to this launch."""
        if all((self.logs, job.restarts, job.output, not job.log_of, job.log_key not in self.state.logs)):
            try:
                async with asyncio.timeout(STUCK_SECONDS):
                    begin = await asyncio.to_thread(log_file.near_end, job.output, LogOffset(), LAST_BYTES, job.uid)
                    end = await asyncio.to_thread(log_file.end_of, job.output, begin, job.uid)
                self.state.logs[job.log_key] = replace(end, job=job.number, attempt=job.attempt)
            except OSError as error:
                log.debug("log_not_read", job=job.number, why=str(error))
        return JobCheckpoint(job_id(self.cluster, job.number), job.attempt)

    def diff(
        self, job: JobRecord, nodes: Mapping[str, NodeRecord], before: JobCheckpoint
    ) -> tuple[JobCheckpoint, Changes]:
        return changes.diff(job, nodes, before, self.cluster)

    async def ship(self, job: JobRecord, checkpoint: JobCheckpoint, *, rest: bool) -> None:
        if not self.logs:
            return
        if not checkpoint.started:
            return
        if not job.output:
            return
        if job.log_of:
            return
        key, count = job.log_key, 0
        offset = self.state.logs.get(key, LogOffset())
        if (offset.job, offset.attempt) != (job.number, checkpoint.attempt):
            offset = replace(offset, job=job.number, attempt=checkpoint.attempt, first=True)
        while rest or count < CHUNKS:
            count += 1
            chunk = await self._next_chunk(job, offset, rest=rest)
            if chunk is None:
                return
            try:
                await self.client.lines(checkpoint.job, checkpoint.attempt, "stdout", chunk.first, chunk.body)
            except BadInput as error:
                log.warning("lines_refused", job=checkpoint.job, first=chunk.first, why=str(error))
            self.state.logs[key] = offset = chunk.offset

    async def _next_chunk(
        self, job: JobRecord, offset: LogOffset, *, rest: bool
    ) -> log_file.LogChunk[LogOffset] | None:
        if self.stuck.get(job.output, 0.0) > self.now():
            return None
        try:
            async with asyncio.timeout(STUCK_SECONDS):
                if rest:
                    offset = await asyncio.to_thread(log_file.near_end, job.output, offset, LAST_BYTES, job.uid)
                return await asyncio.to_thread(log_file.read_chunk, job.output, offset, job.uid, rest=rest)
        except OSError as error:
            if isinstance(error, TimeoutError):
                self.stuck[job.output] = self.now() + STUCK_PAUSE
            log.debug("log_not_read", job=job.number, why=str(error))
            return None


def _output_at_launch(job: JobRecord, known: JobCheckpoint | None) -> str:
    """Where the launch of a job began its log: one that was renamed since then still prints there."""
    if known is None:
        return job.output
    if not known.started:
        return job.output
    if (known.attempt, known.uid) != (job.attempt, job.uid):
        return job.output
    return known.output or job.output
