"""Running attempts are watched: one whose loss diverged is handed over once, and people are told of one that slows."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from diagnoser.adapters.memory import LocalWakeSignal
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.config.alerting import load_table
from diagnoser.config.settings import Settings
from diagnoser.diagnosis.evidence_collection import EvidenceCollection
from diagnoser.model import AttemptKey, LineBlock, Stream
from diagnoser.model.alerts import AlertKind, decode
from diagnoser.notifications.routing import AlertRouting
from diagnoser.worker.metric_watch import MetricWatch
from diagnoser.worker.straggler_looks import StragglerLooks
from tests.databases import sqlite_store
from tests.rule_files import ANALYZER
from tests.serving import NOW, plan_commands, store_log

RUN = AttemptKey("pretrain-7", 1)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = await sqlite_store(tmp_path / "test.db")
    yield opened
    await opened.close()


def watch(store: SqlStore) -> MetricWatch:
    planner = plan_commands(
        alerts=AlertRouting(load_table(Settings()), ("slack",)), base_url="https://d.example"
    ).planner
    looks = StragglerLooks(store, EvidenceCollection(store.evidence, lambda: NOW, "{:026.0f}".format), lambda: NOW)
    return MetricWatch(store, ANALYZER.compressor, planner, lambda: NOW, LocalWakeSignal(), LocalWakeSignal(), looks)


async def printed(store: SqlStore, first: int, losses: Sequence[float], seconds: float = 2.0) -> None:
    lines = [
        f"step {step} loss {loss:.4f} step_time {seconds + step % 3 / 50:.3f}\n"
        for step, loss in enumerate(losses, first)
    ]
    await store_log(store, RUN, LineBlock(Stream(), "".join(lines).encode(), first, received=NOW))


async def test_a_diverged_run_is_handed_over_once(store: SqlStore) -> None:
    """Not before it is certain, and by a replica that has just been started as well."""
    seen = watch(store)
    await printed(store, 1, [2.0 + 0.01 * (step % 4) for step in range(60)])
    await seen.step()
    await printed(store, 61, [2100.0, 2200.0])
    await seen.step()
    assert seen.take_diverged() == []
    await printed(store, 63, [2050.0, 2150.0, 2120.0, 2110.0])
    await seen.step()
    assert seen.take_diverged() == [RUN]
    await printed(store, 67, [2130.0])
    await seen.step()
    assert seen.take_diverged() == []
    other = watch(store)
    await other.step()
    assert other.take_diverged() == [RUN]


async def test_people_are_told_of_a_run_that_slows_once(store: SqlStore) -> None:
    """With a picture, by whichever replica."""
    await printed(store, 1, [2.0] * 70)
    await printed(store, 71, [2.0] * 25, seconds=3.1)
    for seen in (watch(store), watch(store)):
        await seen.step()
    [message] = [entry.message for entry in await store.outbox.messages()]
    alert = decode(message.body)
    assert (alert.kind, alert.job, alert.type) == (AlertKind.METRIC, RUN.job, "slower")
    assert "│" in alert.notes[0] and "since step 71" in alert.title
