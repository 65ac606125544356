"""What goes first, by which name it is counted, and how an message that could not be sent is tried again."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from diagnoser.model import AttemptKey, MessageKind, OutboxMessage
from diagnoser.model.errors import Deferred, DeliveryError, Unavailable, Withheld
from diagnoser.model.plans import DueMessage
from diagnoser.observability.metrics import Metrics
from diagnoser.worker import blind_spots, repeat
from diagnoser.worker.blind_spots import alert_blind_spots
from diagnoser.worker.outbox import Outbox, OutboxConfig, RateLimiter, subject
from diagnoser.worker.retention import Retention, RetentionAges

NOW, DAY = 100 * 86_400.0, 86_400.0


@dataclass
class Stored:
    """A store of which every kind holds so many rows. asked: (repository.method, before, limit)."""

    rows: dict[str, int] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    stored: int = 0
    archived: int = 0

    def __getattr__(self, repository: str) -> "StoredPart":
        return StoredPart(self, repository)


@dataclass
class StoredPart:
    """One of its repositories."""

    store: Stored
    repository: str

    def __getattr__(self, method: str) -> Any:
        name, store = f"{self.repository}.{method}", self.store

        async def drop(*arguments: Any) -> Any:
            store.asked.append((name, arguments))
            left, store.rows[name] = store.rows.get(name, 0), 0
            if method == "drop_attempts":
                return SimpleNamespace(attempts=left, diagnoses=2 * left, plans=3 * left, stored=10 * left)
            return (left, 10 * left) if method == "drop_archived" else left

        async def size() -> int:
            store.asked.append((name, ()))
            return store.stored if method == "stored_bytes" else store.archived

        async def clocks() -> tuple[float, float]:
            return 0.0, 0.0

        if method == "clocks":
            return clocks
        return size if method in ("stored_bytes", "archived_bytes") else drop


def retention(store: Stored, **ages: int) -> tuple[Retention, Metrics]:
    metrics = Metrics(CollectorRegistry())
    given: Any = store
    return Retention(given, lambda: NOW, RetentionAges(**ages), metrics), metrics


AGES = {"attempts_days": 40, "dumps_days": 20, "messages_days": 30, "audit_days": 50}


@pytest.mark.parametrize(
    ("method", "kind", "days"),
    [
        ("retention.drop_messages", "messages", 30),
        ("retention.drop_dumps", "dumps", 20),
        ("retention.drop_node_events", "node_events", 40),
        ("retention.drop_node_facts", "node_facts", 40),
        ("retention.drop_incidents", "incidents", 40),
        ("evaluations.drop", "trials", 40),
        ("users.drop_sessions", "sessions", 30),
        ("audit.drop", "audit", 50),
    ],
)
async def test_each_kind_goes_at_its_age(method: str, kind: str, days: int) -> None:
    """And is counted by its name."""
    store = Stored({method: 7})
    kept, metrics = retention(store, **AGES)
    assert await kept.drop() == 7
    assert (method, (NOW - days * DAY, 500)) in store.asked
    assert metrics.registry.get_sample_value("diagnoser_retention_dropped_total", {"kind": kind}) == 7


async def test_what_is_kept_for_ever_is_not_looked_for() -> None:
    """Sessions alone have an age of their own."""
    store = Stored()
    kept, _ = retention(store)
    assert await kept.drop() == 0
    assert {name for name, _ in store.asked if "drop" in name} == {"logins.drop", "users.drop_sessions"}


async def test_attempts_go_with_what_belongs_to_them() -> None:
    """Each counted by its name; no age is shorter than eight days."""
    store = Stored({"retention.drop_attempts": 2})
    kept, metrics = retention(store, attempts_days=1)
    assert await kept.drop() == 2
    assert ("retention.drop_attempts", (NOW - 8 * DAY, 20)) in store.asked
    count = metrics.registry.get_sample_value
    counted = [
        count("diagnoser_retention_dropped_total", {"kind": kind}) for kind in ("attempts", "diagnoses", "plans")
    ]
    assert counted == [2, 4, 6]


@pytest.mark.parametrize(("stored", "rounds"), [(100, 0), (101, 1), (121, 2)])
async def test_what_is_too_much_goes_until_it_is_not(stored: int, rounds: int) -> None:
    """Two attempts of 20 bytes a round; the size is asked for once."""
    store = Stored(stored=stored)
    kept, _ = retention(store, stored_bytes=100)
    for _ in range(rounds + 1):
        store.rows["retention.drop_attempts"] = 2
        await kept.drop()
    assert sum(name == "retention.drop_attempts" for name, _ in store.asked) == rounds
    assert sum(name == "retention.stored_bytes" for name, _ in store.asked) == 1


@pytest.mark.parametrize(("archived", "rounds"), [(100, 0), (101, 1), (121, 2)])
async def test_lines_beyond_the_archive_s_bound_go(archived: int, rounds: int) -> None:
    """The same of archived lines, of which none go that are within."""
    store = Stored(archived=archived)
    kept, metrics = retention(store, archived_bytes=100)
    results = list[int]()
    for _ in range(rounds + 1):
        store.rows["archive.drop_archived"] = 2
        results.append(await kept.drop())
    assert results == [2] * rounds + [0]
    count = metrics.registry.get_sample_value("diagnoser_retention_dropped_total", {"kind": "archived"})
    assert (count or 0) == 2 * rounds


async def test_retention_rests_once_there_is_nothing_to_do() -> None:
    """For ten minutes; while there is something, it goes on at once."""
    store, now = Stored({"users.drop_sessions": 3}), NOW
    given: Any = store
    kept = Retention(given, lambda: now, RetentionAges(), Metrics(CollectorRegistry()))
    counts = [await kept.step(), await kept.step()]
    asked = len(store.asked)
    for now, is_asked in ((NOW + 599.0, False), (NOW + 600.0, True)):  # noqa: B007 - the clock reads it
        await kept.step()
        assert (len(store.asked) > asked) is is_asked
    assert counts == [3, 0]


def message(body: object = b"", kind: MessageKind = MessageKind.RECOVERY, **fields: Any) -> OutboxMessage:
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    values: dict[str, Any] = {"key": "k", "kind": kind, "target": "webhook", "body": data, "created": 0.0}
    return OutboxMessage(**(values | {"expires": 1_000.0} | fields))


@pytest.mark.parametrize(
    ("sent", "about"),
    [
        (message({"data": {"job": "j", "attempt": 2, "diagnosis": {"id": "d"}}}), (AttemptKey("j", 2), "d")),
        (message({"data": {"job": "j"}}), None),
        (message(b"no json"), None),
        (message({"job": "j", "attempt": 3, "diagnosis": "d"}, MessageKind.ALERT), (AttemptKey("j", 3), "d")),
        (message({"job": "j", "attempt": 3}, MessageKind.ALERT), (AttemptKey("j", 3), "")),
        (message({"job": ""}, MessageKind.ALERT), None),
        (message({"response_url": "x"}, MessageKind.ANSWER), None),
        (message([1], MessageKind.ALERT), None),
    ],
)
def test_whom_a_message_is_about(sent: OutboxMessage, about: tuple[AttemptKey, str] | None) -> None:
    """By its own body; None where it is about no attempt, or of another version."""
    assert subject(sent) == about


def test_messages_to_one_target_are_spaced_out() -> None:
    """Each has its turn, and keeps it when it comes again; other targets do not wait."""
    limiter = RateLimiter({"webhook": 2.0})
    first, second, third = (message(key=key) for key in "abc")
    assert [limiter.wait(sent, 10.0) for sent in (first, second, third)] == [0.0, 0.5, 1.0]
    assert (limiter.wait(second, 10.5), limiter.wait(third, 10.5)) == (0.0, 0.5)
    assert limiter.wait(message(key="d", target="slack"), 10.0) == 0.0
    assert limiter.wait(message(key="e"), 20.0) == 0.0


@dataclass
class Receiver:
    """Ends as it is told."""

    error: Exception | None = None

    async def send(self, message: OutboxMessage) -> None:
        if self.error:
            raise self.error


@dataclass
class Ledger:
    """Messages that are due, and what was recorded of them."""

    due: list[DueMessage] = field(default_factory=list)
    recorded: list[tuple[str, float, str]] = field(default_factory=list)
    away: int = 0

    async def claim(self, now: float, lease: float, limit: int) -> list[DueMessage]:
        if self.away:
            self.away -= 1
            raise Unavailable("the database is away")
        taken, self.due = self.due[:limit], self.due[limit:]
        return taken

    async def extend(self, due: Sequence[DueMessage], until: float) -> None: ...

    async def record_delivery(self, due: DueMessage, state: str, retry_at: float = 0.0, error: str = "") -> None:
        self.recorded.append((state, retry_at, error))


class Wake:
    """Ends the loop after the first wait, and knows how long it was to be."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def notify(self) -> None: ...

    async def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        raise asyncio.CancelledError


class Highest:
    def uniform(self, a: float, b: float) -> float:
        return b


def outbox(store: Ledger, receiver: Receiver, wake: Wake, metrics: Metrics, **pace: Any) -> Outbox:
    given: Any = (store, {MessageKind.RECOVERY: receiver}, wake, Highest())
    return Outbox(given[0], given[1], lambda: 100.0, given[2], given[3], metrics, OutboxConfig(poll=7.0, **pace))


@pytest.mark.parametrize(
    ("error", "tries", "recorded", "label", "reason"),
    [
        (None, 1, ("sent", 0.0, ""), "sent", "delivered"),
        (DeliveryError("HTTP 404", permanent=True), 1, ("dead", 0.0, "HTTP 404"), "dead", "refused"),
        (DeliveryError("HTTP 503", permanent=False), 1, ("pending", 102.0, "HTTP 503"), "retried", "not_now"),
        (DeliveryError("HTTP 503", permanent=False), 3, ("pending", 108.0, "HTTP 503"), "retried", "not_now"),
        (DeliveryError("HTTP 503", permanent=False), 99, ("pending", 700.0, "HTTP 503"), "retried", "not_now"),
        (
            DeliveryError("HTTP 429", permanent=False, retry_after=300.0),
            1,
            ("pending", 400.0, "HTTP 429"),
            "retried",
            "not_now",
        ),
        (
            DeliveryError("HTTP 429", permanent=False, retry_after=9e9),
            1,
            ("pending", 1_000.0, "HTTP 429"),
            "retried",
            "not_now",
        ),
        (Withheld("silenced"), 1, ("withheld", 0.0, "silenced"), "withheld", "withheld"),
        (Deferred("at night", 500.0), 1, ("deferred", 500.0, "at night"), "deferred", "deferred"),
        (Deferred("at night", 5_000.0), 1, ("deferred", 1_000.0, "at night"), "deferred", "deferred"),
        (ValueError("x"), 1, ("pending", 102.0, "ValueError"), "retried", "sender_failed"),
    ],
)
async def test_what_becomes_of_a_message(
    error: Exception | None, tries: int, recorded: tuple[str, float, str], label: str, reason: str
) -> None:
    """It is recorded, counted and logged, and tried again within its time: ever later, and never before the receiver
    wants it."""
    ledger, metrics = Ledger([DueMessage(message(), tries, "t")]), Metrics(CollectorRegistry())
    with capture_logs() as logs:
        assert await outbox(ledger, Receiver(error), Wake(), metrics).step() == 1
    assert ledger.recorded == [recorded]
    counted = {"kind": "recovery", "result": label}
    assert metrics.registry.get_sample_value("diagnoser_outbox_deliveries_total", counted) == 1
    (entry,) = logs
    is_well = label in ("sent", "withheld", "deferred")
    assert (entry["event"], entry["key"], entry["kind"], entry["state"]) == (
        "effect_handled",
        "k",
        "recovery",
        recorded[0],
    )
    assert (entry["reason"], entry["tries"], entry["error"]) == (reason, tries, recorded[2])
    assert entry["log_level"] == ("info" if is_well else "warning")


async def test_a_message_without_a_receiver_or_time_is_given_up() -> None:
    """With what was the matter."""
    metrics = Metrics(CollectorRegistry())
    late = Ledger([DueMessage(message(expires=100.0), 1, "t"), DueMessage(message(kind=MessageKind.ANSWER), 1, "t")])
    await outbox(late, Receiver(), Wake(), metrics).step()
    assert sorted(late.recorded) == [
        ("dead", 0.0, "no receiver is configured"),
        ("expired", 0.0, "expired before it could be delivered"),
    ]


async def test_the_outbox_waits_for_the_database() -> None:
    """As long as its poll says, and goes on at once while there is something to send."""
    ledger, wake = Ledger([DueMessage(message(), 1, "t")], away=0), Wake()
    with pytest.raises(asyncio.CancelledError):
        await outbox(ledger, Receiver(), wake, Metrics(CollectorRegistry())).run()
    assert (len(ledger.recorded), wake.waits) == (1, [7.0])
    away, wake = Ledger(away=1), Wake()
    with capture_logs() as logs, pytest.raises(asyncio.CancelledError):
        await outbox(away, Receiver(), wake, Metrics(CollectorRegistry())).run()
    assert [(entry["event"], entry["error"]) for entry in logs] == [("outbox_waits", "the database is away")]
    assert wake.waits == [7.0]


class Away:
    """A database that is away. asked: how often."""

    def __init__(self) -> None:
        self.asked = 0

    async def blind_spots(self) -> Any:
        self.asked += 1
        raise Unavailable("the database is away")


async def test_a_watch_outlives_a_database_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks once a period, says that it could not, and looks again."""
    given: Any = Away()
    nobody: Any = None
    pauses = list[float]()

    async def slept(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr(repeat.asyncio, "sleep", slept)  # type: ignore[attr-defined]
    with capture_logs() as logs, pytest.raises(asyncio.CancelledError):
        look = partial(alert_blind_spots, given, given, nobody, lambda: NOW, nobody)
        await repeat.repeat(look, blind_spots.PERIOD, "blind_spots_not_checked")
    assert (given.asked, pauses) == (2, [blind_spots.PERIOD] * 3)
    told = [(entry["event"], entry["error"]) for entry in logs]
    assert told == [("blind_spots_not_checked", "the database is away")] * 2


async def test_a_delivery_is_traced_with_what_it_is_about() -> None:
    """Attempt, diagnosis, receiver, and how it went; what is about no attempt is not."""
    traced = list[tuple[Any, ...]]()

    def note(step: Any, attempt: AttemptKey, since: float, **facts: object) -> None:
        traced.append((step.value, attempt, since, facts))

    about = message({"data": {"job": "j", "attempt": 2, "diagnosis": {"id": "d"}}})
    ledger = Ledger([DueMessage(about, 3, "t"), DueMessage(message(b"x"), 1, "t")])
    sending = outbox(ledger, Receiver(DeliveryError("HTTP 503", permanent=False)), Wake(), Metrics(CollectorRegistry()))
    sending.trace = note
    await sending.step()
    facts = {"diagnosis": "d", "error": "HTTP 503", "kind": "recovery", "target": "webhook", "result": "not_now"}
    assert traced == [("deliver", AttemptKey("j", 2), 100.0, facts | {"tries": 3})]
