"""Asks the site's Prometheus about the nodes of attempts that failed, after their verdict: it waits for no answer.

What is noteworthy is stored as monitoring's word about the node, once, and the attempt is judged anew with it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import structlog

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import Attempt, AttemptKey, Job, NodeAlert
from diagnoser.model.errors import Unavailable
from diagnoser.model.jobs import cluster_of
from diagnoser.model.node_alerts import BY_PROMETHEUS
from diagnoser.model.queries import DiagnosisFilter
from diagnoser.model.recent import Recent
from diagnoser.model.taxonomy import FAILURES
from diagnoser.model.work import DiagnosisRecord
from diagnoser.ports import Clock, WakeSignal
from diagnoser.rules.node_metrics import STEP, MetricSeries, NodeMetric, NodeMetricTable, NoteworthyMetric, noteworthy

PERIOD = 2.0
FRESH_SECONDS = 600.0
"""Age of a verdict whose attempt is asked about, also by a service that has just been started."""
BEFORE, AFTER = 600.0, 60.0
"""Seconds around the failure."""
NODES = 64
"""Nodes of an attempt that are asked about, the suspected ones first."""
LOOKED_AT, AT_ONCE = 200, 20
"""Newest failures that a look reads, so that one tenant's hide no other's, and how many of them it asks about."""
OVERLAP_SECONDS = 60.0
"""How long before the last look a verdict may be dated that it has not seen: clocks of replicas differ."""
ATTEMPT_SECONDS = 20.0
"""The longest that one attempt is asked about."""
AWAY_SECONDS = 60.0
"""For how long a server that does not answer is left alone."""
REMEMBERED = 10_000
ReadSeries = Callable[[str, float, float], Awaitable[Sequence[MetricSeries]]]
"""(expression, since, until) -> series. Raises Unavailable."""


@dataclass(eq=False)
class NodeMetricWatch:
    """Run it as a task, or ``step`` it in a test. attempts_due: notified of an attempt that is to be judged anew."""

    store: SqlStore
    read_series: ReadSeries
    table: NodeMetricTable
    clock: Clock
    attempts_due: WakeSignal
    _looked: float = field(default=0.0, init=False)
    _asked: Recent[AttemptKey, None] = field(default_factory=lambda: Recent(REMEMBERED), init=False)

    async def run(self) -> None:
        """Until it is cancelled. Waits while the database or Prometheus is down."""
        while True:
            await asyncio.sleep(PERIOD)
            try:
                await self.step()
            except (Unavailable, TimeoutError) as error:
                structlog.get_logger().warning("node_metrics_not_read", why=str(error) or type(error).__name__)
                await asyncio.sleep(AWAY_SECONDS)

    async def step(self) -> None:
        """Ask about the attempts that failed lately. Raises Unavailable, TimeoutError."""
        for record in await self._failures():
            self._asked[record.attempt] = None  # first: what cannot be asked about holds nothing up
            async with asyncio.timeout(ATTEMPT_SECONDS):
                await self._ask_about(record)

    async def _failures(self) -> list[DiagnosisRecord]:
        now = self.clock()
        since = max(now - FRESH_SECONDS, self._looked - OVERLAP_SECONDS)
        records = list[DiagnosisRecord]()
        for outcome in FAILURES:
            where = DiagnosisFilter(outcome=outcome.value, since=since)
            records += await self.store.diagnoses.page(where, "", LOOKED_AT)
        new = [record for record in records if record.attempt not in self._asked]
        if len(new) <= AT_ONCE:
            self._looked = now
        return new[:AT_ONCE]

    async def _ask_about(self, record: DiagnosisRecord) -> None:
        job, attempt = await self.store.jobs.find(record.attempt.job), await self.store.jobs.attempt(record.attempt)
        if job is None or attempt is None or not attempt.nodes:
            return
        alerts = await self._alerts(job, attempt, _asked_about(attempt, record))
        new = await self.store.node_facts.unknown_alerts(alerts)
        if new:
            await self.store.node_facts.record_alerts(new)
            await self.store.jobs.diagnose_again(attempt.key, self.clock())
            self.attempts_due.notify()

    async def _alerts(self, job: Job, attempt: Attempt, nodes: Sequence[str]) -> list[NodeAlert]:
        alerts, now = list[NodeAlert](), self.clock()
        for metric in self.table.metrics:
            for fact in await self._read(metric, attempt, nodes, now):
                alerts.append(_alert(fact, cluster_of(job), now))
        return alerts

    async def _read(
        self, metric: NodeMetric, attempt: Attempt, nodes: Sequence[str], now: float
    ) -> list[NoteworthyMetric]:
        """The same samples whenever it is asked: their times are multiples of the step."""
        failed, ended = attempt.failed
        since = (failed - BEFORE) // STEP * STEP
        series = await self.read_series(self.table.query(metric, nodes), since, min(ended + AFTER, now))
        return list(noteworthy(metric, series, nodes, self.table))


def _asked_about(attempt: Attempt, record: DiagnosisRecord) -> list[str]:
    """Nodes that the scheduler gave the attempt, and no other, whatever its log names."""
    suspects = set(map(attrgetter("node"), record.diagnosis.nodes))
    return sorted(attempt.nodes, key=lambda node: node not in suspects)[:NODES]


def _alert(fact: NoteworthyMetric, cluster: str, now: float) -> NodeAlert:
    return NodeAlert(
        cluster=cluster,
        node=fact.node,
        fingerprint=f"{BY_PROMETHEUS}:{fact.id}:{fact.gpu}",
        name=fact.id,
        started=fact.started,
        received=now,
        ended=fact.ended,
        summary=fact.summary,
        by=BY_PROMETHEUS,
    )
