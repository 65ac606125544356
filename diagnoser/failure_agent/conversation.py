"""One structured conversation with a language model: ask, parse, check, repair once, and count what it costs.

It stands above the pure `llm/` because it waits: for the model's answer, for a busy server, for the deadline.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic

from diagnoser.llm import answer
from diagnoser.llm.answer import AnswerT
from diagnoser.llm.prompt import Prompt, tokens_of
from diagnoser.model import Author
from diagnoser.model.errors import ModelFailed, ModelFailure
from diagnoser.ports import LanguageModel, ModelAnswer, ModelRequest, ModelSample, ToolSpec

RETRY_AFTER_MAX_SECONDS = 5.0
"""Longest wait that a busy server may ask for within a conversation."""
_REPAIR_CHARS = 2000
# The guard refused these before they reached the server.
_NOT_SENT = frozenset({ModelFailure.BREAKER_OPEN, ModelFailure.BUDGET_SPENT})


@dataclass(frozen=True, slots=True)
class Question(Generic[AnswerT]):
    """A filled prompt and the type that its answer is parsed as. request: exactly what is sent first."""

    prompt: Prompt
    request: ModelRequest
    answer_type: type[AnswerT]


def build_question(
    prompt: Prompt, variables: Mapping[str, Any], answer_type: type[AnswerT], tools: tuple[ToolSpec, ...] = ()
) -> Question[AnswerT]:
    """An undefined variable raises jinja2.UndefinedError."""
    system, user = prompt.render(variables)
    schema, meta = answer_type.model_json_schema(), prompt.meta
    request = ModelRequest(system, user, schema, meta.max_tokens, meta.temperature, tools=tools)
    return Question(prompt, request, answer_type)


@dataclass(slots=True)
class UsageCounter:
    """What a conversation has used. model: as the server named it last. tokens_pending: of requests under way."""

    model: str
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_pending: int = 0


class Conversation:
    """All questions about one matter. Questions may run in parallel; they share the limits.

    seconds: for everything within ``deadline``. calls: requests sent, repairs and retries included. tokens: read and
    written together, 0: no limit.
    """

    def __init__(self, model: LanguageModel, seconds: float, calls: int, tokens: int = 0) -> None:
        self.usage = UsageCounter(model.name)
        self._model = model
        self._seconds, self._calls, self._tokens = seconds, calls, tokens

    @asynccontextmanager
    async def deadline(self) -> AsyncIterator[None]:
        """Ends what runs inside it after that time. Raises ModelFailed(model_timeout)."""
        try:
            async with asyncio.timeout(self._seconds):
                yield
        except TimeoutError:
            raise ModelFailed(ModelFailure.TIMEOUT, f"no usable answer within {self._seconds:g} s") from None

    async def ask(self, question: Question[AnswerT], check: Callable[[AnswerT], str] | None = None) -> AnswerT:
        """A usable answer; for an unusable one the model gets one chance to repair it. Raises ModelFailed.

        check: why a parsed answer cannot be used, "" where it can. Runs in a thread.
        """
        reply = await self.send(question.request)
        return await self.read(question, reply.samples[0], check)

    async def read(
        self, question: Question[AnswerT], sample: ModelSample, check: Callable[[AnswerT], str] | None = None
    ) -> AnswerT:
        """The answer of a sample, repaired once where it is unusable: see ``ask``. Raises ModelFailed."""
        request, text = replace(question.request, may_call=False, samples=1), sample.text
        try:
            return await _usable(text, question.answer_type, check)
        except ModelFailed as failure:
            complaint = question.prompt.render_repair(str(failure))
            if not text:
                raise
            if not complaint:
                raise
            if self._exceeded(request):
                raise
        repaired = await self.send(replace(request, repair=(text[:_REPAIR_CHARS], complaint)))
        return await _usable(repaired.text, question.answer_type, check)

    def affords(self, request: ModelRequest, times: int) -> bool:
        usage = self.usage
        if usage.calls + times > self._calls:
            return False
        return usage.tokens_in + usage.tokens_out + times * request_tokens(request) <= (self._tokens or math.inf)

    def author(self, *prompts: Prompt) -> Author:
        """The model as the author of what it was asked to write, at the cost so far."""
        usage = self.usage
        labels, hashes = " ".join(prompt.label for prompt in prompts), " ".join(prompt.hash for prompt in prompts)
        return Author(
            f"llm:{usage.model}",
            usage.model,
            labels,
            hashes,
            prompts[0].meta.temperature,
            usage.calls,
            usage.tokens_in,
            usage.tokens_out,
        )

    async def send(self, request: ModelRequest) -> ModelAnswer:
        """The reply; sends again where the server asks for a short wait. Raises ModelFailed."""
        last: ModelFailed | None = None
        while (exceeded := self._exceeded(request)) is None:
            try:
                return await self._counted(request)
            except ModelFailed as failure:
                if not await _worth_retrying(failure):
                    raise
                last = failure
        raise last or exceeded

    async def _counted(self, request: ModelRequest) -> ModelAnswer:
        usage, size = self.usage, request_tokens(request)
        usage.calls += 1
        usage.tokens_pending += size
        try:
            reply = await self._model.ask(request)
        except ModelFailed as failure:
            usage.calls -= failure.reason in _NOT_SENT
            raise
        finally:
            usage.tokens_pending -= size
        usage.model = reply.model
        usage.tokens_in += reply.tokens_in or size - request.samples * request.max_tokens
        usage.tokens_out += reply.tokens_out or tokens_written(reply)
        return reply

    def _exceeded(self, request: ModelRequest) -> ModelFailed | None:
        """The limit that one more request would exceed."""
        usage = self.usage
        if usage.calls >= self._calls:
            return ModelFailed(ModelFailure.NO_AGREEMENT, f"{self._calls} calls gave no usable answer")
        tokens = usage.tokens_in + usage.tokens_out + usage.tokens_pending + request_tokens(request)
        if 0 < self._tokens < tokens:
            return ModelFailed(ModelFailure.BUDGET_SPENT, f"{self._tokens} tokens gave no usable answer")
        return None


def request_tokens(request: ModelRequest) -> int:
    """About how many tokens a request may cost with its answer."""
    return question_tokens(request) + request.samples * request.max_tokens


def question_tokens(request: ModelRequest) -> int:
    """About how many tokens a model reads of a request."""
    tools = [f"{tool.name}{tool.purpose}{tool.parameters}" for tool in request.tools]
    return sum(map(tokens_of, filter(None, (*request.texts, *tools))))


def tokens_written(reply: ModelAnswer) -> int:
    """About how many tokens a model wrote."""
    return sum(tokens_of(sample.text) for sample in reply.samples)


async def _usable(text: str, answer_type: type[AnswerT], check: Callable[[AnswerT], str] | None) -> AnswerT:
    parsed = answer.parse(text, answer_type)
    if check is None:
        return parsed
    if reason := await asyncio.to_thread(check, parsed):
        raise ModelFailed(ModelFailure.MALFORMED, reason)
    return parsed


async def _worth_retrying(failure: ModelFailed) -> bool:
    """Whether the same request may get an answer now, after the wait that the server asked for."""
    if failure.reason is not ModelFailure.RATE_LIMITED:
        return False
    if failure.retry_after is None:
        return False
    if failure.retry_after > RETRY_AFTER_MAX_SECONDS:
        return False
    await asyncio.sleep(failure.retry_after)
    return True
