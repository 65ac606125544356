"""Where people try patterns: what they match in cases, in examples of rules and in healthy runs, and the rule that
becomes of one.

A trial is bounded in text and time and runs in a thread, one at a time in a process: no pattern holds up the service.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Generic, Self, TypeVar

from diagnoser.learning import rule_context, template_rules
from diagnoser.learning.replay_history import ReplayHistory
from diagnoser.learning.rule_lifecycle import RuleLifecycle
from diagnoser.learning.rule_registry import RuleRegistry
from diagnoser.learning.template_rules import RuleDraft
from diagnoser.model import AttemptKey, CaseMark, LearnedRule, ValidationResult
from diagnoser.model.errors import Overloaded
from diagnoser.model.taxonomy import FailureType
from diagnoser.model.work import DiagnosisRecord
from diagnoser.rules.line_match import LINE_LENGTH, LineConditions, LineMatcher, LineTexts, Span
from diagnoser.rules.schema import Rule

CASES, HEALTHY = 300, 50
"""Newest confirmed failures, and newest completed attempts, that a pattern is tried on."""
LINES_EACH = 4_000
"""Kept lines of one attempt that are searched, those nearest to its end, and as many that stand for routine ones."""
CHARS_HELD = 12 << 20
"""Characters of all lines that are held in memory; attempts beyond that are not searched."""
SEARCH_SECONDS, READ_SECONDS = 2.0, 1.5
"""Longest search, and longest reading of logs that are not held yet: a later trial goes on with it."""
FRESH_SECONDS = 60.0
"""Age up to which the list of attempts counts, while nobody judges another diagnosis."""
LINES_COUNTED = 10
"""Lines that are looked for in one attempt: a pattern that matches everything costs little more than others."""
WAITING_MAX = 8
SHOWN = 20
"""Hits of each kind that a trial lists; all are counted."""


@dataclass(frozen=True, slots=True)
class AttemptLines:
    """What is searched of a stored attempt. type: its cause, as it is known; root: the line that shows it."""

    attempt: AttemptKey
    diagnosis: str
    type: FailureType
    root: str
    texts: LineTexts


@dataclass(frozen=True, slots=True)
class LineHit:
    """A line that matches, with the parts that do."""

    text: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class AttemptHit:
    """The root line of an attempt where that matches, else the first line that does. lines: how many different ones
    do, ``LINES_COUNTED`` for so many or more."""

    attempt: AttemptKey
    diagnosis: str
    type: FailureType
    line: LineHit
    is_root: bool
    lines: int


@dataclass(frozen=True, slots=True)
class Example:
    """A line of an example, as of ``ExampleHit``."""

    owner: str
    type: FailureType | None
    is_counter: bool


@dataclass(frozen=True, slots=True)
class ExampleHit(Example):
    """An example that matches. owner: id of a rule, or of a filter of routine lines. is_counter: the rule says that it
    must not match, or the filter that such a line is routine. type: of the rule, None for a filter."""

    line: LineHit


Hit = TypeVar("Hit", AttemptHit, ExampleHit)


@dataclass(frozen=True, slots=True)
class Tried(Generic[Hit]):
    """Where a pattern was tried. items: the first ``SHOWN`` of the ``matched`` hits.

    searched: attempts or examples whose lines are held. known: all that there are.
    """

    items: tuple[Hit, ...] = ()
    matched: int = 0
    searched: int = 0
    known: int = 0

    @classmethod
    def of(cls, hits: Sequence[Hit], searched: int, known: int) -> Self:
        return cls(tuple(hits[:SHOWN]), len(hits), searched, known)


@dataclass(frozen=True, slots=True)
class PatternTrial:
    """What a pattern matches. types: matched cases by their cause.

    is_complete: nothing was left out for lack of time.
    """

    cases: Tried[AttemptHit] = Tried()
    types: Mapping[FailureType, int] = field(default_factory=dict)
    examples: Tried[ExampleHit] = Tried()
    healthy: Tried[AttemptHit] = Tried()
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class RuleProposal:
    """A rule that a person wrote for a confirmed failure. source: its diagnosis. replaces: the learned rule that it is
    an edition of, "" for none."""

    source: str
    draft: RuleDraft
    replaces: str = ""


@dataclass
class _Held:
    """The lines in memory, by diagnosis and what was said of it."""

    lines: OrderedDict[tuple[str, str], AttemptLines] = field(default_factory=OrderedDict)
    cases: Sequence[DiagnosisRecord] = ()
    healthy: Sequence[DiagnosisRecord] = ()
    mark: CaseMark | None = None
    listed: float = 0.0

    def lines_of(self, records: Sequence[DiagnosisRecord]) -> list[AttemptLines]:
        """List the lines of the attempts that could be read in time."""
        return [self.lines[name] for name in map(_name, records) if name in self.lines]


@dataclass(eq=False)
class RuleWorkbench:
    """One a process. seconds: of a clock that never runs backwards."""

    history: ReplayHistory
    registry: RuleRegistry
    lifecycle: RuleLifecycle
    seconds: Callable[[], float]
    search_seconds: float = SEARCH_SECONDS
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _waiting: int = field(default=0, init=False)
    _held: _Held = field(default_factory=_Held, init=False)
    _examples: "tuple[object, _ExampleLines] | None" = field(default=None, init=False)

    @property
    def rules(self) -> tuple[Rule, ...]:
        return self.registry.base.knowledge.engine.ruleset.rules

    async def trial(self, conditions: LineConditions) -> PatternTrial:
        """Raises BadInput where the pattern cannot be used, Overloaded while many are being tried."""
        matcher = LineMatcher(conditions)
        if self._waiting >= WAITING_MAX:
            raise Overloaded("many patterns are being tried at this moment", 2.0)
        self._waiting += 1
        try:
            async with self._turn:
                await self._read_attempts()
                return await asyncio.to_thread(self._search, matcher)
        finally:
            self._waiting -= 1

    async def propose(self, proposal: RuleProposal, by: str) -> tuple[LearnedRule, tuple[ValidationResult, ...]]:
        """Store a person's rule; the worker holds it against history, and then it runs in shadow.

        Returns it with the checks that need no history; where one of them failed, nothing is stored. A rule that exists
        is returned as it is. Raises NotFound, BadInput where no rule can be made of the case.
        """
        LineMatcher(LineConditions(proposal.draft.patterns, proposal.draft.anchors, proposal.draft.unless))
        return await self.lifecycle.propose(proposal.source, proposal.draft, by, proposal.replaces)

    async def _read_attempts(self) -> None:
        """Hold the lines of the attempts to search, as many of them as can be read in time."""
        held, now = self._held, self.seconds()
        await self._list_attempts(now)
        size = sum(map(_size, held.lines.values()))
        wanted = [*held.cases[:1], *held.healthy[:1], *held.cases[1:], *held.healthy[1:]]
        for record in wanted:
            if _name(record) in held.lines:
                continue
            if size > CHARS_HELD:
                continue
            if self.seconds() - now > READ_SECONDS:
                break
            lines = held.lines[_name(record)] = await self._lines_of(record)
            size += _size(lines)
        for name in held.lines.keys() - set(map(_name, wanted)):
            del held.lines[name]

    async def _list_attempts(self, now: float) -> None:
        """List the attempts again where a case is new, or after a while."""
        held = self._held
        mark = await self.history.store.cases.mark()
        if mark != held.mark or now - held.listed > FRESH_SECONDS:
            held.cases = [record async for record in self.history.confirmed(CASES)]
            held.healthy = await self.history.completed_records(HEALTHY)
            held.mark, held.listed = mark, now

    async def _lines_of(self, record: DiagnosisRecord) -> AttemptLines:
        case = await self.history.case_of(record)

        def texts() -> LineTexts:
            kept = [line.body for line in case.evidence.lines[-LINES_EACH:]]
            return LineTexts([*root_texts, *kept, *case.printed[:LINES_EACH]])

        root = rule_context.root_of(case)
        root_texts = [root.body] if root else []
        lines = await asyncio.to_thread(texts)
        return AttemptLines(record.attempt, record.id, case.known_type, "".join(root_texts), lines)

    def _search(self, matcher: LineMatcher) -> PatternTrial:
        """Search what is held; call it in a thread."""
        until = self.seconds() + self.search_seconds
        found = _Findings(matcher, lambda: self.seconds() > until)
        held = self._held
        cases, healthy = held.lines_of(held.cases), held.lines_of(held.healthy)
        case_hits = found.attempts(cases)
        examples = self._example_lines()
        example_hits = found.examples(examples)
        example_count = sum(map(len, examples.owners.values()))
        trial = PatternTrial(
            cases=Tried.of(case_hits, len(cases), len(held.cases)),
            types=dict(Counter(hit.type for hit in case_hits).most_common()),
            examples=Tried.of(example_hits, example_count, example_count),
            healthy=Tried.of(found.attempts(healthy), len(healthy), len(held.healthy)),
        )
        left_out = trial.cases.known - len(cases) + trial.healthy.known - len(healthy)
        return replace(trial, is_complete=not found.is_cut and not left_out)

    def _example_lines(self) -> "_ExampleLines":
        """Example lines of the rules in force and of the filters; made again when those change."""
        analyzer = self.registry.analyzer
        if self._examples is None or self._examples[0] is not analyzer:
            self._examples = (
                analyzer,
                _ExampleLines.of(analyzer.knowledge.engine.ruleset.rules, analyzer.filters.examples),
            )
        return self._examples[1]


@dataclass(frozen=True)
class _ExampleLines:
    """owners: line -> the examples that have it."""

    owners: Mapping[str, list[Example]]
    texts: LineTexts

    @classmethod
    def of(cls, rules: Sequence[Rule], filters: Iterable[tuple[str, str]]) -> "_ExampleLines":
        owners: dict[str, list[Example]] = {}
        for example, line in examples_of(rules, filters):
            owners.setdefault(line[:LINE_LENGTH], []).append(example)
        return cls(owners, LineTexts(owners))


class _Findings:
    """Searches until the time is over. is_cut: it was, before all was searched."""

    def __init__(self, matcher: LineMatcher, is_over: Callable[[], bool]) -> None:
        self._matcher = matcher
        self._is_over = is_over
        self.is_cut = False

    def attempts(self, attempts: Iterable[AttemptLines]) -> list[AttemptHit]:
        hits = []
        for lines in attempts:
            if matched := self._in(lines.texts, LINES_COUNTED):
                first, count = matched[0], len(matched)
                is_root = first.text == lines.root[:LINE_LENGTH]
                hits.append(AttemptHit(lines.attempt, lines.diagnosis, lines.type, first, is_root, count))
        return hits

    def examples(self, lines: _ExampleLines) -> list[ExampleHit]:
        return [
            ExampleHit(example.owner, example.type, example.is_counter, hit)
            for hit in self._in(lines.texts)
            for example in lines.owners[hit.text]
        ]

    def _in(self, texts: LineTexts, most: int | None = None) -> list[LineHit]:
        hits: list[LineHit] = []
        if self.is_cut:
            return hits
        try:
            for text, spans in islice(self._matcher.search(texts, self._is_over), most):
                hits.append(LineHit(text, spans))
        except TimeoutError:
            self.is_cut = True
        return hits


def examples_of(rules: Sequence[Rule], filters: Iterable[tuple[str, str]]) -> Iterator[tuple[Example, str]]:
    """The lines of the examples of rules and filters. filters: (``<family>/<id>``, text)."""
    for rule in rules:
        for line in template_rules.example_lines(rule):
            yield Example(rule.id, rule.type, is_counter=False), line
        for text in rule.examples.no_match:
            for line in text.split("\n"):
                yield Example(rule.id, rule.type, is_counter=True), line
    for name, text in filters:
        yield Example(name, None, is_counter=True), text


def _name(record: DiagnosisRecord) -> tuple[str, str]:
    feedback = rule_context.feedback_on(record)
    return record.id, feedback.id if feedback else ""


def _size(lines: AttemptLines) -> int:
    return sum(map(len, lines.texts.lines))
