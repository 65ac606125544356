"""Looks at the ranks of runs that crawl: who computes, twice, while the others wait is the straggler.

In synchronous training all ranks slow down together and print the same steps, so that no log tells who holds them up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.diagnosis import hang_evidence
from diagnoser.diagnosis.evidence_collection import EvidenceCollection
from diagnoser.model import AttemptKey, Evidence, Facts, HangSuspect, Job, MetricEvent, MetricEventKind, SuspectKind
from diagnoser.ports import Clock

LOOKS = 4
"""Most looks at one run: the slow rank also waits at times, as all do when it has come."""
ANSWER_SECONDS = 60.0
"""After which nobody answers a look any more."""
AGAIN_SECONDS = 600.0
"""From the last look at a run until it is looked at again."""
_SLOW_KINDS = frozenset({SuspectKind.AT_WORK, SuspectKind.BEHIND, SuspectKind.STACK})
"""Kinds of ranks that others wait for while they are in their own code."""
_Suspects = Mapping[int, HangSuspect]
"""Rank -> why it is one."""


@dataclass(slots=True)
class CrawlingRun:
    """event: what its steps show. asked: when the look under way was asked for, 0.0 for none. looks: earlier ones."""

    event: MetricEvent
    asked: float = 0.0
    looks: list[_Suspects] = field(default_factory=list)

    @property
    def since(self) -> float:
        """The identity of a look: it follows from the lines and the looks before, so that replicas ask once."""
        return self.event.point.received + len(self.looks)


@dataclass(frozen=True, slots=True)
class StragglerLooks:
    """Asks agents for looks at runs that crawl, and compares what they saw."""

    store: SqlStore
    collection: EvidenceCollection
    clock: Clock
    runs: dict[AttemptKey, CrawlingRun] = field(default_factory=dict)
    ended: dict[AttemptKey, float] = field(default_factory=dict)

    def begin(self, key: AttemptKey, event: MetricEvent) -> None:
        """Look at a run that crawls, unless that was done a while ago."""
        if key not in self.ended:
            self.runs.setdefault(key, CrawlingRun(event))

    async def step(self) -> list[tuple[AttemptKey, MetricEvent]]:
        """Go on with each run; give the stragglers that were found. Raises Unavailable."""
        now = self.clock()
        for key in [key for key, ended in self.ended.items() if now >= ended + AGAIN_SECONDS]:
            del self.ended[key]
        stragglers = []
        for key, run in list(self.runs.items()):
            straggler = await self._look(key, run)
            if straggler:
                stragglers.append((key, _named(run.event, straggler)))
            if straggler or len(run.looks) >= LOOKS or self.clock() > (run.asked or now) + ANSWER_SECONDS:
                self.ended[key] = now
                del self.runs[key]
        return stragglers

    async def _look(self, key: AttemptKey, run: CrawlingRun) -> HangSuspect | None:
        """The straggler; None while looks are under way, or show none."""
        job = await self.store.jobs.find(key.job)
        if not run.asked:
            run.asked = self.clock()
            attempt = await self.store.jobs.attempt(key)
            if job and attempt and attempt.ended is None:
                await self.collection.slow(job, attempt, run.since)
            return None
        requests = await self.store.evidence.requests(key)
        if job is None or not any(result for request, result in requests if request.since == run.since):
            return None
        run.looks.append(await self._suspects(job, key, run.asked))
        run.asked = 0.0
        return find_straggler(run.looks)

    async def _suspects(self, job: Job, key: AttemptKey, since: float) -> _Suspects:
        """Ranks that others waited for when they were looked at."""
        files = [file for file in await self.store.evidence.runtime_files(key) if file.received >= since]
        report = hang_evidence.analyze(Evidence(), Facts(job), hang_evidence.vouched_first(files))
        suspects = report.suspects if report else ()
        return {suspect.rank: suspect for suspect in suspects if suspect.kind in _SLOW_KINDS}


def find_straggler(looks: Sequence[_Suspects]) -> HangSuspect | None:
    """The only rank that two looks, one after the other, show in its own code while others wait."""
    if len(looks) < 2:
        return None
    alike = looks[-1].keys() & looks[-2].keys()
    return looks[-1][alike.pop()] if len(alike) == 1 else None


def _named(event: MetricEvent, straggler: HangSuspect) -> MetricEvent:
    where = f" on {straggler.node}" if straggler.node else ""
    why = f"rank {straggler.rank}{where} is a straggler: {event.why}"
    return replace(event, kind=MetricEventKind.STRAGGLER, why=why, picture=f"{straggler.why}\n{event.picture}")
