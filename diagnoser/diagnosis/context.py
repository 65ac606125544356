"""What is known about an attempt beside its log, brought together from the store before it is diagnosed."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from diagnoser import compress
from diagnoser.compress import baseline
from diagnoser.diagnosis import baseline as novelty
from diagnoser.diagnosis import node_logs
from diagnoser.model import (
    CLEAN_RUNS,
    NODE_SOURCES,
    AttemptKey,
    Baseline,
    CleanRun,
    Diagnosis,
    Facts,
    Job,
    Line,
    node_log_id,
)
from diagnoser.ports import Append, Claim, Clock, DiagnosisRecord, Store
from diagnoser.recovery.retry_history import family

_DAY = 86_400.0
_NODES = 5_000
"""Nodes whose logs are looked at; a job on more of them is looked at by its first."""
_RECORDS = 2 * baseline.KEPT
"""Of a baseline that are read: a run may have several."""


@dataclass(frozen=True)
class DiagnosisContext:
    """baseline_days: how long clean runs are remembered; 0: no baseline. recorded: told of the job of a clean run."""

    store: Store
    clock: Clock
    baseline_days: int = 0
    recorded: Callable[[Job], None] = lambda _: None

    async def facts(self, claim: Claim, deltas: Sequence[bytes]) -> Facts:
        """Registration, events, and the logs of the nodes that the attempt ran on, from about its failure."""
        attempt, job = claim.attempt, claim.job
        ended = attempt.ended or attempt.last_line
        failed = (min(attempt.fatal or ended, ended), ended)
        named = {node for event in attempt.events if (node := event.node)} | {*job.nodes, *job.rank_nodes.values()}
        told = await asyncio.to_thread(lambda: set(_hosts(deltas)))
        logs = await self._logs(job, sorted(named | told)[:_NODES], failed[0])
        return Facts(job, attempt.key.number, attempt.events, logs, failed, await self.baseline(job))

    async def beside(self, record: DiagnosisRecord) -> list[Line]:
        """The log of the node that the root line comes from, where it is a node's own: for the lines around it."""
        cause = record.diagnosis.root_cause
        job = await self.store.job(record.attempt.job)
        if cause is None or cause.source not in NODE_SOURCES or not cause.node or job is None:
            return []
        logs = await self._logs(job, [cause.node], record.created - _DAY)
        return await asyncio.to_thread(node_logs.kept, cause.node, logs.get(cause.node, []))

    async def record_baseline(self, claim: Claim, verdict: Diagnosis, deltas: Sequence[bytes]) -> None:
        """Remember what the run printed, when it is a clean one."""
        if not self.baseline_days or not novelty.is_clean(verdict, claim.attempt.events):
            return
        key, before = claim.attempt.key, await self.baseline(claim.job)
        run = await asyncio.to_thread(_clean_run, deltas, f"{key.job}/{key.number}", before)
        if run:
            await self.store_run(claim.job, run)
            self.recorded(claim.job)

    async def store_run(self, job: Job, run: CleanRun) -> None:
        """As the newest word about the family's baseline, in the place of an earlier one about the same run."""
        now = self.clock()
        at = AttemptKey(clean_runs_id(job), node_logs.part(now))
        await self.store.append([Append(at, await asyncio.to_thread(baseline.to_bytes, run), now, {}, False)])

    async def baseline(self, job: Job) -> Baseline:
        """What is remembered of the clean runs of the job's family."""
        if not self.baseline_days:
            return Baseline()
        family = clean_runs_id(job)
        least = node_logs.part(self.clock() - self.baseline_days * 86_400.0)
        stored = await self.store.node_parts([family], least, newest=_RECORDS)
        return await asyncio.to_thread(baseline.load, stored.get(family, []))

    async def _logs(self, job: Job, nodes: Sequence[str], since: float) -> dict[str, list[bytes]]:
        """A shipper that names no cluster is heard by the jobs of every cluster."""
        of = {node: {node_log_id(job.cluster, node), node_log_id("", node)} for node in nodes}
        ids = sorted(set().union(*of.values()))
        parts = await self.store.node_parts(ids, node_logs.part(since - node_logs.BEFORE - node_logs.STALL))
        found = {node: [data for log in sorted(logs) for data in parts.get(log, ())] for node, logs in of.items()}
        return {node: data for node, data in found.items() if data}


def clean_runs_id(job: Job) -> str:
    """Where the clean runs of a job's family are stored. 2: the form of what is stored."""
    return f"{CLEAN_RUNS}2/{family_of(job)}"


def family_of(job: Job) -> str:
    """Names jobs that print alike: ``<framework>/<launcher>/<family>``."""
    return f"{job.framework}/{job.labels.get('launcher', '')}/{family(job)}"


def _clean_run(deltas: Sequence[bytes], name: str, before: Baseline) -> CleanRun | None:
    return baseline.clean_run(compress.merge(map(compress.from_bytes, deltas)), name, before)


def _hosts(deltas: Sequence[bytes]) -> Iterator[str]:
    """Nodes that the attempt's streams and its lines name."""
    for data in deltas:
        for stream, share in compress.from_bytes(data).shares.items():
            yield from (node for node in (stream.node, *(host for _, host in share.nodes.values())) if node)
