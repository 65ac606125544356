"""Failures of the last days by category, and nodes that failed more than once: counted once a minute for all pages."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import Incident
from diagnoser.model.taxonomy import Category
from diagnoser.ports import Clock
from diagnoser.recovery.failed_runs import FailedRuns, RecoveryFigures, recovery_figures

DAYS = 7
SPAN = 6 * 3600.0
"""Seconds that one bar stands for."""
FRESH_SECONDS = 60.0
NODES = 5
NO_FAILURES = RecoveryFigures()
RUNS = 500
"""Failures whose recovery is looked at, the newest."""
CATEGORIES = (Category.INFRASTRUCTURE, Category.FRAMEWORK, Category.SCRIPT, Category.UNKNOWN)
"""From the bottom of a bar to its top."""


@dataclass(frozen=True, slots=True)
class Bar:
    """The failures from ``start`` to ``end``, in seconds since the epoch, by category."""

    start: float
    end: float
    counts: Mapping[Category, int]

    @property
    def count(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class FailureTrend:
    """bars: the oldest first. nodes: those that failed more than once.

    recovery: of the same days; is_sample: of the newest failures only, as there were too many.
    """

    bars: tuple[Bar, ...]
    nodes: Sequence[Incident]
    recovery: RecoveryFigures = NO_FAILURES
    is_sample: bool = False

    @property
    def totals(self) -> Mapping[Category, int]:
        """Of all bars, in the order in which they stand on one another."""
        totals = dict.fromkeys(CATEGORIES, 0)
        for bar in self.bars:
            for category in CATEGORIES:
                totals[category] += bar.counts.get(category, 0)
        return totals

    @property
    def tallest(self) -> int:
        return max((bar.count for bar in self.bars), default=0)


class FailureTrends:
    """One a process."""

    def __init__(self, store: SqlStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._turn = asyncio.Lock()
        self._counted: tuple[float, FailureTrend] | None = None

    async def current(self) -> FailureTrend:
        """At most a minute old. Raises Unavailable."""
        async with self._turn:
            now = self._clock()
            if self._counted is None or not 0 <= now - self._counted[0] < FRESH_SECONDS:
                self._counted = now, await self._count(now)
            return self._counted[1]

    async def _count(self, now: float) -> FailureTrend:
        end = (math.floor(now / SPAN) + 1) * SPAN  # of the span that is open
        times = [end - number * SPAN for number in range(int(DAYS * 86_400 / SPAN), -1, -1)]
        bars = []
        for start, counts in zip(times[:-1], await self._store.diagnoses.failures_between(times), strict=True):
            bars.append(Bar(start, start + SPAN, counts))
        since = now - DAYS * 86_400.0
        runs = await self._store.diagnoses.failed_runs(since, RUNS)
        nodes = await self._store.incidents.worst_nodes(since, NODES)
        recovery = recovery_figures(FailedRuns.of(runs), now)
        return FailureTrend(tuple(bars), nodes, recovery, is_sample=len(runs) >= RUNS)
