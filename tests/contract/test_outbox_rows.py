"""Contract of the outbox's rows."""

import asyncio

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import OutboxMessage
from diagnoser.model.plans import DueMessage
from tests.contract.records import append, outbox_message, record, the_claim


async def put(store: SqlStore, *messages: OutboxMessage) -> None:
    await store.logs.append([append(fatal=True)])
    claim = await the_claim(store)
    await store.work.save_diagnosis(claim, record("01", claim), None, messages)


async def claim(store: SqlStore, now: float = 300.0, lease: float = 60.0, limit: int = 10) -> list[DueMessage]:
    return await store.outbox.claim(now, lease, limit)


async def test_an_effect_comes_back_as_it_was_given(store: SqlStore) -> None:
    """Key, kind, target, body and times survive; the first claim is the first try."""
    await put(store, outbox_message())
    (due,) = await claim(store)
    assert due.message == outbox_message()
    assert due.tries == 1


async def test_an_effect_is_claimed_by_one_sender(store: SqlStore, second: SqlStore) -> None:
    """Replicas that claim at once share the messages."""
    await put(store, *(outbox_message(f"key-{number:02}") for number in range(20)))
    rounds = await asyncio.gather(*(claim(one, limit=6) for one in (store, second, store, second)))
    assert sorted(due.message.key for dues in rounds for due in dues) == [f"key-{number:02}" for number in range(20)]


async def test_an_effect_is_free_again_when_its_lease_ends(store: SqlStore) -> None:
    """A sender that died is replaced; what it reports afterwards is ignored."""
    await put(store, outbox_message())
    (dead,) = await claim(store, 300.0)
    assert await claim(store, 359.0) == []
    (alive,) = await claim(store, 360.0)
    assert alive.tries == 2
    await store.outbox.record_delivery(dead, "dead", error="late report")
    assert [one.state for one in await store.outbox.messages()] == ["pending"]
    await store.outbox.record_delivery(alive, "sent")
    (only,) = await store.outbox.messages()
    assert (only.state, only.tries, only.error) == ("sent", 2, "")


async def test_leases_are_renewed_where_they_are_held(store: SqlStore) -> None:
    """Of several messages: what is recorded by now, or was taken over, stays as it is."""
    await put(store, outbox_message("a"), outbox_message("b"), outbox_message("c"))
    dues = {due.message.key: due for due in await claim(store, 300.0)}
    await store.outbox.record_delivery(dues["a"], "sent")
    await store.outbox.record_delivery(dues["b"], "pending", retry_at=310.0)
    (taken,) = await claim(store, 310.0)
    await store.outbox.extend(list(dues.values()), 1000.0)
    assert {due.message.key for due in await claim(store, 500.0)} == {taken.message.key} == {"b"}
    assert {due.message.key for due in await claim(store, 1000.0)} == {"b", "c"}


async def test_a_retry_waits_until_its_time(store: SqlStore) -> None:
    """A pending effect is due at the time that was set, with its error kept."""
    await put(store, outbox_message())
    (due,) = await claim(store)
    await store.outbox.record_delivery(due, "pending", retry_at=500.0, error="HTTP 503")
    assert await claim(store, 499.0) == []
    (standing,) = await store.outbox.messages()
    assert (standing.state, standing.due, standing.error) == ("pending", 500.0, "HTTP 503")
    assert len(await claim(store, 500.0)) == 1


async def test_a_settled_effect_is_never_due(store: SqlStore) -> None:
    """Sent, dead and expired are ends."""
    await put(store, outbox_message("a"), outbox_message("b"), outbox_message("c"))
    for due, state in zip(await claim(store), ("sent", "dead", "expired"), strict=True):
        await store.outbox.record_delivery(due, state)
    assert await claim(store, 1e9) == []
    assert [(one.state, one.tries) for one in await store.outbox.messages()] == [
        ("sent", 1),
        ("dead", 1),
        ("expired", 0),
    ]


async def test_effects_can_be_asked_for_by_key(store: SqlStore) -> None:
    """Keys that do not exist are left out."""
    await put(store, outbox_message("a"), outbox_message("b"))
    assert [one.message.key for one in await store.outbox.messages(["b", "zzz"])] == ["b"]
    assert await store.outbox.messages([]) == []
