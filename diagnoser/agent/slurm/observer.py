"""Tells the service what happens on the cluster: jobs with their nodes and ends, their logs, and the nodes."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from diagnoser.agent import tail
from diagnoser.agent.service import Service
from diagnoser.agent.slurm import memory, watch
from diagnoser.agent.slurm.commands import Slurm
from diagnoser.agent.slurm.records import JobRecord, NodeRecord
from diagnoser.agent.slurm.steps import job_id
from diagnoser.agent.slurm.watch import Happened, Registered, Seen, Tracked
from diagnoser.agent.tail import Mark
from diagnoser.model.errors import BadInput, Unavailable

PIECES = 8
"""Pieces of one log in one look: a long log must not hold up the others."""
JOBS_AT_ONCE = 8

log = structlog.get_logger()


@dataclass(slots=True)
class Observer:
    """logs: whether to ship them. now: seconds since the epoch."""

    service: Service
    slurm: Slurm
    cluster: str
    path: Path
    now: Callable[[], float]
    seen: Seen
    logs: bool = True

    async def look(self) -> None:
        """One look at everything. Raises Unavailable when Slurm or the service is away; the next look goes on there."""
        now = self.now()
        jobs, nodes = await asyncio.gather(self.slurm.jobs(), self.slurm.nodes())
        concerned = [
            job for job in jobs.values() if watch.concerns(job, self.seen.jobs.get(job.number), self.seen.time)
        ]
        concerned += await self._forgotten(jobs)
        turn = asyncio.Semaphore(JOBS_AT_ONCE)
        tracked = {job.number: self.seen.jobs[job.number] for job in concerned if job.number in self.seen.jobs}
        away: list[Unavailable] = []

        async def follow(job: JobRecord) -> None:
            async with turn:
                try:
                    tracked[job.number] = await self._follow(job, tracked.get(job.number), nodes)
                except _Later as later:
                    tracked[job.number] = later.tracked
                    away.append(later.why)

        await asyncio.gather(*(follow(job) for job in concerned))
        standing = await self._tell_nodes(nodes)
        self.seen = Seen(self.seen.time if away else now, tracked, standing)
        memory.save(self.path, self.seen)
        if away:
            raise away[0]

    async def _forgotten(self, jobs: Collection[int]) -> list[JobRecord]:
        """Jobs that ended while this agent was away, so long ago that the controller tells of them no more."""
        missing = {
            number: one
            for number, one in self.seen.jobs.items()
            if number not in jobs and one.started and not one.ended
        }
        return [watch.forgotten(one, await self.slurm.ended(number)) for number, one in missing.items()]

    async def _follow(self, job: JobRecord, before: Tracked | None, nodes: Mapping[str, NodeRecord]) -> Tracked:
        """The job as it is tracked now. Raises _Later with how far it came: what was told is not told again."""
        name = job_id(self.cluster, job.number)
        after, told = watch.news(job, before, nodes, self.cluster, name)
        current = before or replace(after, started=False, ended=False, mark=self._begin(job))
        try:
            for one in told:
                current = await self._tell(job, name, current, one)
            if current.attempt != after.attempt:
                current = replace(after, mark=replace(current.mark, first=True))
            return await self._ship(job, name, replace(after, mark=current.mark), rest=False)
        except Unavailable as error:
            raise _Later(current, error) from None
        except BadInput as error:
            log.warning("job_refused", job=name, why=str(error))
            return replace(after, mark=current.mark)

    async def _tell(self, job: JobRecord, id: str, current: Tracked, one: Registered | Happened) -> Tracked:
        if isinstance(one, Registered):
            await self.service.register(one.body)
            return current
        if not one.ends:
            if current.attempt != one.attempt:
                current = Tracked(one.attempt, mark=replace(current.mark, first=True))
            await self.service.event(id, one.body)
            return replace(current, started=True, nodes=job.nodes)
        current = await self._ship(job, id, current, rest=True)
        if one.records:
            body = "".join(f"{text}\n" for text in one.records).encode()
            await self.service.lines(id, one.attempt, "scontrol", 0, body)
        await self.service.event(id, one.body)
        return replace(current, ended=True)

    async def _ship(self, job: JobRecord, id: str, current: Tracked, *, rest: bool) -> Tracked:
        """Sends what the log has gained. rest: all of it, because the attempt writes no more."""
        if not self.logs or not job.output or not current.started:
            return current
        pieces = 0
        while rest or pieces < PIECES:
            pieces += 1
            try:
                piece = await asyncio.to_thread(tail.read, job.output, current.mark, job.uid, rest=rest)
            except (OSError, BadInput) as error:
                log.debug("log_not_read", job=id, why=str(error))
                return current
            if piece is None:
                return current
            try:
                await self.service.lines(id, current.attempt, "stdout", piece.first, piece.body)
            except Unavailable as error:
                raise _Later(current, error) from None
            except BadInput as error:
                log.warning("lines_refused", job=id, first=piece.first, why=str(error))
            current = replace(current, mark=piece.mark)
        return current

    def _begin(self, job: JobRecord) -> Mark:
        """Where to begin with a job that was not known. The log of a job that was requeued before may hold the lines
        of earlier launches, which nobody can tell apart now: only what comes from now on is this launch's for sure."""
        if not self.logs or job.restarts == 0 or not job.output:
            return Mark()
        try:
            return tail.end_of(job.output, job.uid)
        except (OSError, BadInput):
            return Mark()

    async def _tell_nodes(self, nodes: Mapping[str, NodeRecord]) -> Mapping[str, watch.Standing]:
        standing, events = watch.node_news(self.seen.nodes, list(nodes.values()))
        for name, event in events:
            try:
                await self.service.node(name, {**event, "cluster": self.cluster})
            except Unavailable as error:
                log.warning("node_event_waits", node=name, why=str(error))
                old = self.seen.nodes.get(name)
                standing = {key: value for key, value in standing.items() if key != name} | ({name: old} if old else {})
            except BadInput as error:
                log.warning("node_event_refused", node=name, why=str(error))
        return standing


class _Later(Exception):
    """The service went away in the middle. tracked: what it has been told."""

    def __init__(self, tracked: Tracked, why: Unavailable) -> None:
        super().__init__(str(why))
        self.tracked = tracked
        self.why = why
