"""Contract of the job store."""

import asyncio
from dataclasses import replace

import pytest

from diagnoser.adapters.sql import codec, jobs
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.localize import checkpoints
from diagnoser.model import AttemptKey, CheckpointPhase, Event, EventKind, Job, Provenance
from tests.contract.records import KEY, append

EVENTS_MAX, KEPT = 60, 10
"""A tenth of what an attempt may have: the test writes one event after the other."""
EXIT = Event(EventKind.EXIT, 300.0, code=137, signal=9, node="gpu-004", rank=3, reason="oom-kill")


async def test_a_job_comes_back_as_it_was_registered(store: SqlStore) -> None:
    """Every field of a job survives, mappings with number keys too."""
    job = Job(
        "llama-70b", "east", "pretrain", ("n1", "n2"), {0: "n1", 8: "n2"}, "megatron", "/ckpt", {"team": "nlp"}, 50.0
    )
    assert await store.jobs.register(job) == job
    assert await store.jobs.find("llama-70b") == job
    assert await store.jobs.find("someone-else") is None


async def test_given_fields_win_and_empty_ones_leave_what_is_stored(store: SqlStore) -> None:
    """A job is completed by later registrations, and stays as old as it was."""
    await store.jobs.register(Job("llama-70b", cluster="east", framework="megatron", created=50.0))
    merged = await store.jobs.register(Job("llama-70b", framework="nemo", nodes=("n1",), created=90.0))
    assert merged == Job("llama-70b", cluster="east", framework="nemo", nodes=("n1",), created=50.0)
    assert await store.jobs.find("llama-70b") == merged


async def test_replicas_that_complete_one_job_at_once_lose_nothing(store: SqlStore, second: SqlStore) -> None:
    """Registrations of different fields at the same time all arrive."""
    await asyncio.gather(
        store.jobs.register(Job("llama-70b", cluster="east", created=50.0)),
        second.jobs.register(Job("llama-70b", framework="nemo", created=50.0)),
        store.jobs.register(Job("llama-70b", checkpoint_dir="/ckpt", created=50.0)),
    )
    assert await store.jobs.find("llama-70b") == Job(
        "llama-70b", cluster="east", framework="nemo", checkpoint_dir="/ckpt", created=50.0
    )


async def test_logs_do_not_empty_a_registered_job(store: SqlStore) -> None:
    """Lines for a known job leave its registration alone."""
    await store.jobs.register(Job("llama-70b", cluster="east", created=50.0))
    await store.logs.append([append()])
    job = await store.jobs.find("llama-70b")
    assert job is not None and job.cluster == "east"


async def test_an_event_creates_job_and_attempt_and_ends_it(store: SqlStore) -> None:
    """An exit for an unknown job is stored with all its fields."""
    await store.jobs.add_event(KEY, EXIT)
    (attempt,) = await store.jobs.attempts(KEY.job)
    assert attempt.events == (EXIT,)
    assert (attempt.opened, attempt.ended, attempt.revision) == (300.0, 300.0, 1)
    assert await store.jobs.find(KEY.job) is not None


async def test_an_equal_event_counts_once(store: SqlStore, second: SqlStore) -> None:
    """A launcher that repeats its report changes nothing."""
    await asyncio.gather(store.jobs.add_event(KEY, EXIT), second.jobs.add_event(KEY, EXIT))
    await store.jobs.add_event(KEY, EXIT)
    (attempt,) = await store.jobs.attempts(KEY.job)
    assert attempt.events == (EXIT,)
    assert attempt.revision == 1


async def test_a_start_counts_once(store: SqlStore) -> None:
    """An agent whose report was not answered reports the start again, maybe with another time; that a job tells of an
    earlier start takes nothing from what its scheduler says."""
    from_job = Event(EventKind.STARTED, 90.0, provenance=Provenance.JOB)
    start = Event(EventKind.STARTED, 100.0, provenance=Provenance.SCHEDULER)
    for event in (from_job, start, replace(start, time=101.0)):
        await store.jobs.add_event(KEY, event)
    (attempt,) = await store.jobs.attempts(KEY.job)
    assert attempt.events == (from_job, start)
    assert attempt.revision == 2


async def test_events_come_in_the_order_of_their_time(store: SqlStore) -> None:
    """Reports that arrive late are put where they belong; the first end stays the end."""
    checkpoint = Event(EventKind.CHECKPOINT, 200.0, step=1200, path="/ckpt/1200")
    later = Event(EventKind.CANCELLED, 310.0)
    for event in (EXIT, later, checkpoint):
        await store.jobs.add_event(KEY, event)
    (attempt,) = await store.jobs.attempts(KEY.job)
    assert attempt.events == (checkpoint, EXIT, later)
    assert (attempt.ended, attempt.revision) == (300.0, 3)


@pytest.mark.parametrize("kind", [kind for kind in EventKind if kind.value in ("exit", "cancelled", "preempted")])
async def test_each_ending_event_ends_the_attempt(store: SqlStore, kind: EventKind) -> None:
    """Exit, cancellation and preemption are ends."""
    await store.jobs.add_event(KEY, Event(kind, 300.0))
    assert (await store.jobs.attempts(KEY.job))[0].ended == 300.0


async def test_a_heartbeat_is_no_news(store: SqlStore) -> None:
    """A heartbeat is stored and does not make an attempt dirty, or each one would cause a diagnosis."""
    await store.jobs.add_event(KEY, Event(EventKind.HEARTBEAT, 300.0))
    (attempt,) = await store.jobs.attempts(KEY.job)
    assert len(attempt.events) == 1
    assert attempt.revision == 0


async def test_attempts_of_a_job_come_in_order(store: SqlStore) -> None:
    """Each attempt has its own events."""
    await store.jobs.add_event(AttemptKey("llama-70b", 2), EXIT)
    await store.logs.append([append(AttemptKey("llama-70b", 1))])
    found = await store.jobs.attempts("llama-70b")
    assert [(attempt.key.number, len(attempt.events)) for attempt in found] == [(1, 0), (2, 1)]


def saved(step: int, phase: CheckpointPhase | None, time: float = 200.0, path: str = "") -> Event:
    return Event(EventKind.CHECKPOINT, time, step=step, path=path or f"/ckpt/{step}", phase=phase, finite=True)


async def test_a_phase_of_a_checkpoint_counts_once(store: SqlStore, second: SqlStore) -> None:
    """Whenever it is reported again, from both sides at once too; another phase, step or path is another event."""
    first = saved(100, CheckpointPhase.DURABLE)
    await asyncio.gather(store.jobs.add_event(KEY, first), second.jobs.add_event(KEY, first))
    assert not await store.jobs.add_event(KEY, saved(100, CheckpointPhase.DURABLE, 250.0))
    others = [
        saved(100, CheckpointPhase.VERIFIED, 210.0),
        saved(101, CheckpointPhase.DURABLE, 220.0),
        saved(100, CheckpointPhase.DURABLE, 230.0, path="/other\0path"),
    ]
    assert [await store.jobs.add_event(KEY, event) for event in others] == [True, True, True]
    (attempt,) = await store.jobs.attempts(KEY.job)
    assert attempt.events == (first, *others)
    assert attempt.revision == 4


async def test_a_checkpoint_that_is_only_staged_is_no_news(store: SqlStore) -> None:
    """It is no checkpoint yet that a diagnosis could choose."""
    await store.jobs.add_event(KEY, saved(100, CheckpointPhase.STAGED))
    (attempt,) = await store.jobs.attempts(KEY.job)
    assert (len(attempt.events), attempt.revision) == (1, 0)


async def test_the_checkpoints_of_an_attempt_are_bounded(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go, other events and the newest verified checkpoint stay, however old it is."""
    for module in (checkpoints, jobs):
        monkeypatch.setattr(module, "EVENTS_MAX", EVENTS_MAX)
    monkeypatch.setattr(checkpoints, "KEPT", KEPT)
    await store.jobs.add_event(KEY, EXIT)
    await store.jobs.add_event(KEY, saved(0, CheckpointPhase.VERIFIED, 1.0))
    for step in range(1, EVENTS_MAX + 1):
        await store.jobs.add_event(KEY, saved(step, CheckpointPhase.DURABLE, 300.0 + step))
    (attempt,) = await store.jobs.attempts(KEY.job)
    steps = [event.step for event in attempt.events if event.kind is EventKind.CHECKPOINT]
    assert steps == [0, *range(EVENTS_MAX + 1 - KEPT, EVENTS_MAX + 1)]
    assert EXIT in attempt.events


async def test_the_checkpoints_of_the_attempts_before_are_found(store: SqlStore) -> None:
    """Those of this attempt and of other jobs are not, nor other events."""
    for number, event in ((1, saved(10, None)), (2, saved(20, CheckpointPhase.VERIFIED)), (3, saved(30, None))):
        await store.jobs.add_event(AttemptKey(KEY.job, number), event)
        await store.jobs.add_event(AttemptKey(KEY.job, number), EXIT)
        await store.jobs.add_event(AttemptKey(f"{KEY.job}-2", number), event)
    found = await store.jobs.checkpoint_events(AttemptKey(KEY.job, 3))
    assert found == [(saved(10, None),), (saved(20, CheckpointPhase.VERIFIED),)]
    assert await store.jobs.checkpoint_events(AttemptKey(KEY.job, 1)) == []


def test_an_event_that_an_earlier_version_stored_is_the_same_today() -> None:
    """A launcher that repeats its report after an upgrade is not heard twice."""
    row = codec.event_row(KEY, EXIT)
    assert "phase" not in row["body"] and "just_in_time" not in row["body"]
    assert row["digest"] == "00984680c1f05807527afbb36f7d95c5471519f05bc12e6a7d0034963b02694a"
