"""The Log Agent: routine that no filter knows becomes a Filter Rule of its job family, first in shadow.

It works behind the verdicts: what ended is noted and looked at later, in its own loop. What is forgotten when a process
dies is only a look; the next run of the family brings it again. Rules are rows, and each step on one is a change of it.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, replace

import structlog

from diagnoser.compress import Digest, learned_filters
from diagnoser.compress.learned_filters import Known
from diagnoser.diagnosis.context import family_of
from diagnoser.learning import filter_hits, filter_validation, filter_writer, segments
from diagnoser.learning.filter_hits import Ended
from diagnoser.learning.filter_writer import Pen
from diagnoser.learning.replay_history import ReplayStore
from diagnoser.learning.rule_registry import RuleRegistry
from diagnoser.learning.segments import Segment
from diagnoser.learning.validation import masked, passed
from diagnoser.llm.redact import Mask
from diagnoser.model import (
    AttemptKey,
    Diagnosis,
    Facts,
    HitVerdict,
    Job,
    LearnedKind,
    LearnedRule,
    LearnedState,
    ValidationResult,
)
from diagnoser.model.errors import Conflict, NotFound, RuleFaults, Unavailable
from diagnoser.model.taxonomy import Category
from diagnoser.observability.metrics import Metrics
from diagnoser.ports import Claim, Clock, DiagnosisFilter, LearnedFilter
from diagnoser.worker.worker import Learn

US = "diagnoser"
_KIND = LearnedKind.FILTER
WAITING = 200
"""Ended attempts that wait for a look; the oldest go first."""
RULES = 20
"""Rules of one family, in any state: routine has an end, and so has what a model may cost."""
LOGS, ROOTS = 10, 1000
"""Attempts of the family, and verdicts of all, that a rule is held against."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a site learns. promote_after: clean runs in shadow that put a rule in force; 0: only people do.

    lease: seconds that one step on one rule may take. poll: seconds between two looks.
    """

    mask: Mask
    promote_after: int = 5
    lease: float = 300.0
    poll: float = 2.0


class LogAgent:
    """One a process; ``run`` it as a task, or ``step`` it in a test."""

    def __init__(
        self,
        store: ReplayStore,
        shelf: RuleRegistry,
        clock: Clock,
        terms: Terms,
        metrics: Metrics,
        pen: Pen | None = None,
    ) -> None:
        """pen: the model that writes rules; without one the shapes of the lines do."""
        self._store = store
        self._shelf = shelf
        self._clock = clock
        self._terms = terms
        self._metrics = metrics
        self._pen = pen
        self._ended: deque[Ended] = deque(maxlen=WAITING)
        self._log = structlog.get_logger()

    def note(self, claim: Claim, diagnosis: Diagnosis) -> None:
        """An attempt has a verdict: it is looked at when there is time."""
        self._ended.append(Ended(claim.attempt.key, claim.job, diagnosis))

    def after(self, learn: Learn) -> Learn:
        """What a worker does with an attempt once its verdict is stored, and then ``note``."""

        async def learned(claim: Claim, diagnosis: Diagnosis, deltas: list[bytes]) -> None:
            await learn(claim, diagnosis, deltas)
            self.note(claim, diagnosis)

        return learned

    async def run(self) -> None:
        """Until it is cancelled. A database that is away is waited for."""
        while True:
            try:
                busy = await self.step()
            except Unavailable as error:
                self._log.warning("log_agent_waits", error=str(error))
                busy = False
            await asyncio.sleep(0 if busy else self._terms.poll)

    async def step(self) -> bool:
        """A look at one ended attempt, one step on one rule, and promotions; whether there was something to do."""
        ended = self._ended.popleft() if self._ended else None
        if ended:
            await self._look(ended)
        due = await self._due()
        for rule in due:
            await self._store_change(rule, await self._safely(rule))
        await self._promote()
        return bool(ended or due)

    async def _due(self) -> list[LearnedRule]:
        if not await self._store.learned(LearnedFilter(_KIND, (LearnedState.PROPOSED,)), "", 1):
            return []
        return await self._store.claim_rules(_KIND, self._clock(), self._terms.lease, 1)

    # --- looking at what ended

    async def _look(self, ended: Ended) -> None:
        try:
            digest = await self._digest(ended.attempt)
            await self._measure(ended, digest)
            await self._propose(ended, digest)
        except Unavailable:
            self._ended.append(ended)
            raise
        except Exception as error:
            self._log.error("log_agent_failed", job=ended.attempt.job, exc_info=error)

    async def _digest(self, attempt: AttemptKey) -> Digest:
        """The log of an attempt without learned filters."""
        deltas = [delta.data for delta in await self._store.deltas(attempt)]
        return await asyncio.to_thread(self._shelf.base.digest, deltas)

    async def _measure(self, ended: Ended, digest: Digest) -> None:
        """What rules in shadow and in force know of this log. One that would change the verdict is retired at once."""
        for rule in self._of(family_of(ended.job)):
            hit = await asyncio.to_thread(filter_hits.hit, self._shelf.reader, rule, ended, digest, self._clock())
            if hit is None:
                continue
            await self._store.note_hits([hit])
            self._metrics.observe_filter(rule.state, hit.lines)
            if hit.verdict is HitVerdict.WRONG:
                why = f"it would change the verdict of {ended.attempt.job}/{ended.attempt.number}"
                await self._store_change(rule, rule.moved(LearnedState.RETIRED, by=US, why=why, now=self._clock()))

    async def _propose(self, ended: Ended, digest: Digest) -> None:
        scope = family_of(ended.job)
        held = await self._store.learned(LearnedFilter(_KIND, scope=scope), "", RULES)
        if any(rule.state is LearnedState.PROPOSED for rule in held):
            return  # what this run shows may be what they are about
        known = [one for rule in held if rule.text and rule.state is not LearnedState.REFUSED if (one := _known(rule))]
        unknown = await asyncio.to_thread(segments.of, learned_filters.known(digest.delta, known), self._anchored)
        for segment in unknown[: RULES - len(held)]:
            source = f"{ended.attempt.job}/{ended.attempt.number}#{segment.name}"
            rule = LearnedRule(_id(scope, segment), _KIND, source, self._clock(), scope=scope)
            if await self._store.propose(rule):
                self._log.info("filter_rule_wanted", rule=rule.id, family=scope, shapes=len(segment.shapes))

    def _of(self, scope: str) -> list[LearnedRule]:
        stock = self._shelf.stock
        states = (LearnedState.SHADOW, LearnedState.ACTIVE)
        return [rule for state in states for rule in stock.of(_KIND, state) if rule.scope == scope and rule.text]

    # --- a rule's way

    async def _safely(self, rule: LearnedRule) -> LearnedRule:
        """A fault of our own costs the rule, not the service."""
        try:
            return await self._next(rule)
        except Unavailable:
            raise
        except Exception as error:
            self._log.error("log_agent_failed", rule=rule.id, exc_info=error)
            return self._refused(rule, f"could not be worked on: {type(error).__name__}")

    async def _next(self, rule: LearnedRule) -> LearnedRule:
        """The rule one step further: written, or tested."""
        attempt, name = _source(rule)
        digest = await self._digest(attempt)
        facts = Facts(await self._store.job(attempt.job) or Job(attempt.job), attempt.number)
        if rule.text:
            return await self._tested(rule, digest, facts)
        segment = segments.again(digest.delta, name)
        if segment is None:
            return self._refused(rule, "the log that it is learned from is gone or was cut")
        return await self._written(rule, segment, digest, facts)

    async def _written(self, rule: LearnedRule, segment: Segment, digest: Digest, facts: Facts) -> LearnedRule:
        lines, alias = filter_writer.hidden_in(segment, digest.evidence(), facts, self._terms.mask)
        made = await filter_writer.write(self._pen, rule.id, lines, alias)
        self._metrics.observe_rule_writing(made.author.calls, made.author)
        if not made.text:
            return self._refused(replace(rule, author=made.author), made.why)
        return replace(rule, text=made.text, author=made.author, changed=self._clock())

    async def _tested(self, rule: LearnedRule, digest: Digest, facts: Facts) -> LearnedRule:
        first, known = filter_validation.compiles(rule.id, rule.text)
        found: tuple[ValidationResult, ...] = (first,)
        if known:
            found += await self._held(rule, known, digest, facts)
        tested = replace(rule, gates=masked(found, self._terms.mask))
        if not passed(found):
            return self._refused(tested, next(f"{one.name}: {one.reason}" for one in found if not one.passed))
        return tested.moved(LearnedState.SHADOW, by=US, why="passed every gate", now=self._clock())

    async def _held(
        self, rule: LearnedRule, known: Known, digest: Digest, facts: Facts
    ) -> tuple[ValidationResult, ...]:
        """The rule against its own lines, what other rules are proven by, stored verdicts, and logs of the family."""
        quiet = await asyncio.to_thread(learned_filters.unknown, digest.delta, self._anchored)
        own = [text for _, stat in quiet for text in learned_filters.samples(stat)]
        logs = [(digest, facts), *await self._logs(rule)]
        changed = []
        for one, of in logs:
            same = await asyncio.to_thread(filter_validation.same_verdict, self._shelf.reader, one, (known,), of)
            changed += [] if same else [of.job.id]
        return (
            filter_validation.own_lines(known, own),
            await asyncio.to_thread(filter_validation.anchored, known, [one for one, _ in logs], self._anchored),
            filter_validation.roots(known, await self._roots()),
            filter_validation.shipped(known, self._shelf.reader.knowledge.engine.ruleset),
            filter_validation.family(known, changed, len(logs)),
        )

    def _anchored(self, text: str) -> bool:
        return filter_validation.carries(self._shelf.reader.knowledge.anchors, text)

    async def _logs(self, rule: LearnedRule) -> list[tuple[Digest, Facts]]:
        """The newest other attempts of the rule's family."""
        found = []
        for record in await self._store.diagnoses(DiagnosisFilter(), "", ROOTS):
            own = record.attempt == _source(rule)[0]
            job = await self._store.job(record.attempt.job)
            if own or job is None or family_of(job) != rule.scope:
                continue
            found.append((await self._digest(record.attempt), Facts(job, record.attempt.number)))
            if len(found) >= LOGS:
                break
        return found

    async def _roots(self) -> list[str]:
        """Root lines of the newest verdicts, and those that people's words are remembered by."""
        records = await self._store.diagnoses(DiagnosisFilter(), "", ROOTS)
        failed = [one.diagnosis for one in records if one.diagnosis.category is not Category.NONE]
        lines = [one.root_cause.text for one in failed if one.root_cause]
        incidents = await self._store.incidents(0.0, "", ROOTS)
        lines += [text for one in incidents for text in (one.line, *one.signature.message.split("\n")) if text]
        return [learned_filters.message(text) for text in lines]

    async def _promote(self) -> None:
        enough = self._terms.promote_after
        for rule in await self._store.learned(LearnedFilter(_KIND, (LearnedState.SHADOW,)), "", 1000):
            if enough and rule.counts.confirmed >= enough and not rule.counts.wrong:
                why = f"{rule.counts.confirmed} clean runs in shadow"
                await self._store_change(rule, rule.moved(LearnedState.ACTIVE, by=US, why=why, now=self._clock()))

    async def _store_change(self, rule: LearnedRule, after: LearnedRule) -> None:
        try:
            await self._store.change_rule(rule, after)
        except (Conflict, NotFound):  # somebody else was faster
            return
        why = after.history[-1].why if after.history else ""
        self._log.info("filter_rule_handled", rule=rule.id, state=str(after.state), by=after.author.name, why=why)

    def _refused(self, rule: LearnedRule, why: str) -> LearnedRule:
        return rule.moved(LearnedState.REFUSED, by=US, why=self._terms.mask(why)[:500], now=self._clock())


def _known(rule: LearnedRule) -> Known | None:
    try:
        return filter_validation.read(rule.id, rule.text)
    except RuleFaults:
        return None


def _source(rule: LearnedRule) -> tuple[AttemptKey, str]:
    """The attempt that a rule is learned from, and the name of the segment of its log."""
    where, _, name = rule.source.rpartition("#")
    job, _, number = where.rpartition("/")
    return AttemptKey(job, int(number)), name


def _id(scope: str, segment: Segment) -> str:
    return f"routine_{segments.digest(scope, segment.id)}"
