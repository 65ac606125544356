"""The Log Agent: routine that every clean run of a job family prints becomes a Filter Rule of that family.

Proposed by a model or by the shapes, tested, in shadow, promoted, and switched off by the first verdict whose evidence
it touches. It works behind the verdicts: a look that is lost when a process dies comes again with the next clean run.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from diagnoser.adapters.sql.jobs import JobRepository
from diagnoser.compress import AttemptLog, routine, template_cache
from diagnoser.compress.delta import LEARNED, Delta, TemplateStats
from diagnoser.compress.lines import body_of
from diagnoser.compress.routine import Fold, RoutineFilter
from diagnoser.diagnosis.baseline import RUNS_NEEDED, is_clean
from diagnoser.diagnosis.context import family_of
from diagnoser.learning import filter_writer, rule_context, template_rules, validation
from diagnoser.learning.replay_history import CONFIRMED, ReplayHistory
from diagnoser.learning.rule_lifecycle import US, RuleLearningConfig
from diagnoser.learning.rule_registry import RuleRegistry
from diagnoser.learning.rule_writer import LLMRuleWriter
from diagnoser.model.diagnosis import Diagnosis
from diagnoser.model.errors import Conflict, NotFound, Unavailable
from diagnoser.model.jobs import AttemptKey, Facts, Job
from diagnoser.model.learned import LOADED, HitVerdict, LearnedRule, LearnedState, RuleHit, ValidationResult
from diagnoser.model.queries import DiagnosisFilter, LearnedRuleQuery
from diagnoser.model.taxonomy import FailureType
from diagnoser.model.work import DiagnosisRecord
from diagnoser.ports import Clock

RULES = 20
"""Rules of one family, in any state: routine has an end, and so has what a model may cost."""
_WAITING = 100
"""Clean runs that wait for a look."""
_VERDICTS, _SHOWN = 1000, 120
"""Newest verdicts whose evidence a rule is held against, and characters of a line in a reason."""


@dataclass(frozen=True, slots=True)
class FilterRegistry:
    """The filters in force, for what is read and what is stored."""

    registry: RuleRegistry
    jobs: JobRepository

    async def folding(self, key: AttemptKey) -> Fold:
        """``routine.Folding``: looks first whether the rules changed, so that no replica uses a retired one."""
        await self.registry.refresh()
        job = await self.jobs.find(key.job)
        filters = [known for _, known in self.of(job, LearnedState.ACTIVE)] if job else []
        return lambda delta: self.folded(delta, filters)

    def folded(self, delta: Delta, filters: Sequence[RoutineFilter]) -> Delta:
        return routine.fold(delta, filters, self.cache)

    @property
    def cache(self) -> template_cache.TemplateCache:
        """What the rules that are in force say of lines."""
        analyzer = self.registry.analyzer
        return template_cache.shapes(analyzer.gate, analyzer.filters)

    def of(self, job: Job, *states: LearnedState) -> list[tuple[LearnedRule, RoutineFilter]]:
        """Filters of the job's family that runs of its own tenant taught."""
        known = list[tuple[LearnedRule, RoutineFilter]]()
        for rule in self.registry.snapshot.filters:
            if rule.state in states and (rule.family, rule.tenant) == (family_of(job), job.tenant):
                known.append((rule, read(rule)))
        return known


class LogAgent:
    """One a process; ``run`` it as a task, or ``step`` it in a test."""

    def __init__(
        self,
        filters: FilterRegistry,
        history: ReplayHistory,
        clock: Clock,
        config: RuleLearningConfig,
        writer: LLMRuleWriter | None = None,
    ) -> None:
        """writer: the model that writes filters; without one the shapes of the lines do."""
        self._filters = filters
        self._history, self._registry, self._store = history, filters.registry, history.store
        self._clock, self._config, self._writer = clock, config, writer
        self._clean: deque[tuple[DiagnosisRecord, Facts]] = deque(maxlen=_WAITING)
        self._judged: object = None
        self._log = structlog.get_logger()

    async def run(self) -> None:
        """Run until cancelled; waits while the database is away."""
        while True:
            try:
                await self.step()
            except Unavailable as error:
                self._log.warning("log_agent_waits", error=str(error))
            except Exception as error:  # one log that cannot be read must not end the service
                self._log.error("log_agent_failed", exc_info=error)
            await asyncio.sleep(self._config.poll)

    async def observe(self, record: DiagnosisRecord, log: AttemptLog, facts: Facts) -> None:
        """Hold the filters of the job's family against a verdict that was saved. A clean run may teach new ones."""
        for rule, hit, against in await asyncio.to_thread(self._hits, record, log, facts):
            if hit.lines or against:
                await self._store.rules.record_hits([hit])
            if against:
                await self._move(rule, LearnedState.RETIRED, f"{against} of {record.attempt.job}")
        if is_clean(record.diagnosis, facts.events):
            self._clean.append((record, facts))

    def _hits(self, record: DiagnosisRecord, log: AttemptLog, facts: Facts) -> list[tuple[LearnedRule, RuleHit, str]]:
        """What each filter knows of a log, and what speaks against it there. Those in shadow are tried together, and
        alone only where they change the verdict."""
        loaded = self._filters.of(facts.job, *LOADED)
        shadow = [known for rule, known in loaded if rule.state is not LearnedState.ACTIVE]
        suspected = shadow if self._changes_verdict(log, shadow, facts) else []
        evidence, hits = cited(record.diagnosis), []
        for rule, known in loaded:
            against = ""
            if touched_by(known, evidence):
                against = "it knows the evidence"
            elif known in suspected and self._changes_verdict(log, [known], facts):
                against = "it would change the verdict"
            hits.append((rule, self._hit(rule, known, record, log, is_wrong=bool(against)), against))
        return hits

    def _hit(
        self, rule: LearnedRule, known: RoutineFilter, record: DiagnosisRecord, log: AttemptLog, *, is_wrong: bool
    ) -> RuleHit:
        folded = self._filters.folded(log.delta, (known,))
        entries = [stat for stat in folded.shapes.values() if stat.filtered == f"{LEARNED}{rule.id}"]
        lines, size = sum(stat.count for stat in entries), sum(stat.count * len(stat.first_text) for stat in entries)
        verdict = HitVerdict.WRONG if is_wrong else HitVerdict.CONFIRMED
        is_active = rule.state is LearnedState.ACTIVE
        return RuleHit(rule.id, record.attempt, record.created, record.id, verdict, is_active, lines, size)

    def _changes_verdict(self, log: AttemptLog, filters: Sequence[RoutineFilter], facts: Facts) -> bool:
        folded = self._filters.folded(log.delta, filters)
        if folded.shapes == log.delta.shapes:
            return False
        analyzer, now = self._registry.analyzer_of(facts.job.tenant), self._clock()
        return _told(analyzer.analyze(log, facts, now)) != _told(analyzer.analyze(AttemptLog(folded), facts, now))

    async def step(self) -> int:
        """A look at one clean run, then tests, promotions and retirements. Returns how many rules changed."""
        await self._registry.refresh()
        if self._clean:
            await self._propose(*self._clean.popleft())
        changed, mark = 0, await self._store.cases.mark()
        if mark != self._judged:
            evidence = await self._evidence()
            for rule in self._registry.snapshot.filters:
                if touched := touched_by(read(rule), evidence):
                    changed += await self._move(rule, LearnedState.RETIRED, f"somebody cites what it knows: {touched}")
        waiting = LearnedRuleQuery((LearnedState.PROPOSED, LearnedState.SHADOW), filters=True)
        for rule in await self._store.rules.page(waiting, "", 1000):
            if rule.state is LearnedState.PROPOSED:
                changed += await self._test(rule)
            elif self._config.is_proved(rule):
                why = f"{rule.counts.confirmed} attempts in shadow, none against it"
                changed += await self._move(rule, LearnedState.ACTIVE, why)
        self._judged = mark
        return changed

    async def _propose(self, record: DiagnosisRecord, facts: Facts) -> None:
        """Store a rule for the routine of a clean run that no rule of its family knows."""
        family = family_of(facts.job)
        others = await self._store.rules.page(LearnedRuleQuery(filters=True, family=family), "", RULES)
        if len(others) >= RULES:
            return
        if len(facts.baseline.runs) < RUNS_NEEDED:
            return
        log = await self._history.logs.load(record.attempt)
        shapes = await asyncio.to_thread(self._unknown, log.delta, facts, list(map(read, others)))
        named = "\0".join((family, *map(filter_writer.from_shape, shapes)))
        rule_id = f"filter_{hashlib.sha256(named.encode()).hexdigest()[:16]}"
        if not shapes:
            return
        if await self._store.rules.find(rule_id):
            return
        patterns, author = await filter_writer.write(self._writer, shapes, self._config.mask)
        text, kind = "\n".join(patterns), str(FailureType.COMPLETED)
        rule = LearnedRule(rule_id, record.id, self._clock(), type=kind, text=text, author=author, family=family)
        state = LearnedState.PROPOSED if text else LearnedState.REFUSED
        await self._store.rules.propose(self._moved(rule, state, "written" if text else "nothing is safe to hide"))

    def _unknown(self, delta: Delta, facts: Facts, others: Sequence[RoutineFilter]) -> list[TemplateStats]:
        """Shapes that every clean run prints and no other rule knows, as many as one rule may take."""
        unknown = list[TemplateStats]()
        for shape, stat in routine.routine_shapes(delta, self._filters.cache):
            texts = routine.messages(stat)
            if not all(shape in run.counts for run in facts.baseline.runs):
                continue
            if any(self._config.mask(text) != text for text in texts):
                continue
            if any(other.takes(texts[0]) for other in others):
                continue
            if filter_writer.usable([filter_writer.from_shape(stat)], [stat]):
                unknown.append(stat)
        return unknown[: filter_writer.PATTERNS_MAX]

    async def _test(self, rule: LearnedRule) -> bool:
        """Move a rule to shadow or refuse it, by what it would hide."""
        known, examples = read(rule), list[str]()
        for other in self._registry.analyzer.knowledge.engine.ruleset.rules:
            examples += template_rules.example_lines(other)
        checks = (
            _untouched("examples_of_rules", known, examples),
            _untouched("evidence_of_verdicts", known, await self._evidence()),
        )
        tested = replace(rule, gates=validation.masked(checks, self._config.mask))
        for check in checks:
            if not check.passed:
                return await self._move(tested, LearnedState.REFUSED, f"{check.name}: {check.reason}")
        return await self._move(tested, LearnedState.SHADOW, "passed every gate")

    async def _evidence(self) -> list[str]:
        """What the newest verdicts cite, and the lines that people named."""
        texts = list[str]()
        for record in await self._store.diagnoses.page(DiagnosisFilter(), "", _VERDICTS):
            texts += cited(record.diagnosis)
        async for record in self._history.confirmed(CONFIRMED):
            if record.feedback and record.feedback[0].root_line:
                root = rule_context.root_of(await self._history.case_of(record))
                texts += [root.text] if root else []
        return texts

    def _moved(self, rule: LearnedRule, state: LearnedState, why: str) -> LearnedRule:
        return rule.with_state(state, by=US, why=self._config.mask(why)[:500], now=self._clock())

    async def _move(self, rule: LearnedRule, state: LearnedState, why: str) -> bool:
        try:
            await self._store.rules.change(rule, self._moved(rule, state, why))
        except (Conflict, NotFound):  # somebody else was faster
            return False
        self._log.info("filter_rule_handled", rule=rule.id, state=str(state), why=why)
        return True


def read(rule: LearnedRule) -> RoutineFilter:
    """Read the patterns of a rule, one a line."""
    return RoutineFilter(rule.id, tuple(rule.text.splitlines()))


def cited(verdict: Diagnosis) -> list[str]:
    """Lines that a verdict shows as what happened, or as what no clean run printed."""
    texts = [line.text for line in (*verdict.evidence, *verdict.new_lines)]
    texts += [symptom.text for symptom in verdict.symptoms]
    if verdict.root_cause:
        texts.append(verdict.root_cause.text)
    return texts


def touched_by(known: RoutineFilter, texts: Sequence[str]) -> str:
    """The first line that a filter takes, "" for none."""
    for text in texts:
        body = body_of(text.encode("utf-8", "replace"))[1].decode("utf-8", "replace")
        if known.takes(body):
            return body[:_SHOWN]
    return ""


def _untouched(name: str, known: RoutineFilter, texts: Sequence[str]) -> ValidationResult:
    if touched := touched_by(known, texts):
        return ValidationResult(name, False, f"would hide: {touched}")
    return ValidationResult(name, True, f"none of {len(texts)} lines is hidden")


def _told(verdict: Diagnosis) -> tuple[object, ...]:
    return verdict.outcome, verdict.type, verdict.root_cause, verdict.recovery, verdict.nodes
