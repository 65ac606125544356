"""One consultation of the model about a failure: few calls, few tokens, checked answers, and two that agree.

Where the answers differ, or contradict what the rules say, a second look decides: the same question again, with the
claims side by side.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat

from diagnoser.failure_agent.conversation import (
    Conversation,
    ConversationLimits,
    Question,
    UsageCounter,
    build_question,
    request_tokens,
)
from diagnoser.llm import evidence, question, vote
from diagnoser.llm.answer import Answer
from diagnoser.llm.evidence import CheckContext, Checked
from diagnoser.llm.prompt import Prompt
from diagnoser.llm.question import Background
from diagnoser.llm.view import LogView, Pseudonymizer, delimited
from diagnoser.model import Diagnosis, Evidence, Facts
from diagnoser.model.errors import ModelFailed, ModelFailure
from diagnoser.model.taxonomy import FailureType
from diagnoser.ports import LanguageModel
from diagnoser.redaction.redact import Redactor

CALLS_MAX = 5
"""Requests of one consultation, repairs and retries included."""
TOKENS_MAX = 64_000
"""Tokens of one consultation, read and written."""
_CLAIMS_TOKENS = 400
"""Room that a second look needs in the server's context for its claims."""
LOG_TOKENS_MIN = 300
"""Fewest tokens of log that are worth asking about."""


@dataclass(frozen=True, slots=True)
class ConsultationInput:
    """What to ask about. view: size in tokens -> what the model may read. confirmed_failures: similar ones, as text.

    background: what is known beside the lines of the view.
    """

    diagnosis: Diagnosis
    log: Evidence
    facts: Facts
    view: Callable[[int], LogView]
    confirmed_failures: tuple[str, ...] = ()
    background: Background = field(default_factory=Background)


@dataclass(frozen=True, slots=True)
class AblationSwitches:
    """Parts that can be left out, to measure what they are worth."""

    vote: bool = True
    check: bool = True


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
        self._conversation = Conversation(model, ConversationLimits(config.deadline_seconds, CALLS_MAX, TOKENS_MAX))

    @property
    def usage(self) -> UsageCounter:
        return self._conversation.usage

    async def run(self) -> tuple[Checked, ...]:
        """The answers that agree. Raises ModelFailed."""
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
        if context_length is None:
            return self._config.log_tokens
        without_log = prepare(replace(self._subject, view=lambda _: LogView("", {})), self._config, 0).question
        log_tokens = min(self._config.log_tokens, context_length - request_tokens(without_log.request) - _CLAIMS_TOKENS)
        if log_tokens < LOG_TOKENS_MIN:
            raise ModelFailed(ModelFailure.CONTEXT_TOO_SMALL, f"the server takes {context_length} tokens")
        return log_tokens

    async def _agree(self, log_tokens: int) -> tuple[Checked, ...]:
        """Ask until enough answers agree. Raises ModelFailed."""
        asked = await asyncio.to_thread(prepare, self._subject, self._config, log_tokens)
        if not self._config.switches.vote:
            answer = await self._sample(asked)
            if isinstance(answer, ModelFailed):
                raise answer
            return (answer,)
        answers: list[Checked] = []
        failures: list[ModelFailed] = []
        samples = 0
        while more := vote.answers_wanted(answers, samples):
            for result in await asyncio.gather(*map(self._sample, repeat(asked, more))):
                if isinstance(result, Checked):
                    answers.append(result)
                else:
                    failures.append(result)
            samples += more
        if len(answers) < vote.AGREE:
            raise failures[0]
        agreed = vote.agreed(answers)
        if agreed and not self._contradicts(agreed[0]):
            return agreed
        return await self._second_look(asked, answers)

    def _contradicts(self, answer: Checked) -> bool:
        """Whether the answer names a cause, and another than the rules."""
        rules = self._subject.diagnosis
        if not evidence.names_cause(answer.answer):
            return False
        return rules.type not in (FailureType.UNKNOWN, answer.answer.type)

    async def _second_look(self, asked: "ConsultationRound", answers: Sequence[Checked]) -> tuple[Checked, ...]:
        """All answers of the type that is chosen when the claims are shown side by side. Raises ModelFailed."""
        result = await self._sample(await asyncio.to_thread(asked.with_claims, answers, self._subject.diagnosis))
        if not isinstance(result, Checked):
            raise ModelFailed(ModelFailure.NO_AGREEMENT, f"{vote.split(answers)}; and at a second look {result}")
        chosen, rules = result.answer.type, self._subject.diagnosis.type
        supporting = vote.of_type((*answers, result), chosen)
        if len(supporting) >= vote.AGREE:
            return supporting
        if chosen is rules:
            return supporting
        raise ModelFailed(ModelFailure.NO_AGREEMENT, vote.split((*answers, result)))

    async def _sample(self, asked: "ConsultationRound") -> Checked | ModelFailed:
        check = evidence.check if self._config.switches.check else evidence.accept_unchecked
        try:
            return check(await self._conversation.ask(asked.question), asked.context)
        except ModelFailed as failure:
            return failure


@dataclass(frozen=True, slots=True)
class ConsultationRound:
    """A question, and what its answer is checked against. marker: stands around all that programs printed."""

    question: Question[Answer]
    context: CheckContext
    marker: str

    def with_claims(self, answers: Sequence[Checked], diagnosis: Diagnosis) -> "ConsultationRound":
        """The question with the claims of the answers and of the rules, and the request to choose."""
        pseudonyms, request = self.context.pseudonyms, self.question.request

        def hide(text: str) -> str:
            return delimited(pseudonyms.hide(text), self.marker)

        claims = question.claims(answers, diagnosis, self.context.lines, hide)
        user = f"{request.user}\n\n{self.question.prompt.render_second_look(claims, self.marker)}"
        return replace(self, question=replace(self.question, request=replace(request, user=user)))


def prepare(subject: ConsultationInput, config: ConsultationConfig, log_tokens: int) -> ConsultationRound:
    """log_tokens: size of the view."""
    view, facts = subject.view(log_tokens), subject.facts
    nodes, ranks = question.nodes_of(subject.log, facts), question.ranks_of(subject.log, facts)
    pseudonyms = Pseudonymizer(config.redact, nodes, view.text)
    marker = f"LOG-{config.token()}"
    variables = question.variables(
        subject.diagnosis, facts, view, subject.background, subject.confirmed_failures, pseudonyms, marker
    )
    asked = build_question(config.prompt, variables, Answer)
    all_nodes = bool(facts.nodes or facts.job.nodes or facts.job.rank_nodes)
    context = CheckContext(view.lines, nodes, ranks, pseudonyms, asked.request.system, all_nodes)
    return ConsultationRound(asked, context, marker)
