"""What the adapter hears from a server besides answers."""

import pytest

from diagnoser.adapters.openai import OpenAIModel
from diagnoser.errors import ModelFailed
from tests.integration.model_server import Reply, model_server, refusal


async def heard(name: str, models: Reply | None = None) -> str:
    with model_server(lambda _: Reply(), models=models) as server:
        model = OpenAIModel(server.url, name, "", timeout=5.0)
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
            model = OpenAIModel(server.url, "scripted", "", timeout=5.0)
            assert await model.context() is None
            await model.close()
