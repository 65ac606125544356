"""One consultation of the model about a failure: few calls, few tokens, checked answers, and two that agree."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

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
from diagnoser.llm.redact import Redactor
from diagnoser.llm.view import LogView, Pseudonymizer
from diagnoser.model import Diagnosis, Evidence, Facts
from diagnoser.model.errors import ModelFailed, ModelFailure
from diagnoser.ports import LanguageModel

CALLS_MAX = 5
"""Requests of one consultation, repairs and retries included."""
TOKENS_MAX = 40_000
"""Tokens of one consultation, read and written."""
LOG_TOKENS_MIN = 300
"""Fewest tokens of log that are worth asking about."""


@dataclass(frozen=True, slots=True)
class ConsultationInput:
    """What to ask about. view: size in tokens -> what the model may read. incidents: similar ones, as text."""

    diagnosis: Diagnosis
    log: Evidence
    facts: Facts
    view: Callable[[int], LogView]
    incidents: tuple[str, ...] = ()


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
                if failure.reason is not ModelFailure.CONTEXT_TOO_SMALL or log_tokens // 2 < LOG_TOKENS_MIN:
                    raise
            return await self._agree(log_tokens // 2)

    async def _log_tokens(self) -> int:
        """Tokens for the view: the configured size, or what fits the server's context beside prompt and answer."""
        context_length = await self._model.context()
        if context_length is None:
            return self._config.log_tokens
        without_log, _ = prepare(replace(self._subject, view=lambda _: LogView("", {})), self._config, 0)
        log_tokens = min(self._config.log_tokens, context_length - request_tokens(without_log.request))
        if log_tokens < LOG_TOKENS_MIN:
            raise ModelFailed(ModelFailure.CONTEXT_TOO_SMALL, f"the server takes {context_length} tokens")
        return log_tokens

    async def _agree(self, log_tokens: int) -> tuple[Checked, ...]:
        asked, context = await asyncio.to_thread(prepare, self._subject, self._config, log_tokens)
        with_vote = self._config.switches.vote
        answers: list[Checked] = []
        failures: list[ModelFailed] = []
        samples = 0
        while more := vote.answers_wanted(answers, samples) if with_vote else 1 - samples:
            for result in await asyncio.gather(*(self._sample(asked, context) for _ in range(more))):
                if isinstance(result, Checked):
                    answers.append(result)
                else:
                    failures.append(result)
            samples += more
        if agreed := vote.agreed(answers) if with_vote else tuple(answers):
            return agreed
        if len(answers) >= vote.AGREE:
            raise ModelFailed(ModelFailure.NO_AGREEMENT, vote.split(answers))
        raise failures[0]

    async def _sample(self, asked: Question[Answer], context: CheckContext) -> Checked | ModelFailed:
        check = evidence.check if self._config.switches.check else evidence.accept_unchecked
        try:
            return check(await self._conversation.ask(asked), context)
        except ModelFailed as failure:
            return failure


def prepare(
    subject: ConsultationInput, config: ConsultationConfig, log_tokens: int
) -> tuple[Question[Answer], CheckContext]:
    """The question, and what its answer is checked against. log_tokens: size of the view."""
    view = subject.view(log_tokens)
    nodes, ranks = question.nodes_of(subject.log, subject.facts), question.ranks_of(subject.log, subject.facts)
    pseudonyms = Pseudonymizer(config.redact, nodes, view.text)
    marker = f"LOG-{config.token()}"
    variables = question.variables(subject.diagnosis, subject.facts, view, subject.incidents, pseudonyms, marker)
    asked = build_question(config.prompt, variables, Answer)
    return asked, CheckContext(view.lines, nodes, ranks, pseudonyms, asked.request.system)
