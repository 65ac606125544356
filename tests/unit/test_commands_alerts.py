"""`diagnoser alerts`: who would be told of a diagnosis and why, and whether the receivers work."""

import asyncio
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner, Result

from diagnoser.adapters.sql.store import open_store
from diagnoser.cli import cli
from diagnoser.model.errors import NotFound
from tests.receiver import Receiver, running
from tests.serving import save, verdict


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    database = f"sqlite:///{tmp_path}/test.db"
    monkeypatch.setenv("DIAGNOSER_DATABASE_URL", database)
    monkeypatch.setenv("COLUMNS", "200")
    return database


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["alerts", *arguments])


def stored(url: str) -> str:
    """Id of a diagnosis of an ECC error."""

    async def write() -> str:
        store = await open_store(url)
        try:
            return (await save(store, "llm-7b", verdict())).id
        finally:
            await store.close()

    return asyncio.run(write())


def test_a_preview_says_who_is_told_and_why(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Receivers, the row that decides, those before it with their reasons, and the text."""
    monkeypatch.setenv("DIAGNOSER_APPRISE_URLS", "pager=json://127.0.0.1:1 mail=json://127.0.0.1:1")
    shown = orjson.loads(run("preview", stored(url), "--json").stdout)
    assert (shown["row"], shown["receivers"], shown["severity"]) == ("infrastructure", ["pager", "mail"], "critical")
    assert shown["rows"][0] == {"id": "decision_is_waiting", "why_not": "kind is failure, not decision"}
    assert "had an ECC memory error (llm-7b, attempt 1)" in shown["title"]


def test_without_receivers_nobody_is_told(url: str) -> None:
    """The preview says that none is configured instead of a row that applies in vain."""
    result = run("preview", stored(url))
    assert result.exit_code == 0, result.output
    assert "nobody: no receiver is configured" in result.stdout
    with pytest.raises(NotFound, match="no receiver is configured"):
        raise run("test").exception or AssertionError


def test_a_test_alert_reaches_each_receiver(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the command fails where one cannot be told, after the others were."""
    with running(receiver := Receiver()):
        here = f"json://127.0.0.1:{receiver.server_port}"
        monkeypatch.setenv("DIAGNOSER_APPRISE_URLS", f"away=json://127.0.0.1:1 hook={here}")
        result = run("test")
        assert result.exit_code == 1
        assert "hook: sent" in result.stdout
        assert len(receiver.requests) == 1
        assert run("test", "hook").exit_code == 0


def test_commands_speak_https_where_the_service_does(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link in a preview, and the address that lines are asked of, were http also with a certificate."""
    monkeypatch.setenv("DIAGNOSER_TLS_CERTIFICATE", "service.pem")
    monkeypatch.setenv("DIAGNOSER_TLS_KEY", "service.key")
    assert "https://127.0.0.1:8321/diagnoses/" in run("preview", stored(url)).stdout
    refused = CliRunner().invoke(cli, ["logs", "llm-7b"]).exception
    assert str(refused).startswith("https://127.0.0.1:8321/api/v1/jobs/llm-7b: no answer")
