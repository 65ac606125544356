"""What the adapter hears from a server besides answers."""

import gzip
from collections.abc import Awaitable, Callable

import pytest

from diagnoser.adapters.embeddings import OpenAIEmbedder
from diagnoser.adapters.openai import OpenAIModel
from diagnoser.adapters.openai_transport import REPLY_BYTES
from diagnoser.llm.redact import redact
from diagnoser.model.errors import ModelFailed
from diagnoser.ports import ModelRequest
from tests.integration.model_server import Reply, model_server, refusal


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


async def chat(url: str) -> object:
    model = OpenAIModel(url, "scripted", "", timeout=60.0)
    try:
        return await model.ask(ModelRequest("be brief", "why?", {}, 10, 0.0))
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
    with model_server(lambda _: Reply(raw=b"{}")) as proxy, model_server(lambda _: refusal("no")) as server:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url.removesuffix("/v1"))
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(ModelFailed):
            await ask(server.url)
        assert proxy.asked == []
        assert len(server.asked) == 1
