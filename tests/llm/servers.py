"""Real model servers on loopback, started for a test and ended by it."""

import os
import secrets
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from diagnoser.adapters.openai import OpenAIModel
from diagnoser.config import llm_factory
from diagnoser.config.settings import Settings
from diagnoser.failure_agent.consultation import prepare
from diagnoser.llm import answer
from tests.e2e.service import until
from tests.integration.consulting import subject

FOLDER = os.environ.get("LLM_FOLDER", "")
"""Where `make test-llm` puts the servers and their models; empty: these tests skip."""
KEY = secrets.token_hex(8)
NOISE = {"evidence_not_found", "no_agreement", "confidence_too_low", "answer_malformed"}
"""Reasons that answers of random weights may end with."""


@dataclass(frozen=True)
class Real:
    """A model server that runs. changes: settings of a service that asks it."""

    url: str
    name: str

    @property
    def changes(self) -> dict[str, object]:
        return {"llm_model": self.name, "llm_api_key": KEY, "llm_deadline_seconds": 120.0}

    def settings(self, **changes: object) -> Settings:
        return Settings(**{"llm_url": self.url, **self.changes, **changes})


@contextmanager
def running(
    command: Sequence[object], port: int, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Real]:
    """The server once it answers; the process that was started is ended, with its children."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(part) for part in command],
            env={**os.environ, **(environment or {})},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            until(lambda: _answers(process, port, log), "the model server answers", seconds=400)
            yield Real(f"http://127.0.0.1:{port}/v1", "tiny")
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def _answers(process: subprocess.Popen[bytes], port: int, log: Path) -> bool:
    assert process.poll() is None, log.read_text()[-3000:]
    try:
        headers = {"Authorization": f"Bearer {KEY}"}
        return httpx.get(f"http://127.0.0.1:{port}/v1/models", headers=headers, timeout=2).status_code == 200
    except httpx.TransportError:
        return False


async def said(model: OpenAIModel, settings: Settings, max_tokens: int, more: str = "") -> str:
    """What the model writes about a failure. more: text behind the question."""
    question = prepare(subject(), llm_factory.consultation_config(settings), 1000).question
    request = replace(question.request, user=question.request.user + more, max_tokens=max_tokens)
    return (await model.ask(request)).text


async def asked(model: OpenAIModel, settings: Settings, max_tokens: int) -> answer.Answer:
    return answer.parse(await said(model, settings, max_tokens), answer.Answer)
