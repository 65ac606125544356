"""The last steps of an alert: told, held back with a reason, or put off."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from prometheus_client import CollectorRegistry

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.adapters.wake_signals import LocalWakeSignal
from diagnoser.model import AttemptKey, LineBlock, MessageKind, OutboxMessage, Stream
from diagnoser.model.alerts import Alert, AlertKind, AlertSilence, AlertThread, Severity, encode
from diagnoser.model.errors import DeliveryError
from diagnoser.notifications import routing
from diagnoser.notifications.routing import AlertRouting
from diagnoser.observability.metrics import Metrics
from diagnoser.ports import AlertChannel
from diagnoser.worker.alerts import AGAIN_SECONDS, CAUSE_SECONDS, HEAD_SECONDS, AlertSender
from diagnoser.worker.outbox import Outbox
from tests.databases import sqlite_store
from tests.serving import ECC, save, serving, store_log

NOW = 1_767_225_600.0  # 2026-01-01 00:00 UTC
FAILURE = Alert(AlertKind.FAILURE, "incident-1", "llm-7b attempt 1 failed: gpu_lost", "llm-7b", 1)
TABLE = """
version: 1
repeat_minutes: 60
quiet_hours: [{zone: UTC, start: "02:00", end: "06:00"}]
rows: [{id: rest, to: [all]}]
"""


class Heard(AlertChannel):
    """Keeps what it was told."""

    def __init__(self, *, threaded: bool, resolves: bool = False) -> None:
        self.threaded, self.resolves = threaded, resolves
        self.alerts: list[tuple[Alert, AlertThread | None, str]] = []
        self.error: DeliveryError | None = None

    async def post(self, alert: Alert, thread: AlertThread | None, place: str) -> str:
        if self.error:
            raise self.error
        self.alerts.append((alert, thread, place))
        return f"message {len(self.alerts)}"


class Desk:
    """An outbox with one receiver without threads, and one with them."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store
        self.now = NOW
        self.pager, self.chat = Heard(threaded=False), Heard(threaded=True)
        routes = AlertRouting(routing.load("alerts.yaml", TABLE), ("pager", "chat"))
        channels = {"pager": self.pager, "chat": self.chat}
        sender = AlertSender(channels, store.alerts, store.incidents, routes, lambda: self.now)
        metrics = Metrics(CollectorRegistry())
        self.outbox = Outbox(
            store.outbox, {MessageKind.ALERT: sender}, lambda: self.now, LocalWakeSignal(), Random(1), metrics
        )

    async def tell(self, key: str, alert: Alert = FAILURE, receiver: str = "pager") -> tuple[str, str]:
        """(state of the message, why) after one step."""
        message = OutboxMessage(key, MessageKind.ALERT, receiver, encode(alert), self.now, self.now + 86_400)
        await self.store.outbox.add(message)
        await self.outbox.step()
        (record,) = await self.store.outbox.messages([key])
        return record.state, record.error


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    store = await sqlite_store(tmp_path / "test.db")
    yield Desk(store)
    await store.close()


async def test_further_failures_of_an_incident_are_held_back(desk: Desk) -> None:
    """Where there are no threads, and each says why; the next that is told says how many there were."""
    assert await desk.tell("a") == ("sent", "")
    assert await desk.tell("b") == ("withheld", "the same incident was told at 2026-01-01 00:00 UTC")
    assert (await desk.tell("c"))[0] == "withheld"
    assert await desk.tell("d", replace(FAILURE, incident="incident-2")) == ("sent", "")
    desk.now += 3600
    assert await desk.tell("e") == ("sent", "")
    assert desk.pager.alerts[-1][0].notes == ("2 more failures of this incident since 2026-01-01 00:00 UTC",)


async def test_nothing_is_held_back_by_an_alert_of_a_clock_that_was_ahead(desk: Desk) -> None:
    """Told tomorrow, by a clock that was set right since: the next failure of the incident is news."""
    await desk.tell("a")
    desk.now -= 86_400
    assert await desk.tell("b") == ("sent", "")
    assert (await desk.tell("c"))[0] == "withheld"


async def test_decisions_are_always_told(desk: Desk) -> None:
    """A plan that waits for a person is news, however often its incident was told; but not the plan for one more node
    of a place that fails."""
    await desk.tell("a")
    assert await desk.tell("b", replace(FAILURE, kind=AlertKind.DECISION)) == ("sent", "")
    again = replace(FAILURE, kind=AlertKind.DECISION, repeats=True)
    assert (await desk.tell("c", again))[0] == "withheld"
    assert await desk.tell("d", again, receiver="chat") == ("sent", "")


async def test_a_thread_takes_all_of_an_incident(desk: Desk) -> None:
    """Nothing is held back from a receiver with threads, and it gets its own note again."""
    for key in ("a", "b"):
        assert await desk.tell(key, receiver="chat:#ops") == ("sent", "")
    (_, first, place), (_, second, _) = desk.chat.alerts
    assert (first, place) == (None, "#ops")
    assert second is not None
    assert second.handle == "message 1"


async def test_a_thread_begins_with_the_cause(desk: Desk) -> None:
    """A decision waits for the failure that it follows from, but not for ever."""
    decision = replace(FAILURE, kind=AlertKind.DECISION, diagnosis="d-1")
    put_off = ("pending", "the failure that it follows from goes first")
    assert await desk.tell("b", decision, receiver="chat") == put_off
    assert await desk.tell("a", receiver="chat") == ("sent", "")
    desk.now += 2
    await desk.outbox.step()
    assert [alert.kind for alert, _, _ in desk.chat.alerts] == [AlertKind.FAILURE, AlertKind.DECISION]
    alone = replace(decision, incident="incident-2")
    assert await desk.tell("c", alone, receiver="chat") == put_off
    desk.now += CAUSE_SECONDS
    await desk.outbox.step()
    assert desk.chat.alerts[-1][0].incident == "incident-2"


async def test_a_claim_of_a_clock_that_runs_ahead_holds_nothing_back(desk: Desk) -> None:
    """The first alert of an incident is posted by another, and does not wait for that time."""
    assert await desk.store.alerts.claim_head("chat", "incident-1", desk.now + 3000, HEAD_SECONDS)
    assert await desk.tell("a", receiver="chat") == ("sent", "")


@pytest.mark.parametrize("receiver", ["chat", "pager"])
async def test_an_incident_has_one_first_alert(desk: Desk, receiver: str) -> None:
    """Whoever claims it posts it; another may when the post failed, or after a minute of silence."""
    claim, heard = desk.store.alerts.claim_head, {"chat": desk.chat, "pager": desk.pager}[receiver]
    assert await claim(receiver, "incident-1", desk.now, HEAD_SECONDS)
    waits = ("pending", "the first alert of this incident is on its way")
    assert await desk.tell("a", receiver=receiver) == waits
    assert heard.alerts == []
    desk.now += HEAD_SECONDS + 1
    await desk.outbox.step()
    assert len(heard.alerts) == 1
    assert not await claim(receiver, "incident-1", desk.now + 999, HEAD_SECONDS)
    heard.error = DeliveryError("network: away", permanent=False)
    assert (await desk.tell("b", replace(FAILURE, incident="incident-2"), receiver=receiver))[0] == "pending"
    assert await claim(receiver, "incident-2", desk.now, HEAD_SECONDS)


async def test_a_silenced_incident_tells_nobody(desk: Desk) -> None:
    """Until the silence is over; the reason names who silenced it."""
    await desk.store.alerts.save_silence(AlertSilence("incident-1", desk.now + 60, "slack:ann"))
    assert await desk.tell("a") == ("withheld", "silenced until 2026-01-01 00:01 UTC by slack:ann")
    desk.now += 61
    assert await desk.tell("b") == ("sent", "")


async def test_quiet_hours_put_alerts_off(desk: Desk) -> None:
    """They go out when the hours are over, without having cost a try; what is critical does not wait."""
    desk.now += 3 * 3600
    assert await desk.tell("a") == ("pending", "quiet hours until 2026-01-01 06:00 UTC")
    assert await desk.tell("b", replace(FAILURE, severity=Severity.CRITICAL, incident="x")) == ("sent", "")
    desk.now += 3 * 3600
    await desk.outbox.step()
    (record,) = await desk.store.outbox.messages(["a"])
    assert (record.state, record.tries) == ("sent", 1)


async def test_a_receiver_that_is_gone_is_named(desk: Desk) -> None:
    """A message for a receiver that was taken out of the settings says so."""
    assert await desk.tell("a", receiver="mail") == ("withheld", "no receiver 'mail' is configured any more")


async def test_an_incident_is_recovered_when_its_jobs_print_again(tmp_path: Path) -> None:
    """A plan that was carried out has launched a job; it runs when it prints. Where a recovery ends the whole incident,
    it waits for all of its jobs."""
    async with serving(tmp_path) as web:
        store = web.store
        for job in ("llm-7b", "llm-13b"):
            record = await save(store, job, ECC, created=NOW - (30 if job == "llm-7b" else 60))
        incident = await store.incidents.of_diagnosis(record.id)
        assert incident
        desk = Desk(store)
        desk.pager.resolves = True
        recovered = replace(FAILURE, kind=AlertKind.RECOVERED, incident=incident.id)
        waits = "the job that was launched again has not printed yet"
        assert await desk.tell("a", recovered, "chat") == ("pending", waits)
        await store_log(store, AttemptKey("llm-7b", 2), LineBlock(Stream("stdout"), b"step 1\n"))
        desk.now += AGAIN_SECONDS
        await desk.outbox.step()
        assert [alert.kind for alert, _, _ in desk.chat.alerts] == [AlertKind.RECOVERED]
        assert await desk.tell("b", recovered) == (
            "pending",
            "1 job of the incident not running again",
        )
        await store_log(store, AttemptKey("llm-13b", 2), LineBlock(Stream("stdout"), b"step 1\n"))
        desk.now += AGAIN_SECONDS
        await desk.outbox.step()
        assert [alert.kind for alert, _, _ in desk.pager.alerts] == [AlertKind.RECOVERED]
