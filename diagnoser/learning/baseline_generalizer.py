"""Asks a model for filters where clean runs of a job family word the same message differently each time.

A shape cannot tell such lines from new ones; a pattern can. Several answers must agree on it, and it is replayed before
it counts: it never matches a line that a rule is proven by, or the root line of a stored verdict or confirmed failure.
A filter that later matches one is dropped when the family's next clean run ends.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any

import structlog
from pydantic import Field, StringConstraints

from diagnoser.compress import baseline, templates
from diagnoser.compress.lines import body_of
from diagnoser.diagnosis.baseline import RUNS_NEEDED
from diagnoser.diagnosis.context import DiagnosisContext, clean_runs_id
from diagnoser.failure_agent.conversation import Conversation, ConversationLimits, build_question
from diagnoser.learning.replay_history import ReplayStore
from diagnoser.learning.rule_context import hidden
from diagnoser.learning.rule_registry import RuleRegistry
from diagnoser.llm.answer import StrictAnswer
from diagnoser.llm.prompt import Prompt
from diagnoser.llm.view import Pseudonymizer, delimited
from diagnoser.model import Anchor, Baseline, Job, LearnedFilter, expressions
from diagnoser.model.errors import BadInput, ModelFailed
from diagnoser.model.taxonomy import Category, category_of
from diagnoser.observability.metrics import Metrics
from diagnoser.ports import Clock, DiagnosisFilter, LanguageModel
from diagnoser.redaction.redact import Redactor
from diagnoser.rules.schema import Match, Role, RuleSet

SAMPLES, AGREEING = 3, 2
"""Answers that are asked for, and how many of them must cover a line."""
CALLS_MAX = 9
ASK_AGAIN_SECONDS = 86_400.0
"""Shortest time between two questions about one family: bounds what the model costs."""
FILTERS_MAX, GROUPS_MAX, VARIANTS_MAX, WAITING_MAX = 50, 12, 4, 200
ROOTS_MAX = 1000
"""Stored verdicts, and as many confirmed failures, whose root lines no filter may match."""
_WORD = re.compile(r"[^\W\d_]+")
_OPEN = re.compile(r"\.[*+]|\[\\s\\S\][*+]|\.\{\d*,\d*\}")
_UNEASY = re.compile(
    r"(?i)retr(?:y|ies)|again|slow|stall|delay|wait|late\b|skip|drop|discard|reduc|degrad|throttl|fall.?back|evict|restart"
    r"|recover|overflow|grow|leak|pressure|limit|exceed|exhaust|insufficient|unhandled|weird|odd\b|bad\b|wrong|mismatch"
)
"""Words that are no failure by themselves, but too telling to let a model filter them out."""


class FilterProposals(StrictAnswer):
    """What the model answers: patterns."""

    filters: Annotated[
        tuple[Annotated[str, StringConstraints(min_length=1, max_length=400)], ...], Field(max_length=2 * GROUPS_MAX)
    ]


@dataclass(frozen=True, slots=True)
class FilterLearningConfig:
    """How a site asks. token: a new random word each time. deadline_seconds: for one family."""

    model: LanguageModel
    prompt: Prompt
    redact: Redactor
    token: Callable[[], str]
    deadline_seconds: float


@dataclass(frozen=True, slots=True)
class Variant:
    """A line that one clean run worded in its own way. raw: as printed. text: as the model sees it."""

    raw: str
    text: str


class BaselineGeneralizer:
    """One a process; ``run`` it as a task."""

    def __init__(
        self,
        store: ReplayStore,
        context: DiagnosisContext,
        rules: RuleRegistry,
        clock: Clock,
        config: FilterLearningConfig,
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._context = context
        self._rules = rules
        self._clock = clock
        self._config = config
        self._metrics = metrics
        self._waiting: asyncio.Queue[Job] = asyncio.Queue(WAITING_MAX)
        self._log = structlog.get_logger()

    def note(self, job: Job) -> None:
        """A clean run of the job was recorded: queue its family."""
        with suppress(asyncio.QueueFull):
            self._waiting.put_nowait(job)

    async def run(self) -> None:
        """Until it is cancelled. A family that fails is tried again after its next clean run."""
        while True:
            job = await self._waiting.get()
            try:
                await self.generalize(job)
            except Exception as error:
                self._log.error("baseline_generalizer_failed", family=clean_runs_id(job), exc_info=error)

    async def generalize(self, job: Job) -> None:
        """Replay the filters of the job's family and, once a day at most, ask for more. Raises Unavailable."""
        history = await self._context.baseline(job)
        if len(history.runs) < RUNS_NEEDED:
            return
        newest, now, protected = history.runs[-1], self._clock(), await self._protected_lines()
        safe = tuple(old for old in history.filters if not _matches_any(old.pattern, protected))
        anchors = self._rules.analyzer.knowledge.anchors
        groups = await asyncio.to_thread(variants, replace(history, filters=safe), anchors)
        learned: list[LearnedFilter] = []
        asked = max(run.asked for run in history.runs)
        if groups and now - asked >= ASK_AGAIN_SECONDS:
            learned, asked = await self._ask(job, groups, protected), now
        filters = tuple(dict.fromkeys((*safe, *learned)))[-FILTERS_MAX:]
        if (filters, asked) != (history.filters, newest.asked):
            await self._context.store_run(job, replace(newest, filters=filters, asked=asked))
            patterns = [learned_filter.pattern for learned_filter in filters]
            self._log.info("baseline_generalized", family=clean_runs_id(job), filters=patterns)

    async def _ask(self, job: Job, groups: Sequence[Sequence[str]], protected: Sequence[str]) -> list[LearnedFilter]:
        """Filters that pass every test; none where the model gave no usable answer."""
        config = self._config
        conversation = Conversation(config.model, ConversationLimits(config.deadline_seconds, CALLS_MAX))
        nodes = {*job.nodes, *job.rank_nodes.values()}
        pseudonyms = Pseudonymizer(config.redact, nodes, "\n".join(text for group in groups for text in group))
        lines = [[Variant(text, hidden(text, pseudonyms)) for text in group] for group in groups]
        asked = variables(lines, f"LOG-{config.token()}", pseudonyms.hosts.prefix)
        question = build_question(config.prompt, asked, FilterProposals)
        try:
            async with conversation.deadline():
                asking = (conversation.ask(question) for _ in range(SAMPLES))
                answers = await asyncio.gather(*asking, return_exceptions=True)
            patterns = agreed(list(map(_proposals, answers)), [variant for group in lines for variant in group])
        except ModelFailed as failure:
            self._log.warning("baseline_not_generalized", family=clean_runs_id(job), reason=str(failure))
            patterns = []
        author = conversation.author(config.prompt)
        self._metrics.observe_rule_writing(author.calls, author)
        safe = [pattern for pattern in patterns if not _matches_any(pattern, protected)]
        return [LearnedFilter(pattern, author.model, author.prompt_hash) for pattern in safe]

    async def _protected_lines(self) -> list[str]:
        """Messages that no filter may match: examples of rules, and root lines of verdicts and confirmed failures."""
        records = await self._store.diagnoses(DiagnosisFilter(), "", ROOTS_MAX)
        failures = [record.diagnosis for record in records if record.diagnosis.category is not Category.NONE]
        lines = [diagnosis.root_cause.text for diagnosis in failures if diagnosis.root_cause]
        confirmed_failures = await self._store.confirmed_failures(0.0, "", ROOTS_MAX)
        texts = (text for known in confirmed_failures for text in (known.line, *known.signature.message.split("\n")))
        lines += filter(None, texts)
        roots = [body_of(text.encode("utf-8", "replace"))[1].decode("utf-8", "replace") for text in lines]
        return roots + examples(self._rules.analyzer.knowledge.engine.ruleset)


def examples(ruleset: RuleSet) -> list[str]:
    """Example lines of the rules for failures."""
    rules = [rule for rule in ruleset.rules if rule.role is not Role.BENIGN]
    matches = [text for rule in rules if category_of(rule.type) is not Category.NONE for text in rule.examples.match]
    texts = [match.text if isinstance(match, Match) else match for match in matches]
    return [line for text in texts for line in text.split("\n")]


def variants(history: Baseline, anchors: Sequence[Anchor]) -> list[list[str]]:
    """Messages of several clean runs, as Drain3 groups them, largest first, without lines that could matter."""
    printed = [
        (run.name, text)
        for run in history.runs
        for text in run.unmatched
        if not baseline.matches(history.filters, text)
        and not _UNEASY.search(text)
        and not any(anchor.text in text for anchor in anchors)
    ]
    groups = templates.group([(text, 0) for _, text in printed])
    across_runs = [group for group in groups if len({printed[index][0] for index in group.members}) > 1]
    largest = sorted(across_runs, key=lambda group: -len(group.members))[:GROUPS_MAX]
    return [[printed[index][1] for index in group.members[-VARIANTS_MAX:]] for group in largest]


def variables(groups: Sequence[Sequence[Variant]], marker: str, alias: str) -> dict[str, Any]:
    """marker: stands around what programs printed, and nowhere in it. alias: prefix of machine names."""
    return {
        "marker": marker,
        "groups": [[delimited(variant.text, marker) for variant in group] for group in groups],
        "alias": alias,
    }


def _proposals(answer: FilterProposals | BaseException) -> list[str]:
    """Patterns of an answer, none where the model gave no usable one; any other fault is raised."""
    if isinstance(answer, FilterProposals):
        return list(answer.filters)
    if isinstance(answer, ModelFailed):
        return []
    raise answer


def agreed(answers: Sequence[Sequence[str]], lines: Sequence[Variant]) -> list[str]:
    """Usable patterns; every line that one matches must be matched by ``AGREEING`` answers."""
    usable = [[text for text in answer if not fault(text, lines)] for answer in answers]
    matched = [{line for text in answer for line in _matched(text, lines)} for answer in usable]
    support = Counter(line for numbers in matched for line in numbers)
    proposed = dict.fromkeys(text for answer in usable for text in answer)
    return [text for text in proposed if all(support[line] >= AGREEING for line in _matched(text, lines))]


def fault(pattern: str, lines: Sequence[Variant]) -> str:
    """Why a pattern cannot be used, "" where it can. It must require two words of its lines, and one of them in the
    second half if it has a wildcard."""
    try:
        compiled = expressions.compiled(pattern)
    except BadInput as error:
        return str(error)[:200]
    own = _matched(pattern, lines)
    if len(own) < 2:
        return "does not match two of the lines that it is written for"
    for line in (text for number in own for text in (lines[number].raw, lines[number].text)):
        words = list(_WORD.finditer(line))
        if any(compiled.search(_only(line, [word])) for word in words) or compiled.search(_only(line, [])):
            return "matches lines that share one word with it"
        if _OPEN.search(pattern) and compiled.search(_only(line, words[: len(words) // 2])):
            return "matches whatever follows its first words"
    return ""


def _only(line: str, words: Sequence[re.Match[str]]) -> str:
    """The line with every letter outside the given words replaced by q."""
    spans = [word.span() for word in words]
    return "".join(
        char if not char.isalpha() or any(low <= index < high for low, high in spans) else "q"
        for index, char in enumerate(line)
    )


def _matched(pattern: str, lines: Sequence[Variant]) -> list[int]:
    compiled = expressions.compiled(pattern)
    return [number for number, line in enumerate(lines) if compiled.search(line.raw) and compiled.search(line.text)]


def _matches_any(pattern: str, texts: Sequence[str]) -> bool:
    compiled = expressions.compiled(pattern)
    return any(compiled.search(text) for text in texts)
