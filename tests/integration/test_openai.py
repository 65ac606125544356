"""What the adapter hears from a server besides answers."""

import gzip
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from diagnoser.adapters.openai import OpenAIEmbedder, OpenAIModel
from diagnoser.adapters.openai_forms import QuestionForm
from diagnoser.adapters.openai_transport import REPLY_BYTES
from diagnoser.model.errors import ModelFailed
from diagnoser.ports import ModelAnswer, ModelRequest
from diagnoser.redaction.redact import redact
from tests.integration.model_server import Reply, Say, model_server, refusal


async def heard(name: str, models: Reply | None = None) -> str:
    with model_server(lambda _: Reply(), models=models) as server:
        model = OpenAIModel(server.url, name, "", timeout=60.0)
        try:
            return await model.ping()
        finally:
            await model.close()


async def test_a_server_that_answers_is_heard() -> None:
    """With the model in its list, or without any list."""
    assert await heard("scripted") == "scripted answers"
    assert "lists no models" in await heard("scripted", refusal("no such path", 404))


@pytest.mark.parametrize(
    ("name", "models", "reason"),
    [
        ("other", None, "model_not_found: the server offers no model called other"),
        ("scripted", refusal("wrong key", 401), "model_denied"),
        ("scripted", Reply(status=502, raw=b"<html>"), "model_unavailable"),
        ("scripted", Reply(raw=b"<html>"), "model_unavailable"),
        ("scripted", Reply(drop=True), "model_unavailable"),
    ],
)
async def test_what_is_wrong_with_a_server_is_told(name: str, models: Reply | None, reason: str) -> None:
    """The reason is the one that a diagnosis would carry."""
    with pytest.raises(ModelFailed, match=reason):
        await heard(name, models)


async def test_a_list_of_models_that_makes_no_sense_says_nothing_about_lengths() -> None:
    """The length of a question stays unknown, and asking goes on."""
    for models in (Reply(raw=b"{}"), Reply(raw=b"[]"), Reply(raw=b"<html>"), Reply(status=500, raw=b"")):
        with model_server(lambda _: Reply(), models=models) as server:
            model = OpenAIModel(server.url, "scripted", "", timeout=60.0)
            assert await model.context() is None
            await model.close()


SCHEMA = {"type": "object", "properties": {"why": {"type": "string", "maxLength": 9}}}
QUESTION = ModelRequest("be brief", "why?", SCHEMA, 10, 0.5)


async def chat(url: str) -> object:
    model = OpenAIModel(url, "scripted", "", timeout=60.0)
    try:
        return await model.ask(QUESTION)
    finally:
        await model.close()


async def embedding(url: str) -> object:
    embedder = OpenAIEmbedder(url, "scripted", "", timeout=60.0, redact=redact)
    try:
        return await embedder.embed(["a line"])
    finally:
        await embedder.close()


@pytest.mark.parametrize("ask", [chat, embedding])
@pytest.mark.parametrize("status", [200, 500])
async def test_a_reply_without_end_is_given_up(ask: Callable[[str], Awaitable[object]], status: int) -> None:
    """After the bound the connection is closed: the server gets rid of no more than that and what sockets hold."""
    flood = Reply(status=status, raw=b"x" * (1 << 16), endless=True)
    told = pytest.raises(ModelFailed, match="answer_malformed: the server's reply has more than 2 MB")
    with model_server(lambda _: flood) as server, told:
        await ask(server.url)
    assert REPLY_BYTES <= server.sent <= REPLY_BYTES + (24 << 20)


@pytest.mark.parametrize("ask", [chat, embedding])
async def test_a_packed_reply_is_not_unpacked(ask: Callable[[str], Awaitable[object]]) -> None:
    """A few kilobytes could become gigabytes; the client asks for plain replies."""
    bomb = Reply(raw=gzip.compress(b" " * (64 << 20)), headers={"Content-Encoding": "gzip"})
    with model_server(lambda _: bomb) as server, pytest.raises(ModelFailed, match="answer_malformed"):
        await ask(server.url)


@pytest.mark.parametrize("ask", [chat, embedding])
@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(ask: Callable[[str], Awaitable[object]], status: int) -> None:
    """The log and the key go to no address but the configured one, whatever a server says."""
    with model_server(lambda _: Reply()) as elsewhere:
        away = Reply(status=status, raw=b"{}", headers={"Location": f"{elsewhere.url}/chat/completions"})
        with model_server(lambda _: away) as server, pytest.raises(ModelFailed, match="model_unavailable"):
            await ask(server.url)
        assert len(server.asked) == 1
        assert elsewhere.asked == []


@pytest.mark.parametrize("ask", [chat, embedding])
async def test_proxies_of_the_environment_see_nothing(
    ask: Callable[[str], Awaitable[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable that something else on the machine needs does not send logs through a third party."""
    with model_server(lambda _: Reply(raw=b"{}")) as proxy, model_server(lambda _: refusal("no", 401)) as server:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url.removesuffix("/v1"))
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(ModelFailed):
            await ask(server.url)
        assert proxy.asked == []
        assert len(server.asked) == 1


def strict(*refused: str, message: str = "", status: int = 400) -> Say:
    """A server that refuses questions with one of these fields, or with more than its words for them allow.

    message: what it says; "" for a body that explains nothing.
    """

    def say(asked: dict[str, Any]) -> Reply:
        if any(name in asked or _kind(asked) == name for name in refused):
            return refusal(message or "bad request", status)
        return Reply("fine")

    return say


def _kind(asked: dict[str, Any]) -> str:
    return str(asked.get("response_format", {}).get("type"))


REASONING = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
WARM = "Unsupported value: 'temperature' does not support 0.5 with this model. Only the default (1) value is supported."
NO_SYSTEM = "Jinja Exception: System role not supported"


@pytest.mark.parametrize(
    ("say", "form", "requests"),
    [
        (strict("max_tokens", message=REASONING), QuestionForm(limit=1), 2),
        (strict("temperature", message=WARM), QuestionForm(temperature=False), 2),
        (strict("json_schema", message="response_format json_schema is not available"), QuestionForm(format=2), 3),
        (strict("response_format", message="unknown field: response_format", status=422), QuestionForm(format=4), 5),
        (strict("response_format", message="grammar: cannot parse", status=500), QuestionForm(format=4), 5),
        (strict("response_format"), QuestionForm(format=4), 5),
        (strict("temperature"), QuestionForm(format=4, temperature=False), 6),
        (strict("max_tokens", "max_completion_tokens"), QuestionForm(4, 2, temperature=False), 8),
    ],
)
async def test_a_refused_form_of_the_question_is_followed_by_a_weaker_one(
    say: Say, form: QuestionForm, requests: int
) -> None:
    """What the message names is left out first; where it names nothing, one part after another. What the server took
    is remembered: the next question goes out right at once, and for the caller each is one question."""
    with model_server(say) as server:
        model = OpenAIModel(server.url, "scripted", "", timeout=60.0)
        try:
            answers = [(await model.ask(QUESTION)).text for _ in range(2)]
        finally:
            await model.close()
    assert answers == ["fine", "fine"]
    assert model.form == form
    assert len(server.asked) == requests + 1


async def test_instructions_go_into_the_question_where_no_system_message_is_known() -> None:
    """Nothing of them is lost."""

    def say(asked: dict[str, Any]) -> Reply:
        return refusal(NO_SYSTEM) if asked["messages"][0]["role"] == "system" else Reply("fine")

    with model_server(say) as server:
        assert await chat(server.url)
    assert server.asked[-1]["messages"] == [{"role": "user", "content": "be brief\n\nwhy?"}]
    assert len(server.asked) == 2


async def test_a_model_that_spends_its_answer_on_thinking_gets_more_room() -> None:
    """Once, and that is remembered."""
    cut = {"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": None}}
    empty = Reply(raw=orjson.dumps({"id": "c", "object": "chat.completion", "model": "m", "choices": [cut]}))
    with model_server(lambda asked: Reply("fine") if asked["max_tokens"] > 10 else empty) as server:
        assert await chat(server.url)
    assert [asked["max_tokens"] for asked in server.asked] == [10, 40]


async def test_a_server_that_refuses_every_form_is_not_called_unavailable() -> None:
    """It answers: the reason is the question's form, and each form was tried once."""
    with model_server(lambda _: refusal("no")) as server:
        with pytest.raises(ModelFailed, match="answer_format_refused"):
            await chat(server.url)
        assert len(server.asked) == 9
    assert len({orjson.dumps(asked) for asked in server.asked}) == 9


async def test_an_answer_in_parts_is_joined() -> None:
    """Some gateways send a list of texts."""
    parts = [{"type": "text", "text": "fi"}, {"type": "image_url"}, {"type": "text", "text": "ne"}]
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": parts}}
    body = orjson.dumps({"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]})
    with model_server(lambda _: Reply(raw=body)) as server:
        answer = await chat(server.url)
    assert isinstance(answer, ModelAnswer)
    assert answer.text == "fine"
