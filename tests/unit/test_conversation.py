"""One structured conversation with a model that answers from a script."""

import asyncio
import json

import pytest
from pydantic import BaseModel

from diagnoser.failure_agent.conversation import Conversation, Question, build_question, request_tokens
from diagnoser.llm import prompt
from diagnoser.model.errors import ModelFailed, ModelFailure
from diagnoser.ports import ModelAnswer, ModelRequest, ModelSample

META = """
name: counter
version: 1
released: null
purpose: a test
variables: [what]
max_tokens: 100
temperature: 0.5
"""
PROMPT = prompt.load(
    "counter/v1",
    {"meta.yaml": META, "system.j2": "You count.", "user.j2": "How many {{ what }}?", "repair.j2": "No: {{ fault }}."},
)


class Count(BaseModel):
    count: int


class ScriptedModel:
    """Says one reply a request, the last one for ever; a failure is raised."""

    name = "scripted"

    def __init__(self, *replies: str | ModelFailed, tokens: int = 10) -> None:
        self.replies = replies
        self.tokens = tokens
        self.requests: list[ModelRequest] = []

    async def ask(self, request: ModelRequest) -> ModelAnswer:
        self.requests.append(request)
        reply = self.replies[min(len(self.requests), len(self.replies)) - 1]
        await asyncio.sleep(0)
        if isinstance(reply, ModelFailed):
            raise reply
        return ModelAnswer((ModelSample(reply),), "scripted-7b", self.tokens, self.tokens)

    async def context(self) -> int | None:
        return None


def said(count: int) -> str:
    return json.dumps({"count": count})


def question() -> Question[Count]:
    return build_question(PROMPT, {"what": "lines"}, Count)


def conversation(model: ScriptedModel, calls: int = 5, tokens: int = 0) -> Conversation:
    return Conversation(model, 30.0, calls, tokens)


def failed(reason: ModelFailure, retry_after: float | None = None) -> ModelFailed:
    return ModelFailed(reason, "scripted", retry_after)


def too_many(answer: Count) -> str:
    return "too many" if answer.count > 9 else ""


async def refused(talk: Conversation) -> ModelFailure:
    with pytest.raises(ModelFailed) as raised:
        await talk.ask(question(), too_many)
    return raised.value.reason


async def test_a_usable_answer_is_parsed_and_counted() -> None:
    """One request with the schema and the prompt's sampling; calls, tokens and the model's name are kept."""
    model = ScriptedModel(said(3))
    talk = conversation(model)
    assert (await talk.ask(question())).count == 3
    (request,) = model.requests
    assert (request.user, request.max_tokens, request.temperature) == ("How many lines?", 100, 0.5)
    assert request.schema["required"] == ["count"]
    author = talk.author(PROMPT, PROMPT)
    assert (author.name, author.model, author.prompt) == ("llm:scripted-7b", "scripted-7b", "counter/v1 counter/v1")
    assert (author.calls, author.tokens_in, author.tokens_out, author.temperature) == (1, 10, 10, 0.5)


@pytest.mark.parametrize("first", ["many", "{}", said(99)])
async def test_an_unusable_answer_is_repaired_once(first: str) -> None:
    """The model reads its own answer and what is wrong with it, whether it cannot be parsed or fails the check."""
    model = ScriptedModel(first, said(3))
    assert (await conversation(model).ask(question(), too_many)).count == 3
    assert model.requests[0].repair is None
    assert model.requests[1].repair is not None
    answer, complaint = model.requests[1].repair
    assert answer == first
    assert complaint.startswith("No: answer_malformed: ")


async def test_a_long_answer_is_repaired_from_its_beginning() -> None:
    """What the model rambled on about is not paid for twice."""
    model = ScriptedModel("many " * 10_000, said(3))
    await conversation(model).ask(question())
    assert model.requests[1].repair is not None
    assert len(model.requests[1].repair[0]) == 2_000


@pytest.mark.parametrize("second", ["many", said(99)])
async def test_a_second_unusable_answer_is_a_failure(second: str) -> None:
    """There is no third try, and the repaired answer is checked like the first."""
    model = ScriptedModel("many", second, said(3))
    assert await refused(conversation(model)) is ModelFailure.MALFORMED
    assert len(model.requests) == 2


async def test_silence_is_not_repaired() -> None:
    """An empty answer gives the model nothing to correct."""
    model = ScriptedModel("")
    assert await refused(conversation(model)) is ModelFailure.MALFORMED
    assert len(model.requests) == 1


async def test_a_repair_that_passes_a_limit_is_not_sent() -> None:
    """What was wrong with the answer is the failure, not the limit."""
    model = ScriptedModel("many")
    assert await refused(conversation(model, calls=1)) is ModelFailure.MALFORMED
    assert len(model.requests) == 1


async def test_what_another_try_can_help_is_asked_again() -> None:
    """A server that names a short wait; up to the limit of calls."""
    failure = failed(ModelFailure.RATE_LIMITED, retry_after=0.0)
    model = ScriptedModel(failure, failure, said(3))
    talk = conversation(model)
    assert (await talk.ask(question())).count == 3
    assert talk.usage.calls == 3
    endless = ScriptedModel(failure)
    assert await refused(conversation(endless, calls=4)) is failure.reason
    assert len(endless.requests) == 4


@pytest.mark.parametrize(
    "failure",
    [
        failed(ModelFailure.UNAVAILABLE),
        failed(ModelFailure.RATE_LIMITED),
        failed(ModelFailure.RATE_LIMITED, retry_after=600.0),
        failed(ModelFailure.CONTEXT_TOO_SMALL),
        failed(ModelFailure.FORMAT_REFUSED),
    ],
)
async def test_what_another_try_cannot_help_ends_the_question(failure: ModelFailed) -> None:
    """Also a wait that is longer than a conversation."""
    model = ScriptedModel(failure)
    talk = conversation(model)
    assert await refused(talk) is failure.reason
    assert talk.usage.calls == len(model.requests) == 1


@pytest.mark.parametrize("reason", [ModelFailure.BREAKER_OPEN, ModelFailure.BUDGET_SPENT])
async def test_a_request_that_the_guard_refuses_is_no_call(reason: ModelFailure) -> None:
    """It never reached the server."""
    talk = conversation(ScriptedModel(failed(reason)))
    assert await refused(talk) is reason
    assert (talk.usage.calls, talk.usage.tokens_pending) == (0, 0)


async def test_questions_at_the_same_time_share_the_limits() -> None:
    """Tokens of requests under way count: of two that fit alone the second is refused."""
    size = request_tokens(question().request)
    talk = conversation(ScriptedModel(said(3)), tokens=2 * size - 1)
    first, second = await asyncio.gather(talk.ask(question()), talk.ask(question()), return_exceptions=True)
    assert isinstance(first, Count)
    assert isinstance(second, ModelFailed) and second.reason is ModelFailure.BUDGET_SPENT
    assert talk.usage.calls == 1


async def test_tokens_that_the_server_does_not_count_are_estimated() -> None:
    """Rather too many than too few."""
    talk = conversation(ScriptedModel(said(3), tokens=0))
    await talk.ask(question())
    assert talk.usage.tokens_in == request_tokens(question().request) - 100
    assert talk.usage.tokens_out >= 1


async def test_what_passes_the_deadline_is_a_timeout() -> None:
    """Of the model and of nothing else: an answer that never comes."""
    talk = Conversation(ScriptedModel(said(3)), 0.01, 5)
    with pytest.raises(ModelFailed) as raised:
        async with talk.deadline():
            await asyncio.Event().wait()
    assert raised.value.reason is ModelFailure.TIMEOUT
