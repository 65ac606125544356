"""Contract of what was last heard and what waits, and of the blind spots that were told."""

from dataclasses import replace

import pytest

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import AttemptKey, Event, EventKind, Job, MessageKind, OutboxMessage, Stream, node_log_id
from diagnoser.model.vitals import AgentSeen, BlindSpot, BlindSpotKind, Vitals, Waiting
from tests.contract.records import TIMING, append, record

NOW = 1_000_000.0
SPOT = BlindSpot(BlindSpotKind.AGENT_SILENT, "east", NOW - 500, "The agent is silent.", "Plans wait.")


async def look(store: SqlStore) -> Vitals:
    return await store.vitals.read(NOW, 600.0, 600.0)


async def launch(store: SqlStore, job: str, at: float) -> AttemptKey:
    key = AttemptKey(job, 1)
    await store.jobs.add_event(key, Event(EventKind.STARTED, at))
    return key


def message(key: str) -> OutboxMessage:
    return OutboxMessage(key, MessageKind.ALERT, "slack", b"{}", NOW, NOW + 3600)


async def test_nothing_was_heard_of_an_empty_store(store: SqlStore) -> None:
    """There are zeros, and no errors."""
    empty = await look(store)
    assert empty == Vitals(NOW, leased={"attempt": 0, "compaction": 0, "message": 0})


async def test_runs_that_were_announced_are_running_silent_or_mute(store: SqlStore) -> None:
    """Of the others nobody will say that they have ended, so that their silence says nothing."""
    for job, last in (("prints", NOW - 5), ("went-silent", NOW - 700), ("hangs-for-days", NOW - 90_000)):
        await store.logs.append([append(await launch(store, job, NOW - 95_000), at=last)])
    await store.logs.append([append(AttemptKey("unannounced"), at=NOW - 700)])
    await launch(store, "never-printed", NOW - 800)
    await launch(store, "just-began", NOW - 100)
    await store.jobs.register(Job("placed", nodes=("gpu-9",), created=NOW - 900))
    seen = await look(store)
    assert (seen.newest_line, seen.running, seen.together) == (NOW - 5, 2, 1)
    assert seen.silent == Waiting(1, NOW - 700, ("went-silent",))
    assert seen.mute == Waiting(2, NOW - 900, ("placed", "never-printed"))


async def test_an_end_is_no_silence(store: SqlStore) -> None:
    """An attempt that ended is neither silent nor mute, and its last line still counts as heard."""
    key = await launch(store, "done", NOW - 5000)
    await store.logs.append([append(key, at=NOW - 4000)])
    await store.jobs.add_event(key, Event(EventKind.EXIT, NOW - 3999, code=0))
    mute = await launch(store, "done-mute", NOW - 5000)
    await store.jobs.add_event(mute, Event(EventKind.EXIT, NOW - 3999, code=0))
    seen = await look(store)
    assert (seen.newest_line, seen.running, seen.silent, seen.mute) == (NOW - 4000, 0, Waiting(), Waiting())


async def test_logs_of_nodes_are_no_jobs(store: SqlStore) -> None:
    """They are known by cluster and node, with their newest line; nodes of runs that print are busy."""
    for hour, at in ((277, NOW - 3000), (278, NOW - 40)):
        log = AttemptKey(node_log_id("east", "gpu-4.example.org"), hour)
        await store.logs.append([append(log, at=at, stream=Stream("kernel", "gpu-4"))])
    await store.logs.append(
        [append(AttemptKey(node_log_id("", "gpu-5"), 278), at=NOW - 50, stream=Stream("syslog", "gpu-5"))]
    )
    await store.jobs.register(Job("job", nodes=("gpu-4.example.org", "10.0.0.7"), created=NOW - 100))
    await store.logs.append([append(AttemptKey("job"), at=NOW - 3)])
    seen = await look(store)
    assert seen.node_logs == {"east": {"gpu-4": NOW - 40}, "default": {"gpu-5": NOW - 50}}
    assert seen.busy == {"gpu-4", "10.0.0.7"}
    assert (seen.newest_line, seen.running) == (NOW - 3, 1)


async def test_what_waits_for_a_verdict_waits_since_its_newest_reason(store: SqlStore) -> None:
    """An attempt with a fatal line waits until its verdict is stored, and is leased while a worker has it."""
    await store.logs.append([append(AttemptKey("fails"), at=NOW - 400, fatal=True)])
    assert (await look(store)).due == Waiting(1, NOW - 400, ("fails",))
    (claim,) = await store.work.claim_attempts(NOW, TIMING, 60.0, 9)
    assert (await look(store)).leased["attempt"] == 1
    await store.work.save_diagnosis(claim, record("d1", claim), None, [])
    seen = await look(store)
    assert (seen.due, seen.leased["attempt"]) == (Waiting(), 0)


async def test_messages_that_were_tried_in_vain_are_told_apart(store: SqlStore) -> None:
    """One that nobody has tried is due; one that failed is undelivered until it is sent."""
    await store.outbox.add(replace(message("first"), created=NOW - 50))
    seen = await look(store)
    assert (seen.messages, seen.undelivered) == (Waiting(1, NOW - 50, ("slack",)), Waiting())
    (due,) = await store.outbox.claim(NOW, 90.0, 9)
    await store.outbox.record_delivery(due, "pending", retry_at=NOW + 60, error="no")
    seen = await look(store)
    assert (seen.messages, seen.undelivered) == (Waiting(), Waiting(1, NOW - 50, ("slack",)))


async def test_the_last_request_of_each_agent_is_kept(store: SqlStore) -> None:
    """A cluster has one row; an agent that was last seen more than a week ago is gone."""
    await store.vitals.record_agent("east", "slurm@old", NOW - 300)
    await store.vitals.record_agent("east", "slurm@new", NOW - 20)
    await store.vitals.record_agent("torn-down", "slurm@gone", NOW - 8 * 86_400)
    assert (await look(store)).agents == (AgentSeen("east", "slurm@new", NOW - 20),)


async def test_a_blind_spot_is_told_by_whoever_stores_it_first(store: SqlStore, second: SqlStore) -> None:
    """Of two replicas one begins it and one ends it, and only what the winner says is sent."""
    assert await store.vitals.begin_blind_spot(SPOT, [message("begun")]) is True
    assert await second.vitals.begin_blind_spot(replace(SPOT, since=NOW), [message("begun-too")]) is False
    assert await second.vitals.blind_spots() == [SPOT]
    assert await second.vitals.end_blind_spot(SPOT, [message("ended")]) is True
    assert await store.vitals.end_blind_spot(SPOT, [message("ended-too")]) is False
    assert await store.vitals.blind_spots() == []
    assert {stored.message.key for stored in await store.outbox.messages()} == {"begun", "ended"}


@pytest.mark.parametrize("other", [{"subject": "west"}, {"kind": BlindSpotKind.NODE_LOGS_STOPPED}])
async def test_blind_spots_differ_in_kind_and_subject(store: SqlStore, other: dict[str, object]) -> None:
    """Each cluster has its own."""
    assert await store.vitals.begin_blind_spot(SPOT, [])
    assert await store.vitals.begin_blind_spot(replace(SPOT, **other), [])  # type: ignore[arg-type]
    assert len(await store.vitals.blind_spots()) == 2
