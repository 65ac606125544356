"""People are told what the service cannot see: once when it begins, once when it is over."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.adapters.wake_signals import LocalWakeSignal
from diagnoser.channels.alertmanager import sending as alertmanager
from diagnoser.config.alerting import load_table
from diagnoser.config.settings import Settings
from diagnoser.model.alerts import Alert, AlertKind, Severity, decode
from diagnoser.notifications.routing import AlertRouting
from diagnoser.observability.vitals import VitalsReader
from diagnoser.worker.blind_spots import alert_blind_spots
from tests.databases import sqlite_store
from tests.serving import NOW, plan_commands


class Site:
    """A watch over a store, at a time that the test says."""

    def __init__(self, store: SqlStore, receivers: tuple[str, ...] = ("slack",)) -> None:
        self.store, self.now = store, NOW
        planner = plan_commands(
            alerts=AlertRouting(load_table(Settings()), receivers), base_url="https://diagnoser.example"
        ).planner
        self.reader = VitalsReader(store.vitals.read, lambda: self.now)
        self.watch = store.vitals, self.reader, planner, lambda: self.now, LocalWakeSignal()

    async def after(self, seconds: float) -> list[Alert]:
        """All that was told until then."""
        self.now = NOW + seconds
        await alert_blind_spots(*self.watch)
        return [decode(stored.message.body) for stored in await self.store.outbox.messages()]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = await sqlite_store(tmp_path / "test.db")
    yield opened
    await opened.close()


async def test_a_silent_agent_is_told_once_and_its_return_once(store: SqlStore) -> None:
    """However often the watch looks, each change is one message; nothing is told while all is well."""
    site = Site(store)
    await store.vitals.record_agent("east", "slurm@head", NOW)
    assert await site.after(100) == []
    (told,) = await site.after(200)
    assert (told.kind, told.severity, told.cluster) == (AlertKind.BLIND_SPOT, Severity.CRITICAL, "east")
    assert "agent of cluster east (slurm@head)" in told.title
    assert told.link == "https://diagnoser.example/"
    assert len(await site.after(300)) == 1
    await store.vitals.record_agent("east", "slurm@head", NOW + 310)
    _, over = await site.after(320)
    assert (over.kind, over.incident) == (AlertKind.RECOVERED, told.incident)
    assert over.title.startswith("Over: ")
    await site.after(600)
    assert len(await store.outbox.messages()) == 3


async def test_a_restart_tells_nothing_again_and_still_tells_the_end(store: SqlStore) -> None:
    """What was told is stored: a new process goes on where the old one ended."""
    await store.vitals.record_agent("east", "slurm@head", NOW)
    await Site(store).after(200)
    assert len(await Site(store).after(260)) == 1
    await store.vitals.record_agent("east", "slurm@head", NOW + 290)
    assert len(await Site(store).after(300)) == 2


async def test_two_replicas_tell_it_once(store: SqlStore) -> None:
    """Whoever stores it first sends it."""
    await store.vitals.record_agent("east", "slurm@head", NOW)
    await Site(store).after(200)
    await Site(store).after(200)
    assert len(await store.outbox.messages()) == 1


async def test_without_receivers_it_is_stored_all_the_same(store: SqlStore) -> None:
    """The page and the metrics show it; nobody is there to be told."""
    await store.vitals.record_agent("east", "slurm@head", NOW)
    assert await Site(store, ()).after(200) == []
    assert [spot.subject for spot in await store.vitals.blind_spots()] == ["east"]


async def test_alertmanager_gets_an_alert_of_its_own_name(store: SqlStore) -> None:
    """A site routes it by name, kind and cluster; nothing in the labels changes while it lasts."""
    await store.vitals.record_agent("east", "slurm@head", NOW)
    (told,) = await Site(store, ("alertmanager",)).after(200)
    assert alertmanager.labels_of(told) == {
        "alertname": "DiagnoserBlindSpot",
        "service": "diagnoser",
        "incident": "agent_silent:east",
        "severity": "critical",
        "cluster": "east",
        "type": "agent_silent",
    }
