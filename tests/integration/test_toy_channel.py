"""A channel for alerts is a folder and a line of the registry: the service sends to that of docs/extending.md."""

import asyncio
import importlib.util
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from diagnoser import app, channels
from diagnoser.adapters.sql.store import open_store
from diagnoser.channels.channel import Channel
from diagnoser.config import alerting
from diagnoser.model import MessageKind, OutboxMessage
from diagnoser.model.alerts import Alert, AlertKind, encode
from diagnoser.model.errors import BadInput
from tests.how_tos import module
from tests.receiver import Receiver, running
from tests.rule_files import ANALYZER

NTFY: Channel = module("An alert channel").CHANNEL


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line of the registry."""
    monkeypatch.setattr(channels, "CHANNELS", (*channels.CHANNELS, NTFY))


def load(**variables: str) -> Any:
    """The settings of a process that starts with this registry."""
    spec = importlib.util.find_spec("diagnoser.config.settings")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load(variables)


async def test_an_alert_reaches_the_toy(tmp_path: Path) -> None:
    """Its setting is read from the environment, its receiver stands in the table, and the outbox sends to it."""
    database = f"sqlite:///{tmp_path / 'toy.db'}"
    receiver = Receiver()
    settings = load(DIAGNOSER_NTFY_URL=receiver.url, DIAGNOSER_DATABASE_URL=database)
    assert alerting.load_routing(settings).receivers == ("ntfy",)
    alert = Alert(AlertKind.FAILURE, "incident-1", "gpu_lost", "llm-7b", 1)
    with running(receiver), patch.object(app, "load_analyzer", lambda _: ANALYZER):
        async with app.running(settings, asyncio.Event()):
            store = await open_store(database)
            await store.outbox.add(OutboxMessage("k", MessageKind.ALERT, "ntfy:corner", encode(alert), 0.0, 1e12))
            async with asyncio.timeout(60):
                while not receiver.requests:  # noqa: ASYNC110  # a thread fills it
                    await asyncio.sleep(0.05)
            await store.close()
    ((_, body),) = receiver.requests
    assert body == b"gpu_lost"


def test_two_receivers_of_one_name_are_refused() -> None:
    """Whichever channels they are of."""
    settings = load(DIAGNOSER_NTFY_URL="http://ntfy.test", DIAGNOSER_APPRISE_URLS="ntfy=json://localhost")
    with pytest.raises(BadInput, match="a receiver of apprise cannot be called 'ntfy'"):
        alerting.receiver_names(settings)
