"""People are told when an evaluated checkpoint scores worse than those before it: once, by whichever replica."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.adapters.wake_signals import LocalWakeSignal
from diagnoser.channels.alertmanager import sending as alertmanager
from diagnoser.channels.slack import message as slack
from diagnoser.config.alerting import load_table
from diagnoser.config.settings import Settings
from diagnoser.model.alerts import Alert, AlertKind, Severity, decode
from diagnoser.model.evaluations import BatchKind, BatchRecord, BatchState, RunState
from diagnoser.notifications import text
from diagnoser.notifications.routing import AlertRouting
from diagnoser.worker.score_alerts import FRESH_SECONDS, alert_score_drops
from tests.databases import sqlite_store
from tests.serving import NOW, plan_commands
from tests.unit.test_evaluations_scores import evaluated


class Site:
    """A watch over a store, at a time that the test says."""

    def __init__(self, store: SqlStore) -> None:
        self.store, self.now = store, NOW + 100
        routing = AlertRouting(load_table(Settings()), ("slack", "alertmanager"))
        planner = plan_commands(alerts=routing, base_url="https://diagnoser.example").planner
        self.planner = planner

    async def told(self) -> list[Alert]:
        """Everything so far, to one of its receivers."""
        await alert_score_drops(self.store, self.planner, lambda: self.now, LocalWakeSignal())
        return [decode(one.message.body) for one in await self.store.outbox.messages() if one.message.target == "slack"]


async def scored(store: SqlStore, accuracies: list[float], suite: str = "nightly") -> None:
    """A run for each checkpoint, all of which have ended."""
    for run, (trial,) in evaluated([{"accuracy": value} for value in accuracies], suite=suite):
        run = replace(run, id=f"{suite}-{run.id}", created=NOW - 900 + 120 * run.created)
        which = trial.checkpoint, trial.task
        batch = BatchRecord(
            f"{run.id}-s", run.id, BatchKind.SCORE, "", 0, run.created, checkpoint=which[0], task=which[1]
        )
        await store.evaluations.add_run(run)
        await store.evaluations.begin_scoring(run.id, [which])
        assert await store.evaluations.start_batch(batch, ())
        assert await store.evaluations.record_batch(
            replace(batch, state=BatchState.ENDED, ended=run.created + 40), (), [trial]
        )
        assert await store.evaluations.end_run(run.id, RunState.ENDED, run.created + 55)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = await sqlite_store(tmp_path / "test.db")
    yield opened
    await opened.close()


async def test_a_drop_is_told_once(store: SqlStore) -> None:
    """However often and by however many replicas is looked; with what a person needs, and where to look."""
    await scored(store, [0.70, 0.72, 0.71, 0.40])
    site = Site(store)
    (alert,) = await site.told()
    assert (alert.kind, alert.severity) == (AlertKind.SCORE_DROP, Severity.WARNING)
    assert alert.title == "nightly: maths got worse at step-4000: 0.71 to 0.4"
    assert alert.link == "https://diagnoser.example/evaluations/nightly-r4"
    assert await site.told() == await Site(store).told() == [alert]


async def test_what_is_within_the_noise_or_long_over_is_not_told(store: SqlStore) -> None:
    """Neither small changes, nor what was evaluated before the service looked, nor another suite's scores."""
    await scored(store, [0.70, 0.72, 0.69])
    await scored(store, [0.10], "weekly")
    site = Site(store)
    assert await site.told() == []
    await scored(store, [0.70, 0.20], "hourly")
    site.now = NOW + FRESH_SECONDS
    assert await site.told() == []


async def test_each_receiver_can_show_it(store: SqlStore) -> None:
    """In Slack with a link to the page, in Alertmanager under a name of its own, and as text."""
    await scored(store, [0.70, 0.20])
    (alert,) = await Site(store).told()
    assert alertmanager.labels_of(alert)["alertname"] == "EvaluationScoreDropped"
    assert "Open the page" in str(slack.slack_message(alert)) and "Expected" in text.body(alert)
