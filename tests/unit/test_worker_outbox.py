"""The outbox: at least once, with patience, and never for ever."""

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from prometheus_client import CollectorRegistry
from standardwebhooks import Webhook, WebhookVerificationError

from diagnoser.adapters.http import create_client
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.adapters.wake_signals import LocalWakeSignal
from diagnoser.adapters.webhook import RecoveryWebhook
from diagnoser.model import MessageKind, OutboxMessage
from diagnoser.model.errors import DeliveryError, Unavailable
from diagnoser.model.plans import DueMessage, OutboxRecord
from diagnoser.observability.metrics import Metrics
from diagnoser.ports import Clock, Sender
from diagnoser.worker.outbox import LONGEST_PAUSE, SLOW_PAUSE, Outbox, OutboxConfig, RateLimiter
from tests.contract.records import append, outbox_message, record, the_claim
from tests.databases import sqlite_store
from tests.in_memory import RecordingSender
from tests.receiver import Handler, Receiver, running

DOWN = DeliveryError("HTTP 503", permanent=False)
REFUSED = DeliveryError("HTTP 404", permanent=True)
PACE = OutboxConfig()
SECRET = "whsec_c2VjcmV0IG9mIHRoZSB0ZXN0IHJ1bg=="


class Time:
    """A clock that a test moves."""

    now = 300.0

    def __call__(self) -> float:
        return self.now


class Highest(random.Random):
    """Always draws the upper bound, so that waits are exact."""

    def uniform(self, a: float, b: float) -> float:
        return b


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = await sqlite_store(tmp_path / "test.db")
    yield opened
    await opened.close()


async def put(store: SqlStore, *messages: OutboxMessage) -> None:
    """Effects get into the store the one way there is: with a diagnosis."""
    await store.logs.append([append(fatal=True)])
    claim = await the_claim(store)
    await store.work.save_diagnosis(claim, record("01", claim), None, messages)


def outbox(
    store: SqlStore,
    sender: Sender | None,
    clock: Clock,
    rng: random.Random | None = None,
    pace: OutboxConfig = PACE,
    metrics: Metrics | None = None,
) -> Outbox:
    senders: Mapping[MessageKind, Sender] = {MessageKind.RECOVERY: sender} if sender else {}
    metrics = metrics or Metrics(CollectorRegistry())
    return Outbox(store.outbox, senders, clock, LocalWakeSignal(), rng or Highest(), metrics, pace)


async def only(store: SqlStore) -> OutboxRecord:
    (found,) = await store.outbox.messages()
    return found


async def test_a_due_effect_is_sent_once(store: SqlStore) -> None:
    """After the delivery nothing is due, and the count tells of one that was sent."""
    await put(store, outbox_message())
    sender, metrics = RecordingSender(), Metrics(CollectorRegistry())
    box = outbox(store, sender, Time(), metrics=metrics)
    assert (await box.step(), await box.step()) == (1, 0)
    assert sender.sent == [outbox_message()]
    assert (await only(store)).state == "sent"
    labels = {"kind": "recovery", "result": "sent"}
    assert metrics.registry.get_sample_value("diagnoser_outbox_deliveries_total", labels) == 1


async def test_each_failure_doubles_the_longest_wait(store: SqlStore) -> None:
    """The wait is drawn from 0 to 2, 4, 8 ... seconds, at most ten minutes."""
    await put(store, outbox_message(expires=1e9))
    clock, waits = Time(), []
    box = outbox(store, RecordingSender([DOWN] * 12), clock)
    for _ in range(12):
        assert await box.step() == 1
        waits.append((await only(store)).due - clock.now)
        clock.now = (await only(store)).due
    assert waits == [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 600.0, 600.0, 600.0]
    assert await box.step() == 1
    assert (await only(store)).state == "sent"


async def test_the_wait_is_drawn_from_the_whole_range(store: SqlStore) -> None:
    """Full jitter: messages that failed together do not come back together."""
    await put(store, *(outbox_message(f"key-{number}", expires=1e9) for number in range(16)))
    await outbox(store, RecordingSender([DOWN] * 16), Time(), random.Random(7)).step()
    waits = sorted(found.due - 300.0 for found in await store.outbox.messages())
    assert len(set(waits)) == 16
    assert waits[0] < 0.5 < 1.5 < waits[-1] <= 2.0


async def test_the_receivers_own_wish_is_honoured(store: SqlStore) -> None:
    """An effect is not tried before the time that the receiver asked for."""
    await put(store, outbox_message(expires=1e9))
    wish = DeliveryError("HTTP 429", permanent=False, retry_after=90.0)
    await outbox(store, RecordingSender([wish]), Time()).step()
    assert (await only(store)).due == 390.0


async def test_what_another_try_cannot_help_is_given_up_at_once(store: SqlStore) -> None:
    """A permanent refusal is dead after one try, with its error."""
    await put(store, outbox_message())
    await outbox(store, RecordingSender([REFUSED]), Time()).step()
    found = await only(store)
    assert (found.state, found.tries, found.error) == ("dead", 1, "HTTP 404")


async def test_an_effect_without_a_receiver_is_dead(store: SqlStore) -> None:
    """A receiver that was taken out of the settings leaves no effect waiting for ever."""
    await put(store, outbox_message())
    await outbox(store, None, Time()).step()
    assert (await only(store)).state == "dead"


async def test_an_effect_that_expired_is_not_sent(store: SqlStore) -> None:
    """Old advice is worse than none: after the expiry nothing leaves."""
    await put(store, outbox_message(expires=3800.0))
    clock, sender = Time(), RecordingSender()
    clock.now = 3800.0
    await outbox(store, sender, clock).step()
    found = await only(store)
    assert (found.state, found.tries) == ("expired", 0)
    assert sender.sent == []


async def test_retries_end_with_the_expiry(store: SqlStore) -> None:
    """A wait never passes the expiry, so a receiver that stays away leads to an end on time."""
    await put(store, outbox_message(expires=301.0))
    clock = Time()
    box = outbox(store, RecordingSender([DOWN] * 9), clock)
    await box.step()
    assert (await only(store)).due == 301.0
    clock.now = 301.0
    await box.step()
    assert (await only(store)).state == "expired"


async def test_a_sender_with_a_fault_does_not_stop_the_others(store: SqlStore) -> None:
    """An unexpected exception is one failed try of one effect."""

    class Faulty(RecordingSender):
        async def send(self, outbox_message: OutboxMessage) -> None:
            if outbox_message.key == "bad":
                raise KeyError("a fault of our own")
            await super().send(outbox_message)

    await put(store, outbox_message("bad"), outbox_message("good"))
    sender = Faulty()
    await outbox(store, sender, Time()).step()
    assert {found.message.key: found.state for found in await store.outbox.messages()} == {
        "bad": "pending",
        "good": "sent",
    }


async def test_a_receiver_that_never_answers_is_tried_again(store: SqlStore) -> None:
    """One try has a bound, whatever the sender does."""

    class Silent(RecordingSender):
        async def send(self, outbox_message: OutboxMessage) -> None:
            await LocalWakeSignal().wait(3600.0)

    await put(store, outbox_message())
    await outbox(store, Silent(), Time(), pace=OutboxConfig(send=0.01)).step()
    found = await only(store)
    assert (found.state, found.error) == ("pending", "no answer in time")


async def test_a_receiver_that_does_not_answer_holds_up_no_other(store: SqlStore) -> None:
    """Two hundred alerts for it kept all others back by half a minute a round."""
    clock, sent = Time(), list[str]()

    class Slow(RecordingSender):
        async def send(self, outbox_message: OutboxMessage) -> None:
            if outbox_message.target == "slow":
                clock.now += 30.0
                raise DOWN
            sent.append(outbox_message.key)

    waiting = [replace(outbox_message(f"a{number:03}"), target="slow") for number in range(200)]
    await put(store, *(replace(message, expires=clock.now + 86_400.0) for message in (*waiting, outbox_message("b"))))
    working = outbox(store, Slow(), clock, pace=OutboxConfig(at_once=2))
    while not sent:
        await working.step()
    assert sent == ["b"] and clock.now <= 300.0 + 150.0


class Stuck(RecordingSender):
    """Its receiver never answers. under_way: what is being sent."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way = asyncio.Queue[str]()

    async def send(self, outbox_message: OutboxMessage) -> None:
        self.under_way.put_nowait(outbox_message.key)
        await asyncio.Event().wait()


async def test_what_is_being_sent_at_a_stop_is_free_at_once(store: SqlStore) -> None:
    """Another replica, or the next start, sends it under its key, and the try that was cut off does not count."""
    await put(store, outbox_message("a"), outbox_message("b"))
    stuck, sender, clock = Stuck(), RecordingSender(), Time()
    stopped = asyncio.create_task(outbox(store, stuck, clock).run())
    assert {await stuck.under_way.get(), await stuck.under_way.get()} == {"a", "b"}
    stopped.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopped
    assert await outbox(store, sender, clock).step() == 2
    assert sorted(sent.key for sent in sender.sent) == ["a", "b"]
    assert [found.tries for found in await store.outbox.messages()] == [1, 1]


async def test_a_slow_send_keeps_its_lease(store: SqlStore) -> None:
    """However long it takes, nobody else sends meanwhile."""
    await put(store, outbox_message())
    stuck, clock = Stuck(), Time()
    renewals = asyncio.Queue[float]()
    extend = store.outbox.extend

    async def counted(due: Sequence[DueMessage], until: float) -> None:
        await extend(due, until)
        renewals.put_nowait(until)

    store.outbox.extend = counted  # type: ignore[method-assign]
    slow = asyncio.create_task(outbox(store, stuck, clock, pace=OutboxConfig(lease=0.03)).step())
    await renewals.get()
    clock.now += 60.0
    while await renewals.get() < clock.now:
        pass
    assert await store.outbox.claim(clock.now, 60.0, 9) == []
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow


def test_a_rest_ends_though_the_clock_was_set_back() -> None:
    """A target that is slow rests for longer each time, two minutes at most by any clock; one that answers does not."""
    limiter, message, rests = RateLimiter({}), outbox_message(), list[float]()
    now = 10_000.0
    for _ in range(4):
        limiter.note(message.target, now, slow=True)
        rests.append(limiter.wait(message, now))
        now += rests[-1]
    assert rests == [SLOW_PAUSE, 2 * SLOW_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]
    limiter.note(message.target, now, slow=True)
    assert limiter.wait(message, now - 3_600.0) == 0.0
    limiter.note(message.target, now, slow=False)
    assert limiter.wait(message, now) == 0.0


def test_a_limited_rate_holds_nothing_up_when_the_clock_was_set_back() -> None:
    """The slots that were given by the later clock count no more: an alert waited for as long as the jump was."""
    limiter = RateLimiter({"hook": 1.0})
    first, second = (replace(outbox_message(), key=key, target="hook") for key in "ab")
    assert (limiter.wait(first, 10_000.0), limiter.wait(second, 10_000.0)) == (0.0, 1.0)
    assert limiter.wait(second, 10_000.0 - 3_600.0) == 0.0


async def test_an_effect_whose_record_failed_is_sent_again_under_its_key(store: SqlStore) -> None:
    """At least once: a database that was away after the send leads to a second send when the lease ends."""
    await put(store, outbox_message())
    sender, clock = RecordingSender(), Time()
    box = outbox(store, sender, clock)
    settle = store.outbox.record_delivery

    async def away(*arguments: object, **named: object) -> None:
        raise Unavailable("database away")

    store.outbox.record_delivery = away  # type: ignore[method-assign]
    await box.step()
    store.outbox.record_delivery = settle  # type: ignore[method-assign]
    assert await box.step() == 0
    clock.now += PACE.lease
    assert await box.step() == 1
    assert [sent.key for sent in sender.sent] == ["effect-1", "effect-1"]


class Flaky(Handler):
    """Verifies every signature with the public library, and fails three requests in ten."""

    chance = random.Random(11)
    failed = 0
    faults: ClassVar[list[Exception]] = []

    def do_POST(self) -> None:  # noqa: N802 - the name that http.server calls
        if self.chance.random() < 0.3:
            Flaky.failed += 1
            return self.fail(Flaky.failed % 4)
        super().do_POST()
        headers, body = self.server.requests[-1]
        try:
            Webhook(SECRET).verify(body, headers)
        except WebhookVerificationError as error:
            self.faults.append(error)
        return None

    def fail(self, how: int) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        if how == 0:
            self.connection.shutdown(socket.SHUT_RDWR)  # the answer never comes
        else:
            self.answer((503, 429, 408)[how - 1], {})


async def test_every_effect_arrives_at_a_receiver_that_fails_three_times_in_ten(store: SqlStore) -> None:
    """Over real HTTP: nothing is lost, nothing that was answered is repeated, each signature holds."""
    keys = [f"key-{number:03}" for number in range(120)]
    now = time.time()
    await put(store, *(replace(outbox_message(key, created=now - 1.0), expires=now + 3600.0) for key in keys))
    receiver, client = Receiver(Flaky), create_client()
    with running(receiver):
        sender = RecoveryWebhook(receiver.url, SECRET, client, time.time, allow_private=True)
        box = outbox(store, sender, time.time, random.Random(3), OutboxConfig(first=0.001, longest=0.01))
        while any(found.state == "pending" for found in await store.outbox.messages()):
            await box.step()
    await client.aclose()
    assert {found.state for found in await store.outbox.messages()} == {"sent"}
    assert Flaky.faults == []
    assert sorted(headers["webhook-id"] for headers, _ in receiver.requests) == keys
    assert Flaky.failed > 20


async def test_sends_to_one_target_keep_their_distance(store: SqlStore) -> None:
    """Two a second: the others wait their turn without spending tries, and other targets do not wait."""
    many = [outbox_message(f"key-{number}") for number in range(6)]
    free = replace(outbox_message("free"), target="elsewhere")
    await put(store, *many, free)
    clock, sender = Time(), RecordingSender()
    box = outbox(store, sender, clock, pace=replace(PACE, rates={"recovery": 2.0}))
    counts = []
    for _ in range(6):
        await box.step()
        counts.append(len(sender.sent))
        clock.now += 0.5
    assert counts == [2, 3, 4, 5, 6, 7]
    assert {one.tries for one in await store.outbox.messages()} == {1}


async def test_a_turn_after_the_expiry_is_not_waited_for(store: SqlStore) -> None:
    """One an hour, and the second message is good for a minute: it is given up when the minute is over."""
    await put(store, outbox_message("first"), outbox_message("second", expires=360.0))
    clock, sender = Time(), RecordingSender()
    box = outbox(store, sender, clock, pace=replace(PACE, rates={"recovery": 1 / 3600.0}))
    await box.step()
    waiting = {one.message.key: one.due for one in await store.outbox.messages() if one.state == "pending"}
    late = waiting.get("second", 360.0)
    clock.now = 360.0
    await box.step()
    states = {one.message.key: one.state for one in await store.outbox.messages()}
    assert late == 360.0
    assert states["second"] in ("expired", "sent")
