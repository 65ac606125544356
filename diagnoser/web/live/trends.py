"""Failures of the last days by category, and nodes that failed more than once: counted once a minute for all pages."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import Incident
from diagnoser.model.errors import Unavailable
from diagnoser.model.taxonomy import Category
from diagnoser.ports import Clock
from diagnoser.recovery.failed_runs import FailedRuns, RecoveryFigures, recovery_figures

DAYS = 7
SPAN = 6 * 3600.0
"""Seconds that one bar stands for."""
FRESH_SECONDS = 60.0
OPEN_SPANS = 2
"""The last spans, which failures still come into: counted each time."""
RECOUNT_SECONDS, RECOUNTED = 3600.0, 2
"""How long spans that are over keep their counts, and how many are counted again at once: a later verdict of an old
failure is rare."""
KEEP_SECONDS = 600.0
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
    """One a process. To count a whole week takes a third of a second where a diagnosis is made every three seconds: it
    is done before anybody looks, and spans that are over are counted again a few at a time."""

    def __init__(self, store: SqlStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._turn = asyncio.Lock()
        self._spans: dict[float, tuple[float, Mapping[Category, int]]] = {}  # by their start: when counted, the counts
        self._counted: tuple[float, FailureTrend] | None = None

    async def run(self) -> None:
        """Keeps the counts at hand, from the start of the service on."""
        while True:
            with suppress(Unavailable):
                await self.current()
            await asyncio.sleep(KEEP_SECONDS)

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
        known = 0  # spans from the first one on whose counts are at hand
        while known < len(times) - 1 - OPEN_SPANS and times[known] in self._spans:
            known += 1
        counted = {}
        for start in times[:known]:
            counted[start] = self._spans[start]
        for start in sorted(counted, key=lambda start: counted[start][0])[:RECOUNTED]:
            if now - counted[start][0] >= RECOUNT_SECONDS:
                (counts,) = await self._store.diagnoses.failures_between([start, start + SPAN])
                counted[start] = now, counts
        fresh = await self._store.diagnoses.failures_between(times[known:])
        for start, counts in zip(times[known:-1], fresh, strict=True):
            counted[start] = now, counts
        self._spans = counted
        since = now - DAYS * 86_400.0
        runs = await self._store.diagnoses.failed_runs(since, RUNS)
        nodes = await self._store.incidents.worst_nodes(since, NODES)
        bars = tuple(Bar(start, start + SPAN, counts) for start, (_, counts) in counted.items())
        return FailureTrend(bars, nodes, recovery_figures(FailedRuns.of(runs), now), is_sample=len(runs) >= RUNS)
