"""What is known about an attempt beside its log, brought together from the store before it is diagnosed."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from diagnoser import compress
from diagnoser.compress import baseline
from diagnoser.diagnosis import baseline as novelty
from diagnoser.diagnosis import node_logs
from diagnoser.model import CLEAN_RUNS, NODE_SOURCES, AttemptKey, Diagnosis, Facts, Job, Line, node_log_id
from diagnoser.ports import Append, Claim, Clock, DiagnosisRecord, Store
from diagnoser.recovery.retry_history import family

_DAY = 86_400.0
_NODES = 5_000
"""Nodes whose logs are looked at; a job on more of them is looked at by its first."""


@dataclass(frozen=True)
class DiagnosisContext:
    """baseline_days: how long clean runs are remembered; 0: no baseline."""

    store: Store
    clock: Clock
    baseline_days: int = 0

    async def facts(self, claim: Claim, deltas: Sequence[bytes]) -> Facts:
        """Registration, events, and the logs of the nodes that the attempt ran on, from about its failure."""
        attempt, job = claim.attempt, claim.job
        ended = attempt.ended or attempt.last_line
        failed = (min(attempt.fatal or ended, ended), ended)
        named = {node for event in attempt.events if (node := event.node)} | {*job.nodes, *job.rank_nodes.values()}
        told = await asyncio.to_thread(lambda: set(_hosts(deltas)))
        logs = await self._logs(job, sorted(named | told)[:_NODES], failed[0])
        return Facts(job, attempt.key.number, attempt.events, logs, failed, await self._clean_runs(job))

    async def beside(self, record: DiagnosisRecord) -> list[Line]:
        """The log of the node that the root line comes from, where it is a node's own: for the lines around it."""
        cause = record.diagnosis.root_cause
        job = await self.store.job(record.attempt.job)
        if cause is None or cause.source not in NODE_SOURCES or not cause.node or job is None:
            return []
        logs = await self._logs(job, [cause.node], record.created - _DAY)
        return await asyncio.to_thread(node_logs.kept, cause.node, logs.get(cause.node, []))

    async def learn(self, claim: Claim, found: Diagnosis, deltas: Sequence[bytes]) -> None:
        """Remember what the run prints, when it is a clean one."""
        if not self.baseline_days or not novelty.is_clean(found, claim.attempt.events):
            return
        key, now = claim.attempt.key, self.clock()
        data = await asyncio.to_thread(_routine, deltas, f"{key.job}/{key.number}")
        if data:
            at = AttemptKey(clean_runs_id(claim.job), node_logs.part(now))
            await self.store.append([Append(at, data, now, {}, False)])

    async def _clean_runs(self, job: Job) -> list[bytes] | None:
        if not self.baseline_days:
            return None
        mine = clean_runs_id(job)
        least = node_logs.part(self.clock() - self.baseline_days * 86_400.0)
        return (await self.store.node_parts([mine], least)).get(mine, [])

    async def _logs(self, job: Job, nodes: Sequence[str], since: float) -> dict[str, list[bytes]]:
        """A shipper that names no cluster is heard by the jobs of every cluster."""
        of = {node: {node_log_id(job.cluster, node), node_log_id("", node)} for node in nodes}
        ids = sorted(set().union(*of.values()))
        parts = await self.store.node_parts(ids, node_logs.part(since - node_logs.BEFORE - node_logs.STALL))
        found = {node: [data for log in sorted(logs) for data in parts.get(log, ())] for node, logs in of.items()}
        return {node: data for node, data in found.items() if data}


def clean_runs_id(job: Job) -> str:
    """What runs must share to have a routine in common: framework, launcher, and the job's family."""
    return f"{CLEAN_RUNS}{family_of(job)}"


def family_of(job: Job) -> str:
    """Names jobs that print alike: ``<framework>/<launcher>/<family>``."""
    return f"{job.framework}/{job.labels.get('launcher', '')}/{family(job)}"


def _routine(deltas: Sequence[bytes], run: str) -> bytes | None:
    return baseline.learned(compress.merge(map(compress.from_bytes, deltas)), run)


def _hosts(deltas: Sequence[bytes]) -> Iterator[str]:
    """Nodes that the attempt's streams and its lines name."""
    for data in deltas:
        for stream, share in compress.from_bytes(data).shares.items():
            yield from (node for node in (stream.node, *(host for _, host in share.nodes.values())) if node)
