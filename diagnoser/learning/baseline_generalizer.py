"""Asks a model for filters where clean runs of a job family word the same message differently each time.

A shape cannot tell such lines from new ones; a pattern can. Several answers must agree on it, and it is replayed before
it counts: it never matches a line that a rule is proven by, or the root line of a stored verdict or incident. A filter
that later matches one is dropped when the family's next clean run ends.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any

import re2
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
from diagnoser.llm.redact import Redactor
from diagnoser.llm.view import Pseudonymizer, delimited
from diagnoser.model import Anchor, Baseline, Job, LearnedFilter
from diagnoser.model.errors import ModelFailed
from diagnoser.model.taxonomy import Category, category_of
from diagnoser.observability.metrics import Metrics
from diagnoser.ports import Clock, DiagnosisFilter, LanguageModel
from diagnoser.rules.schema import Match, Role, RuleSet

SAMPLES, AGREEING = 3, 2
"""Answers that are asked for, and how many must match a line."""
CALLS_MAX = 9
ASK_AGAIN_SECONDS = 86_400.0
"""Between two questions about one family: what clean runs print has an end, and so has what a model may cost."""
FILTERS_MAX, GROUPS_MAX, VARIANTS_MAX, WAITING_MAX = 50, 12, 4, 200
ROOTS_MAX = 1000
"""Stored verdicts, and incidents, whose root lines a filter is held against."""
_WORD = re.compile(r"[^\W\d_]+")
_OPEN = re.compile(r"\.[*+]|\[\\s\\S\][*+]|\.\{\d*,\d*\}")
_UNEASY = re.compile(
    r"(?i)retr(?:y|ies)|again|slow|stall|delay|wait|late\b|skip|drop|discard|reduc|degrad|throttl|fall.?back|evict|restart"
    r"|recover|overflow|grow|leak|pressure|limit|exceed|exhaust|insufficient|unhandled|weird|odd\b|bad\b|wrong|mismatch"
)
"""Words that are no trouble by themselves, and yet nothing that a model decides about."""


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
    """A line that one clean run worded in its own way: as it came, and as the model sees it."""

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
        """A clean run of the job was recorded: its family is looked at when there is time."""
        with suppress(asyncio.QueueFull):
            self._waiting.put_nowait(job)

    async def run(self) -> None:
        """Until it is cancelled. A family that cannot be worked on is looked at after its next clean run."""
        while True:
            job = await self._waiting.get()
            try:
                await self.generalize(job)
            except Exception as error:
                self._log.error("baseline_generalizer_failed", family=clean_runs_id(job), exc_info=error)

    async def generalize(self, job: Job) -> None:
        """Replay the filters of the job's family and, once a day at most, ask for more. Raises Unavailable."""
        known = await self._context.baseline(job)
        if len(known.runs) < RUNS_NEEDED:
            return
        newest, now, protected = known.runs[-1], self._clock(), await self._protected_lines()
        kept = tuple(one for one in known.filters if not _matches_any(one.pattern, protected))
        groups = await asyncio.to_thread(variants, replace(known, filters=kept), self._rules.analyzer.knowledge.anchors)
        learned: list[LearnedFilter] = []
        asked = max(run.asked for run in known.runs)
        if groups and now - asked >= ASK_AGAIN_SECONDS:
            learned, asked = await self._ask(job, groups, protected), now
        filters = tuple(dict.fromkeys((*kept, *learned)))[-FILTERS_MAX:]
        if (filters, asked) != (known.filters, newest.asked):
            await self._context.store_run(job, replace(newest, filters=filters, asked=asked))
            self._log.info("baseline_generalized", family=clean_runs_id(job), filters=[one.pattern for one in filters])

    async def _ask(self, job: Job, groups: Sequence[Sequence[str]], protected: Sequence[str]) -> list[LearnedFilter]:
        """Filters that stand every test; none where the model gave no usable answer."""
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
            patterns = agreed([_proposals(one) for one in answers], [one for group in lines for one in group])
        except ModelFailed as failure:
            self._log.warning("baseline_not_generalized", family=clean_runs_id(job), reason=str(failure))
            patterns = []
        author = conversation.author(config.prompt)
        self._metrics.observe_rule_writing(author.calls, author)
        safe = [pattern for pattern in patterns if not _matches_any(pattern, protected)]
        return [LearnedFilter(pattern, author.model, author.prompt_hash) for pattern in safe]

    async def _protected_lines(self) -> list[str]:
        """Messages that no filter may match: what rules are proven by, and root lines of verdicts and incidents."""
        records = await self._store.diagnoses(DiagnosisFilter(), "", ROOTS_MAX)
        failed = [one.diagnosis for one in records if one.diagnosis.category is not Category.NONE]
        lines = [one.root_cause.text for one in failed if one.root_cause]
        incidents = await self._store.incidents(0.0, "", ROOTS_MAX)
        lines += [text for one in incidents for text in (one.line, *one.signature.message.split("\n")) if text]
        roots = [body_of(text.encode("utf-8", "replace"))[1].decode("utf-8", "replace") for text in lines]
        return roots + examples(self._rules.analyzer.knowledge.engine.ruleset)


def examples(ruleset: RuleSet) -> list[str]:
    """Lines that the rules of failures are proven by."""
    rules = [one for one in ruleset.rules if one.role is not Role.BENIGN and category_of(one.type) is not Category.NONE]
    texts = [one.text if isinstance(one, Match) else one for rule in rules for one in rule.examples.match]
    return [line for text in texts for line in text.split("\n")]


def variants(known: Baseline, anchors: Sequence[Anchor]) -> list[list[str]]:
    """Messages of several clean runs that Drain3 takes for one, the largest groups first, without what could matter."""
    printed = [
        (run.name, text)
        for run in known.runs
        for text in run.unmatched
        if not baseline.matches(known.filters, text)
        and not _UNEASY.search(text)
        and not any(anchor.text in text for anchor in anchors)
    ]
    groups = templates.group([(text, 0) for _, text in printed])
    of_several = [one for one in groups if len({printed[index][0] for index in one.members}) > 1]
    largest = sorted(of_several, key=lambda one: -len(one.members))[:GROUPS_MAX]
    return [[printed[index][1] for index in one.members[-VARIANTS_MAX:]] for one in largest]


def variables(groups: Sequence[Sequence[Variant]], marker: str, alias: str) -> dict[str, Any]:
    """marker: stands around what programs printed, and nowhere in it. alias: what machines are called."""
    return {
        "marker": marker,
        "groups": [[delimited(one.text, marker) for one in group] for group in groups],
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
    """Usable patterns of which every line that they match is matched by ``AGREEING`` answers."""
    usable = [[text for text in answer if not fault(text, lines)] for answer in answers]
    support = Counter(number for answer in usable for number in {n for text in answer for n in _matched(text, lines)})
    every = dict.fromkeys(text for answer in usable for text in answer)
    return [text for text in every if all(support[number] >= AGREEING for number in _matched(text, lines))]


def fault(pattern: str, lines: Sequence[Variant]) -> str:
    """Why a pattern cannot be used, "" where it can. It must ask for words of its lines: two of them, and one in the
    second half where it takes anything."""
    try:
        compiled = re2.compile(pattern, _options())
    except re2.error as error:
        return f"not an RE2 expression: {error}"[:200]
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


def _only(line: str, kept: Sequence[re.Match[str]]) -> str:
    """The line with all letters but those of the kept words made meaningless."""
    spans = [word.span() for word in kept]
    return "".join(
        char if not char.isalpha() or any(low <= at < high for low, high in spans) else "q"
        for at, char in enumerate(line)
    )


def _matched(pattern: str, lines: Sequence[Variant]) -> list[int]:
    compiled = re2.compile(pattern, _options())
    return [number for number, one in enumerate(lines) if compiled.search(one.raw) and compiled.search(one.text)]


def _matches_any(pattern: str, texts: Sequence[str]) -> bool:
    compiled = re2.compile(pattern, _options())
    return any(compiled.search(text) for text in texts)


def _options() -> Any:
    options = re2.Options()
    options.log_errors = False
    return options
