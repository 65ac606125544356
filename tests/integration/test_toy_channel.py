"""A channel for alerts is a file and a line of the registry: a toy one is told of alerts by the whole service."""

import asyncio
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pydantic import BaseModel

from diagnoser import app, channels
from diagnoser.adapters.sql.store import open_store
from diagnoser.channels.channel import Channel, OpenReceiver, Transport
from diagnoser.config import alerting
from diagnoser.model import MessageKind, OutboxMessage
from diagnoser.model.alerts import Alert, AlertKind, AlertThread, encode
from diagnoser.model.errors import BadInput
from diagnoser.ports import AlertChannel
from tests.rule_files import ANALYZER

TOLD = asyncio.Queue[str]()


class Toy(AlertChannel):
    threaded = False
    resolves = False

    def __init__(self, word: str) -> None:
        self.word = word

    async def post(self, alert: Alert, thread: AlertThread | None, place: str) -> str:
        await TOLD.put(f"{self.word} {alert.title} {place}")
        return ""


class ToySettings(BaseModel):
    toy_word: str = ""


def receivers(settings: ToySettings) -> Mapping[str, OpenReceiver]:
    def open_toy(_transport: Transport) -> AlertChannel:
        return Toy(settings.toy_word)

    return {"toy": open_toy} if settings.toy_word else {}


TOY = Channel(name="toy", settings=ToySettings, receivers=receivers)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line of the registry."""
    monkeypatch.setattr(channels, "CHANNELS", (*channels.CHANNELS, TOY))


def load(**variables: str) -> Any:
    """The settings of a process that starts with this registry."""
    spec = importlib.util.find_spec("diagnoser.config.settings")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load(variables)


async def test_an_alert_reaches_the_toy(tmp_path: Path) -> None:
    """Its setting is read from the environment, its receiver stands in the table, and the outbox tells it."""
    url = f"sqlite:///{tmp_path / 'toy.db'}"
    settings = load(DIAGNOSER_TOY_WORD="hello", DIAGNOSER_DATABASE_URL=url)
    assert alerting.load_routing(settings).receivers == ("toy",)
    alert = Alert(AlertKind.FAILURE, "incident-1", "gpu_lost", "llm-7b", 1)
    with patch.object(app, "load_analyzer", lambda _: ANALYZER):
        async with app.running(settings, asyncio.Event()):
            store = await open_store(url)
            await store.outbox.add(OutboxMessage("k", MessageKind.ALERT, "toy:corner", encode(alert), 0.0, 1e12))
            assert await asyncio.wait_for(TOLD.get(), 60) == "hello gpu_lost corner"
            await store.close()


def test_two_receivers_of_one_name_are_refused() -> None:
    """Whichever channels they are of."""
    settings = load(DIAGNOSER_TOY_WORD="hello", DIAGNOSER_APPRISE_URLS="toy=json://localhost")
    with pytest.raises(BadInput, match="a receiver of apprise cannot be called 'toy'"):
        alerting.receiver_names(settings)
