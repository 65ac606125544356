"""The owner of a job that holds GPUs and does nothing is told once."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.adapters.wake_signals import LocalWakeSignal
from diagnoser.config.alerting import load_table
from diagnoser.config.settings import Settings
from diagnoser.model import AttemptKey, Event, EventKind, Job, LineBlock, Provenance, Stream
from diagnoser.model.alerts import AlertKind, decode
from diagnoser.notifications.routing import AlertRouting
from diagnoser.worker.idle_gpus import alert_idle_gpus
from tests.databases import sqlite_store
from tests.serving import NOW, plan_commands, store_log

HOUR = 3600.0


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = await sqlite_store(tmp_path / "test.db")
    yield opened
    await opened.close()


async def told(store: SqlStore, now: float) -> list[str]:
    planner = plan_commands(alerts=AlertRouting(load_table(Settings()), ("slack",))).planner
    for _ in range(2):
        await alert_idle_gpus(store, planner, lambda: now, LocalWakeSignal())
    alerts = [decode(entry.message.body) for entry in await store.outbox.messages()]
    assert all((alert.kind, alert.type, alert.owner) == (AlertKind.METRIC, "idle", "ida") for alert in alerts)
    return [alert.title for alert in alerts]


async def started(store: SqlStore, *, registered: bool = True, **labels: str) -> None:
    await store.jobs.register(Job("j", labels=labels, registered=registered, tenant="ida", created=NOW), 1)
    await store.jobs.add_event(AttemptKey("j"), Event(EventKind.STARTED, NOW, provenance=Provenance.SCHEDULER))


async def test_a_job_that_prints_nothing_is_told_after_an_hour_once(store: SqlStore) -> None:
    """By whichever replica; a job that was told about long ago is no news to one that is started."""
    await started(store, gpus="8")
    assert await told(store, NOW + HOUR - 1) == []
    titles = await told(store, NOW + HOUR + 60)
    assert len(titles) == 1
    assert "holds 8 GPUs, and has made no step and printed nothing for 1 h 1 min, since it began" in titles[0]
    assert await told(store, NOW + 2 * HOUR - 1) == titles


async def test_the_hour_begins_with_the_last_line(store: SqlStore) -> None:
    """A job that prints is not idle."""
    await store.jobs.register(Job("j", labels={"gpus": "8"}, registered=True, tenant="ida", created=NOW - HOUR), 1)
    await store.jobs.add_event(AttemptKey("j"), Event(EventKind.STARTED, NOW - HOUR, provenance=Provenance.SCHEDULER))
    await store_log(store, AttemptKey("j"), LineBlock(Stream(), b"loading\n", 1, received=NOW))
    assert await told(store, NOW + HOUR - 60) == []
    [title] = await told(store, NOW + HOUR + 60)
    assert "since its last line" in title


@pytest.mark.parametrize(
    "held",
    [
        {},
        {"gpus": "0"},
        {"gpus": "8", "registered": False},
        {"gpus": "8", "contract": '{"first_step_within": "3h"}'},
    ],
)
async def test_nobody_is_told_of_what_holds_nothing_or_may_be_silent(store: SqlStore, held: dict[str, str]) -> None:
    """Jobs without GPUs, those that no scheduler tells of, and those that asked for more time."""
    await started(store, **held)  # type: ignore[arg-type]
    assert await told(store, NOW + HOUR + 60) == []
