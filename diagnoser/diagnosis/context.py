"""What is known about an attempt besides its log, read from the store before the diagnosis."""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.compress import AttemptLog, baseline
from diagnoser.diagnosis import hang_evidence, node_logs
from diagnoser.diagnosis.attempt_logs import AttemptLogs
from diagnoser.diagnosis.baseline import is_clean
from diagnoser.diagnosis.run_comparison import RunComparison, compare
from diagnoser.hang.report import HangReport
from diagnoser.localize.hang_detection import pauses
from diagnoser.model import (
    ALERTS,
    CLEAN_RUNS,
    NODE_SOURCES,
    Attempt,
    AttemptKey,
    Baseline,
    CleanRun,
    Diagnosis,
    EarlierHang,
    Event,
    Facts,
    Job,
    Line,
    NodeAlert,
    Progress,
    node_log_id,
)
from diagnoser.model.jobs import cluster_of
from diagnoser.model.logs import Append
from diagnoser.model.taxonomy import Outcome
from diagnoser.model.work import Claim, DiagnosisRecord
from diagnoser.ports import Clock
from diagnoser.recovery.retry_history import family

_DAY = 86_400.0
_SIZE = re.compile(r"(?<![A-Za-z0-9.])\d{1,5}(?:\.\d{1,3})?[bBmMtT](?![A-Za-z0-9])")
"""The size of a model in a name: ``7b``, ``1.5B``."""
_NODES = 5_000
"""Most nodes per job whose logs are read; of a larger job, the first ones."""
_NODES_SHOWN = 4
"""Most nodes whose logs are read for a page."""
_RECORDS = 2 * baseline.KEPT
"""Baseline records that are read: a run may have several."""
_RUNS_VERSION, _WITHOUT_PAUSES = 3, 2
"""Versions of the stored clean runs. Both are read: what a family has learned outlives an upgrade."""


@dataclass(frozen=True)
class DiagnosisContext:
    """baseline_days: how long clean runs are remembered; 0: no baseline. reads_metrics: whether metrics of nodes are
    stored."""

    store: SqlStore
    logs: AttemptLogs
    clock: Clock
    baseline_days: int = 0
    reads_metrics: bool = False

    async def facts(self, claim: Claim) -> Facts:
        """Registration, events, and the logs of the nodes that the attempt ran on, from about its failure."""
        attempt, job = claim.attempt, claim.job
        failed = attempt.failed
        nodes = nodes_of(attempt, job)
        logs = await self._node_logs(job, nodes[:_NODES], failed[0])
        runtime, known = tuple(await self.store.evidence.runtime_files(attempt.key)), await self.baseline(job)
        number, events, last_line = attempt.key.number, attempt.events, attempt.last_line
        earlier: Sequence[tuple[Event, ...]] = ()
        if number > 1:
            earlier = await self.store.jobs.checkpoint_events(attempt.key)
        since, until = failed[0] - node_logs.BEFORE, failed[1] + node_logs.AFTER
        reported = await self.store.nodes.events(cluster_of(job), nodes[:_NODES], since)
        node_events = tuple(event for event in reported if event.time <= until)
        return Facts(
            job,
            number,
            events,
            logs,
            failed,
            known,
            nodes,
            runtime,
            last_line,
            tuple(earlier),
            node_events,
            await self._hang(attempt),
            await self._metrics(job, nodes[:_NODES], since, until),
        )

    async def _metrics(self, job: Job, nodes: Sequence[str], since: float, until: float) -> tuple[NodeAlert, ...]:
        if not self.reads_metrics:
            return ()
        return tuple(await self.store.node_facts.metrics(cluster_of(job), nodes, since, until))

    async def _hang(self, attempt: Attempt) -> EarlierHang | None:
        """The verdict that stands on an attempt that has ended, if it says that the attempt hangs."""
        if attempt.ended is None or not attempt.diagnosed:
            return None
        record = await self.store.diagnoses.of_attempt(attempt.key)
        if record is None or record.diagnosis.outcome is not Outcome.HUNG:
            return None
        return EarlierHang(record.diagnosis, record.created)

    async def progress(self, key: AttemptKey) -> Sequence[Progress]:
        """The training progress in an attempt's log, step by step."""
        log = await self.logs.load(key)
        return await asyncio.to_thread(lambda: log.digest.progress)

    async def hang_report(self, key: AttemptKey) -> HangReport | None:
        """Who waits for whom, by all dumps of an attempt; None where there are none."""
        files = await self.store.evidence.runtime_files(key)
        if not files:
            return None
        job, log = await self.store.jobs.find(key.job), await self.logs.load(key)
        facts, chosen = Facts(job or Job(key.job)), hang_evidence.vouched_first(files)
        return await asyncio.to_thread(lambda: hang_evidence.analyze(log.evidence, facts, chosen))

    async def compare(self, key: AttemptKey, other: AttemptKey) -> RunComparison | None:
        """What is different from another attempt; None where the log of one of them is not stored any more."""
        log, before = await self.logs.load(key), await self.logs.load(other)
        if not log.delta.lines:
            return None
        if not before.delta.lines:
            return None
        return await asyncio.to_thread(compare, log, before, f"{other.job}/{other.number}")

    async def node_lines(self, record: DiagnosisRecord) -> list[Line]:
        """The kept lines of the own logs of the node that the root line is from and of those under suspicion, as far as
        the attempt ran there."""
        named = _named_nodes(record.diagnosis)
        if not named:
            return []
        job, attempt = await self.store.jobs.find(record.attempt.job), await self.store.jobs.attempt(record.attempt)
        if job is None or attempt is None:
            return []
        ran = nodes_of(attempt, job)
        nodes = [node for node in named if node in ran][:_NODES_SHOWN]
        if not nodes:
            return []
        logs = await self._node_logs(job, nodes, record.created - _DAY)
        read = (asyncio.to_thread(node_logs.kept_lines, node, parts) for node, parts in logs.items())
        return list(chain.from_iterable(await asyncio.gather(*read)))

    async def record_baseline(self, claim: Claim, verdict: Diagnosis, log: AttemptLog) -> None:
        """Store what the run printed, if it is a clean one."""
        if not self.baseline_days:
            return
        if not is_clean(verdict, claim.attempt.events):
            return
        key = claim.attempt.key
        run = await asyncio.to_thread(_clean_run, log, f"{key.job}/{key.number}")
        if run:
            await self.store_run(claim.job, run)

    async def store_run(self, job: Job, run: CleanRun) -> None:
        """Append the run to its family's baseline; it replaces an earlier record of the same run."""
        now = self.clock()
        key = AttemptKey(clean_runs_id(job), node_logs.hour_of(now))
        await self.store.logs.append([Append(key, await asyncio.to_thread(baseline.to_bytes, run), now, {}, False)])

    async def baseline(self, job: Job) -> Baseline:
        """What is remembered of the clean runs of the job's family."""
        if not self.baseline_days:
            return Baseline()
        ids = (clean_runs_id(job, _WITHOUT_PAUSES), clean_runs_id(job, _RUNS_VERSION))
        least = node_logs.hour_of(self.clock() - self.baseline_days * _DAY)
        stored = await self.store.node_logs.parts(ids, least, newest=_RECORDS)
        return await asyncio.to_thread(baseline.load, _of_logs(ids, stored))

    async def _node_logs(self, job: Job, nodes: Sequence[str], since: float) -> dict[str, list[bytes]]:
        """Logs from a shipper that names no cluster count for the jobs of every cluster."""
        log_ids = {node: {node_log_id(job.cluster, node), node_log_id("", node)} for node in nodes}
        ids = sorted(set().union(*log_ids.values()))
        parts = await self.store.node_logs.parts(ids, node_logs.hour_of(since - node_logs.BEFORE - node_logs.STALL))
        stored = {}
        for node, logs in log_ids.items():
            data = _of_logs(sorted(logs), parts)
            if data:
                stored[node] = data
        return stored


def _of_logs(ids: Iterable[str], parts: Mapping[str, Sequence[bytes]]) -> list[bytes]:
    """The parts of these logs, one log after the other."""
    return list(chain.from_iterable(parts.get(log, ()) for log in ids))


def _named_nodes(verdict: Diagnosis) -> list[str]:
    """The node whose own log, or an alert about it, holds the root line, and those under suspicion."""
    cause, nodes = verdict.root_cause, list(map(attrgetter("node"), verdict.nodes))
    if cause and cause.source in NODE_SOURCES | {ALERTS}:
        return list(filter(None, dict.fromkeys([cause.node, *nodes])))
    return list(dict.fromkeys(nodes))


def _clean_run(log: AttemptLog, name: str) -> CleanRun | None:
    run = baseline.clean_run(log.delta, name)
    return replace(run, pauses=pauses(log.evidence)) if run else None


def nodes_of(attempt: Attempt, job: Job) -> tuple[str, ...]:
    """Nodes that the scheduler gave the attempt, else those of the registration. What the job's lines and events name
    does not count: a job could name a node of somebody else."""
    if attempt.nodes:
        return attempt.nodes
    return tuple(sorted({*job.nodes, *job.rank_nodes.values()}))


def clean_runs_id(job: Job, version: int = _RUNS_VERSION) -> str:
    """Where the clean runs of a job's family are stored, in a version of the stored format."""
    return f"{CLEAN_RUNS}{version}/{family_of(job)}"


def family_of(job: Job) -> str:
    """Names jobs that print alike, of one tenant: ``<framework>/<launcher>/<family>``, behind ``@<tenant>/``. Models of
    other sizes take other times to compile and to load: the name without its numbers does not tell them apart."""
    whose = f"@{job.tenant}/" if job.tenant else ""
    sizes = "" if "family" in job.labels else "".join(map(":{}".format, _SIZE.findall(job.name or job.id)))
    return f"{whose}{job.framework}/{job.labels.get('launcher', '')}/{family(job)}{sizes}"
