"""One consultation of the model about a failure: few calls, few tokens, checked answers, and two that agree.

First the model looks at what it wants to see, in a few rounds. Then it answers. Where the answers differ, or contradict
what the rules say, a second look decides: the same question again, with the claims side by side.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from diagnoser.failure_agent.conversation import Conversation, Question, UsageCounter, build_question, request_tokens
from diagnoser.failure_agent.toolbox import RESULTS_TOKENS, Toolbox
from diagnoser.failure_agent.tools import SPECS, Look, ToolEvidence
from diagnoser.llm import evidence, question, vote
from diagnoser.llm.answer import Answer
from diagnoser.llm.evidence import CheckContext, Checked
from diagnoser.llm.prompt import Prompt
from diagnoser.llm.question import Background
from diagnoser.llm.view import LogView, Pseudonymizer, delimited
from diagnoser.model import Diagnosis, Evidence, Facts, ToolUse
from diagnoser.model.errors import ModelFailed, ModelFailure
from diagnoser.model.taxonomy import FailureType
from diagnoser.ports import LanguageModel, ModelSample, ToolRound, ToolSpec
from diagnoser.redaction.redact import Redactor

CALLS_MAX = 8
"""Requests of one consultation: rounds with tools, answers, a second look, repairs and retries."""
TOKENS_MAX = 64_000
"""Tokens of one consultation, read and written."""
_CLAIMS_TOKENS = 400
"""Room that a second look needs in the server's context for its claims."""
LOG_TOKENS_MIN = 300
"""Fewest tokens of log that are worth asking about."""
_TOOLS_CONTEXT = 12_000
"""Tokens of a server's context from which there is room for the results of tools beside the log."""
_LOOKING_SHARE = 0.5
"""Share of the deadline in which a model may still begin to look at something."""


@dataclass(frozen=True, slots=True)
class ConsultationInput:
    """What to ask about. view: size in tokens -> what the model may read. confirmed_failures: similar ones, as text.

    background: what is known beside the lines of the view. evidence: what its tools may read.
    """

    diagnosis: Diagnosis
    log: Evidence
    facts: Facts
    view: Callable[[int], LogView]
    confirmed_failures: tuple[str, ...] = ()
    background: Background = field(default_factory=Background)
    evidence: ToolEvidence = field(default_factory=ToolEvidence)


@dataclass(frozen=True, slots=True)
class AblationSwitches:
    """Parts that can be left out, to measure what they are worth."""

    vote: bool = True
    check: bool = True
    tools: bool = True


@dataclass(frozen=True, slots=True)
class ConsultationConfig:
    """How a site asks. log_tokens: size of the view at most. token: a new random word each time, for the marker.

    deadline_seconds: for one consultation.
    """

    prompt: Prompt
    redact: Redactor
    log_tokens: int
    token: Callable[[], str]
    deadline_seconds: float
    switches: AblationSwitches = AblationSwitches()


class Consultation:
    def __init__(self, model: LanguageModel, subject: ConsultationInput, config: ConsultationConfig) -> None:
        self._model = model
        self._subject = subject
        self._config = config
        self._conversation = Conversation(model, config.deadline_seconds, CALLS_MAX, TOKENS_MAX)
        self._tools: tuple[ToolSpec, ...] = ()
        self._wanted = vote.AGREE if config.switches.vote else 1
        self._looks_until = 0.0
        self.tool_uses: tuple[ToolUse, ...] = ()

    @property
    def usage(self) -> UsageCounter:
        return self._conversation.usage

    async def run(self) -> tuple[Checked, ...]:
        """The answers that agree. Raises ModelFailed."""
        self._looks_until = asyncio.get_running_loop().time() + _LOOKING_SHARE * self._config.deadline_seconds
        async with self._conversation.deadline():
            log_tokens = await self._log_tokens()
            try:
                return await self._agree(log_tokens)
            except ModelFailed as failure:
                if failure.reason is not ModelFailure.CONTEXT_TOO_SMALL:
                    raise
                if log_tokens // 2 < LOG_TOKENS_MIN:
                    raise
            return await self._agree(log_tokens // 2)

    async def _log_tokens(self) -> int:
        """Tokens for the view: the configured size, or what fits the server's context beside prompt and answer."""
        context_length = await self._model.context()
        if self._config.switches.tools and (context_length or _TOOLS_CONTEXT) >= _TOOLS_CONTEXT:
            self._tools = SPECS
        if context_length is None:
            return self._config.log_tokens
        without_log = replace(self._subject, view=lambda _: LogView("", {}))
        request = prepare(without_log, self._config, 0, self._tools).question.request
        room = context_length - request_tokens(request) - _CLAIMS_TOKENS
        if self._tools:
            room -= RESULTS_TOKENS
        log_tokens = min(self._config.log_tokens, room)
        if log_tokens < LOG_TOKENS_MIN:
            raise ModelFailed(ModelFailure.CONTEXT_TOO_SMALL, f"the server takes {context_length} tokens")
        return log_tokens

    async def _agree(self, log_tokens: int) -> tuple[Checked, ...]:
        """Ask until enough answers agree. Raises ModelFailed."""
        asked = await asyncio.to_thread(prepare, self._subject, self._config, log_tokens, self._tools)
        asked, samples = await self._look(asked)
        results = list[Checked | ModelFailed]()
        answers = list[Checked]()
        while samples:
            results += await asyncio.gather(*(self._checked(asked, sample) for sample in samples))
            answers = [result for result in results if isinstance(result, Checked)]
            try:
                samples = await self._more(asked, answers, len(results))
            except ModelFailed as failure:
                results.append(failure)
                break
        if len(answers) < self._wanted:
            raise next(result for result in results if isinstance(result, ModelFailed))
        if self._wanted == 1:
            return tuple(answers)
        agreed = vote.agreed(answers)
        if agreed and not self._contradicts(agreed[0]):
            return agreed
        return await self._second_look(asked, answers)

    async def _look(self, asked: "ConsultationRound") -> tuple["ConsultationRound", tuple[ModelSample, ...]]:
        """The question with all that the model wanted to see, and its first answers. Raises ModelFailed."""
        while self._may_look(asked):
            request = replace(asked.question.request, may_call=True, samples=self._wanted)
            reply = await self._conversation.send(request)
            calls = list(chain.from_iterable(sample.calls for sample in reply.samples))
            if not calls:
                return asked, reply.samples
            asked = asked.with_results(await asked.toolbox.run(calls))
            self.tool_uses = tuple(asked.toolbox.uses)
        return asked, await self._samples(asked, self._wanted)

    def _may_look(self, asked: "ConsultationRound") -> bool:
        """Whether rounds, time and the limits leave room for another look and the answer after it."""
        if not self._tools:
            return False
        if asked.toolbox.is_spent:
            return False
        if asyncio.get_running_loop().time() > self._looks_until:
            return False
        return self._conversation.affords(replace(asked.question.request, samples=vote.AGREE), 2)

    async def _more(self, asked: "ConsultationRound", answers: Sequence[Checked], read: int) -> tuple[ModelSample, ...]:
        """More answers, as long as enough of them may still agree. Raises ModelFailed."""
        more = vote.answers_wanted(answers, read) if self._config.switches.vote else 0
        if not more:
            return ()
        return await self._samples(asked, more)

    async def _samples(self, asked: "ConsultationRound", count: int) -> tuple[ModelSample, ...]:
        """Up to so many answers, from one request: a server reads the question once. Raises ModelFailed."""
        return (await self._conversation.send(replace(asked.question.request, samples=count))).samples

    def _contradicts(self, answer: Checked) -> bool:
        """Whether the answer names a cause, and another than the rules, where they do not only guess."""
        rules = self._subject.diagnosis
        if rules.is_undecided:
            return False
        if not evidence.names_cause(answer.answer):
            return False
        return rules.type not in (FailureType.UNKNOWN, answer.answer.type)

    async def _second_look(self, asked: "ConsultationRound", answers: Sequence[Checked]) -> tuple[Checked, ...]:
        """All answers of the type that is chosen when the claims are shown side by side. Raises ModelFailed."""
        asked = await asyncio.to_thread(asked.with_claims, answers, self._subject.diagnosis)
        try:
            (sample,) = (await self._samples(asked, 1))[:1]
            result = await self._checked(asked, sample)
        except ModelFailed as failure:
            result = failure
        if not isinstance(result, Checked):
            raise ModelFailed(ModelFailure.NO_AGREEMENT, f"{vote.split(answers)}; and at a second look {result}")
        chosen, rules = result.answer.type, self._subject.diagnosis.type
        supporting = vote.of_type((*answers, result), chosen)
        if len(supporting) >= vote.AGREE:
            return supporting
        if chosen is rules:
            return supporting
        raise ModelFailed(ModelFailure.NO_AGREEMENT, vote.split((*answers, result)))

    async def _checked(self, asked: "ConsultationRound", sample: ModelSample) -> Checked | ModelFailed:
        check = evidence.check if self._config.switches.check else evidence.accept_unchecked
        try:
            return check(await self._conversation.read(asked.question, sample), asked.context)
        except ModelFailed as failure:
            return failure


@dataclass(frozen=True, slots=True)
class ConsultationRound:
    """A question, and what its answer is checked against. marker: stands around all that programs printed."""

    question: Question[Answer]
    context: CheckContext
    marker: str
    toolbox: Toolbox

    def with_results(self, results: ToolRound) -> "ConsultationRound":
        """The question with what the model looked at, which it may cite from now on."""
        request = self.question.request
        question = replace(self.question, request=replace(request, rounds=(*request.rounds, results)))
        return replace(self, question=question, context=replace(self.context, results=self.toolbox.cited))

    def with_claims(self, answers: Sequence[Checked], diagnosis: Diagnosis) -> "ConsultationRound":
        """The question with the claims of the answers and of the rules, and the request to choose."""
        pseudonyms, request = self.context.pseudonyms, self.question.request

        def hide(text: str) -> str:
            return delimited(pseudonyms.hide(text), self.marker)

        claims = question.claims(answers, diagnosis, self.context.lines, hide)
        follow_up = self.question.prompt.render_second_look(claims, self.marker)
        return replace(self, question=replace(self.question, request=replace(request, follow_up=follow_up)))


def prepare(
    subject: ConsultationInput, config: ConsultationConfig, log_tokens: int, tools: tuple[ToolSpec, ...] = ()
) -> ConsultationRound:
    """log_tokens: size of the view. tools: that the model is offered."""
    view, facts = subject.view(log_tokens), subject.facts
    nodes, ranks = question.nodes_of(subject.log, facts), question.ranks_of(subject.log, facts)
    pseudonyms = Pseudonymizer(config.redact, nodes, view.text)
    marker = f"LOG-{config.token()}"
    variables = question.variables(
        subject.diagnosis, facts, view, subject.background, subject.confirmed_failures, pseudonyms, marker
    )
    asked = build_question(config.prompt, variables, Answer, tools)
    all_nodes = any((facts.nodes, facts.job.nodes, facts.job.rank_nodes))
    context = CheckContext(view.lines, nodes, ranks, pseudonyms, asked.request.system, all_nodes)
    toolbox = Toolbox(Look(view.lines, subject.evidence, pseudonyms), marker)
    return ConsultationRound(asked, context, marker, toolbox)
