"""The knowledge in use: what this site's files say and what was learned since, swapped as a whole when it changes.

Every replica polls one counter; who sees it grow loads the rules anew. A request or a diagnosis that has begun keeps
the reader it began with.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from threading import Lock

import structlog

from diagnoser.adapters.sql.learned import LearnedRuleRepository
from diagnoser.compress import AttemptLog, Compressor
from diagnoser.diagnosis import pipeline
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.localize.hang_detection import ExpectedSilence
from diagnoser.model import LOADED, Baseline, Diagnosis, Facts, Job, LearnedRule, LearnedState, yaml_loader
from diagnoser.model.access import may_learn
from diagnoser.model.errors import RuleFaults
from diagnoser.model.queries import LearnedRuleQuery
from diagnoser.model.recent import Recent
from diagnoser.ports import Clock, Pause
from diagnoser.rules import schema
from diagnoser.rules.engine import Engine
from diagnoser.rules.examples import path_of
from diagnoser.rules.schema import Rule, RuleSet
from diagnoser.worker.repeat import repeat

_PAGE = 500
_FOLLOW_SECONDS = 1.0
TENANTS_KEPT = 16
"""Analyzers with the rules of single tenants that are kept, those used last."""


@dataclass(frozen=True)
class RuleSnapshot:
    """One state of the rules. rules: those in shadow and active, by id. analyzer: with the active ones.

    trial: knows only the rules in shadow. filters: Filter Rules of job families, those in shadow and active.
    """

    revision: int
    rules: tuple[LearnedRule, ...]
    analyzer: LogAnalyzer
    trial: Engine
    filters: tuple[LearnedRule, ...] = ()

    def of(self, state: LearnedState) -> tuple[LearnedRule, ...]:
        return tuple(rule for rule in self.rules if rule.state is state)

    def in_force(self, tenant: str) -> tuple[LearnedRule, ...]:
        """For a job of this tenant: what it did not teach itself is no business of it."""
        return tuple(rule for rule in self.of(LearnedState.ACTIVE) if may_learn(tenant, rule.tenant))


def build_snapshot(base: LogAnalyzer, revision: int, rules: Sequence[LearnedRule]) -> RuleSnapshot:
    """A rule that this version of the code cannot read is left out, with a warning: the others go on."""
    snapshot = RuleSnapshot(revision, tuple(rules), base, Engine(RuleSet((), "")))
    active = read(snapshot.of(LearnedState.ACTIVE))
    analyzer = base.with_rules(active) if active.rules else base
    return RuleSnapshot(revision, snapshot.rules, analyzer, Engine(read(snapshot.of(LearnedState.SHADOW))))


def read(rules: Sequence[LearnedRule]) -> RuleSet:
    """Learned rules as a rule set, without those that cannot be read."""
    sound: dict[str, str] = {}
    for rule in rules:
        try:
            (parsed,) = parse(rule.text).rules
            sound[path_of(parsed)] = rule.text
        except RuleFaults as faults:
            structlog.get_logger().warning("learned_rule_unreadable", rule=rule.id, faults=str(faults))
    return schema.load(sound)


def parse(text: str) -> RuleSet:
    """A set of one rule, whatever its path. Raises RuleFaults."""
    return schema.load({path(text): text})


def path(text: str) -> str:
    """The path that the rule must have. For a text that is no rule any path does: its faults are reported anyway."""
    rule, _ = yaml_loader.read("rule.yaml", text, Rule)
    if rule is None:
        return "rule.yaml"
    return path_of(rule)


class RuleRegistry:
    """One a process. ``analyzer`` changes when rules do: read it once per piece of work and do not keep it."""

    def __init__(
        self,
        base: LogAnalyzer,
        store: LearnedRuleRepository,
        clock: Clock,
        *,
        shared: bool = False,
    ) -> None:
        """shared: a learned rule is used for the jobs of all tenants; else only for those of the one it is learned
        from, and for jobs of no known tenant."""
        self.base = base
        self._clock = clock
        self._store = store
        self._turn = asyncio.Lock()
        self._shared = shared
        self._keeping = Lock()  # several threads diagnose
        self._of_tenants = Recent[tuple[int, tuple[str, ...]], LogAnalyzer](TENANTS_KEPT)
        self.snapshot = build_snapshot(base, 0, ())

    @property
    def analyzer(self) -> LogAnalyzer:
        return self.snapshot.analyzer

    def analyzer_of(self, tenant: str) -> LogAnalyzer:
        """The analyzer with the learned rules that count for a tenant's jobs. May take as long as reading the rules
        anew.
        """
        snapshot = self.snapshot
        rules = snapshot.in_force("" if self._shared else tenant)
        if len(rules) == len(snapshot.of(LearnedState.ACTIVE)):
            return snapshot.analyzer
        if not rules:
            return self.base
        key = snapshot.revision, tuple(rule.id for rule in rules)
        known = self._of_tenants.get(key) or self.base.with_rules(read(rules))
        with self._keeping:
            self._of_tenants[key] = known
        return known

    async def refresh(self) -> bool:
        """Load the rules if they changed; returns whether they did. Raises Unavailable."""
        if await self._store.revision() == self.snapshot.revision:
            return False
        async with self._turn:
            revision = await self._store.revision()  # before the rules: a change meanwhile is seen next time
            if revision == self.snapshot.revision:
                return False
            rules, filters = await self._load(filters=False), await self._load(filters=True)
            snapshot = await asyncio.to_thread(build_snapshot, self.base, revision, rules)
            self.snapshot = replace(snapshot, filters=tuple(filters))
        structlog.get_logger().info("rules_loaded", revision=revision, learned=len(rules), filters=len(filters))
        return True

    async def follow(self, pause: Pause = asyncio.sleep) -> None:
        """Keep up with the rules that other processes change, until cancelled. pause: between two looks."""
        await repeat(self.refresh, _FOLLOW_SECONDS, "rules_not_followed", pause)

    def compressor(self) -> Compressor:
        return self.analyzer.compressor()

    async def analyze(self, log: AttemptLog, facts: Facts) -> Diagnosis:
        """Uses the rules that are in force when the diagnosis begins."""
        now = self._clock()
        return await asyncio.to_thread(lambda: self.analyzer_of(facts.job.tenant).analyze(log, facts, now))

    async def analyze_without(self, lines: Collection[int], log: AttemptLog, facts: Facts) -> Diagnosis:
        """The verdict as if these lines of the evidence, by their indices, had not been printed."""
        now = self._clock()
        return await asyncio.to_thread(
            lambda: self.analyzer_of(facts.job.tenant).analyze_without(lines, log, facts, now)
        )

    async def patience(self, job: Job, log: AttemptLog, known: Baseline) -> ExpectedSilence | None:
        """How long the run may be silent now; None where its log does not tell. known: clean runs of its family."""
        return await asyncio.to_thread(lambda: pipeline.expected_silence_of(job, log.evidence, known))

    async def _load(self, *, filters: bool) -> list[LearnedRule]:
        """The rules in shadow and active, by id."""
        rules: list[LearnedRule] = []
        query, after = LearnedRuleQuery(LOADED, filters=filters), ""
        while page := await self._store.page(query, after, _PAGE):
            rules += page
            after = page[-1].id
        return sorted(rules, key=lambda rule: rule.id)
