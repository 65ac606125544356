"""Contract of the work store: when an attempt is due, who holds it, what a save leaves."""

import asyncio
from dataclasses import replace

import pytest

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.model import AttemptKey, Event, EventKind, EvidenceKind, RuntimeFile
from diagnoser.model.errors import Conflict, DiagnoserError
from diagnoser.model.queries import DiagnosisFilter
from diagnoser.model.work import Claim
from tests.contract.records import KEY, OUT, TIMING, append, claimed, diagnosis, outbox_message, plan, record, the_claim

EVERYTHING = DiagnosisFilter(current_only=False)


async def more(store: SqlStore, at: float, fatal: bool = False) -> None:
    """Lines for the attempt, after those that are there."""
    await store.logs.append([append(at=at, fatal=fatal, read=(await store.logs.cursors([KEY]))[KEY].get(OUT))])


async def end(store: SqlStore, at: float) -> None:
    await store.jobs.add_event(KEY, Event(EventKind.EXIT, at, code=1))


async def saved(store: SqlStore, claim: Claim, id: str = "01", created: float = 200.0) -> None:
    await store.work.save_diagnosis(claim, record(id, claim, created=created), None, [])


async def is_due(store: SqlStore, now: float) -> bool:
    """Whether a claim at ``now`` gets the attempt; a claim that does is given back by a lease of no length."""
    return bool(await claimed(store, now, lease=0.0))


async def test_a_running_attempt_is_never_due(store: SqlStore) -> None:
    """Without an end or a fatal line there is nothing to diagnose."""
    await more(store, 100.0)
    assert not await is_due(store, 1e9)


async def test_an_ended_attempt_is_due_after_the_grace(store: SqlStore) -> None:
    """Late lines get the grace period to arrive."""
    await more(store, 100.0)
    await end(store, 110.0)
    assert not await is_due(store, 114.9)
    assert await is_due(store, 115.0)


async def test_late_lines_move_the_grace(store: SqlStore) -> None:
    """The grace counts from the later of the end and the last line."""
    await end(store, 110.0)
    await more(store, 113.0)
    assert not await is_due(store, 117.9)
    assert await is_due(store, 118.0)


async def test_an_end_after_a_fatal_line_needs_only_a_moment_of_quiet(store: SqlStore) -> None:
    """What matters is there already. News after the verdict wait for the whole grace again."""
    await more(store, 109.0, fatal=True)
    await end(store, 110.0)
    assert (await store.work.next_end(TIMING), await is_due(store, 111.9)) == (112.0, False)
    await more(store, 111.0)
    assert (await store.work.next_end(TIMING), await is_due(store, 112.9)) == (113.0, False)
    (claim,) = await claimed(store, 113.0)
    assert await store.work.next_end(TIMING) is None
    await saved(store, claim, created=113.0)
    assert await store.work.next_end(TIMING) is None
    await more(store, 120.0)
    assert (await store.work.next_end(TIMING), await is_due(store, 124.9)) == (125.0, False)
    assert await is_due(store, 125.0)


async def test_lines_that_never_stop_do_not_hide_an_end(store: SqlStore) -> None:
    """After the longest wait an ended attempt is due even when lines still come."""
    await end(store, 110.0)
    for at in range(112, 240, 4):
        await more(store, float(at))
    assert not await is_due(store, 229.9)
    assert await is_due(store, 236.1)


async def test_a_fatal_line_is_due_when_the_log_is_quiet(store: SqlStore) -> None:
    """The settle time counts from the last line, not from the fatal one."""
    await more(store, 100.0, fatal=True)
    await more(store, 110.0)
    assert not await is_due(store, 129.9)
    assert await is_due(store, 130.0)


async def test_a_fatal_line_in_a_log_that_never_stops_is_due_at_the_longest_wait(store: SqlStore) -> None:
    """Other ranks that keep printing cannot put a diagnosis off for ever."""
    for at in range(100, 230, 10):
        await more(store, float(at), fatal=at == 100)
    assert not await is_due(store, 219.9)
    assert await is_due(store, 220.0)


async def test_a_claim_says_what_is_known(store: SqlStore) -> None:
    """A claim carries job, events and the revision that it read."""
    await more(store, 100.0)
    await end(store, 110.0)
    claim = await the_claim(store)
    assert claim.attempt.key == KEY
    assert claim.attempt.revision == 2
    assert claim.attempt.events == (Event(EventKind.EXIT, 110.0, code=1),)
    assert (claim.job.id, claim.tries) == (KEY.job, 1)


async def test_workers_that_claim_at_once_share_the_work(store: SqlStore, second: SqlStore) -> None:
    """No attempt is held by two workers, and none is left over."""
    keys = [AttemptKey(f"job-{number}") for number in range(12)]
    await store.logs.append([append(key, fatal=True) for key in keys])
    rounds = await asyncio.gather(*(claimed(one, limit=5) for one in (store, second, store, second)))
    held = [claim.attempt.key for claims in rounds for claim in claims]
    assert sorted(held) == sorted(keys)


async def test_a_claimed_attempt_is_free_again_when_its_lease_ends(store: SqlStore) -> None:
    """A worker that died is replaced, and what it held cannot be saved any more."""
    await more(store, 100.0, fatal=True)
    (dead,) = await claimed(store, 1000.0, lease=60.0)
    assert await claimed(store, 1059.9) == []
    (alive,) = await claimed(store, 1060.0)
    assert alive.tries == 2
    with pytest.raises(Conflict):
        await saved(store, dead)
    await saved(store, alive)
    assert len(await store.diagnoses.page(EVERYTHING, "", 10)) == 1


async def test_an_extended_lease_holds_longer(store: SqlStore) -> None:
    """A lease can be moved by who holds it, and by nobody else."""
    await more(store, 100.0, fatal=True)
    (claim,) = await claimed(store, 1000.0, lease=60.0)
    await store.work.extend(claim, 1200.0)
    assert await claimed(store, 1199.0) == []
    (other,) = await claimed(store, 1200.0)
    with pytest.raises(Conflict):
        await store.work.extend(claim, 9999.0)
    await store.work.extend(other, 1300.0)


async def test_a_saved_attempt_is_not_due_again(store: SqlStore) -> None:
    """A diagnosis covers the revision that it read, and a second save with the same claim is refused."""
    await more(store, 100.0, fatal=True)
    claim = await the_claim(store)
    await saved(store, claim)
    assert not await is_due(store, 1e9)
    assert (await store.jobs.attempts(KEY.job))[0].diagnosed == 1
    with pytest.raises(Conflict):
        await saved(store, claim, "02")


async def test_lines_that_came_during_the_diagnosis_make_it_due_again(store: SqlStore) -> None:
    """What the worker did not read is diagnosed next, after the log has settled anew."""
    await more(store, 100.0, fatal=True)
    claim = await the_claim(store, 150.0)
    await more(store, 151.0)
    await saved(store, claim, created=152.0)
    assert not await is_due(store, 171.9)
    assert await is_due(store, 172.0)


async def test_an_old_fatal_line_does_not_make_each_new_line_due_at_once(store: SqlStore) -> None:
    """After a diagnosis the waits start over with the first news."""
    await more(store, 100.0, fatal=True)
    await saved(store, await the_claim(store, 150.0), created=150.0)
    await more(store, 5000.0)
    assert not await is_due(store, 5019.9)
    assert await is_due(store, 5020.0)


async def test_a_later_diagnosis_takes_the_place_of_the_earlier(store: SqlStore) -> None:
    """One diagnosis of an attempt is current: the last one saved."""
    await more(store, 100.0, fatal=True)
    await saved(store, await the_claim(store), "01")
    await more(store, 300.0)
    await saved(store, await the_claim(store), "02")
    found = await store.diagnoses.page(EVERYTHING, "", 10)
    assert [(one.id, one.revision, one.current) for one in found] == [("02", 2, True), ("01", 1, False)]


async def test_a_save_stores_diagnosis_plan_and_effects(store: SqlStore) -> None:
    """All three are there after the save, and the diagnosis shows its plan."""
    await more(store, 100.0, fatal=True)
    claim = await the_claim(store)
    await store.work.save_diagnosis(claim, record("01", claim), plan(), [outbox_message("a"), outbox_message("b")])
    found = await store.diagnoses.find("01")
    assert found is not None
    assert found == replace(record("01", claim), plan=plan())
    assert [one.message.key for one in await store.outbox.messages()] == ["a", "b"]


async def test_a_save_that_fails_at_its_last_row_leaves_nothing(store: SqlStore) -> None:
    """Diagnosis, plan, messages and the end of the lease are one transaction."""
    await more(store, 100.0, fatal=True)
    claim = await the_claim(store)
    unstorable = replace(outbox_message("b"), target="\udcff")
    with pytest.raises((DiagnoserError, ValueError)):
        await store.work.save_diagnosis(claim, record("01", claim), plan(), [outbox_message("a"), unstorable])
    assert await store.diagnoses.page(EVERYTHING, "", 10) == []
    assert await store.outbox.messages() == []
    assert (await store.jobs.attempts(KEY.job))[0].diagnosed == 0
    await store.work.save_diagnosis(claim, record("01", claim), plan(), [outbox_message("a")])


async def test_a_plan_and_an_effect_that_exist_are_left_as_they_are(store: SqlStore) -> None:
    """What was decided once is not decided again: the second diagnosis shows the first plan."""
    await more(store, 100.0, fatal=True)
    claim = await the_claim(store)
    await store.work.save_diagnosis(claim, record("01", claim), plan(id="plan-1"), [outbox_message(created=200.0)])
    (sent,) = await store.outbox.claim(300.0, 60.0, 5)
    await store.outbox.record_delivery(sent, "sent")
    await more(store, 300.0)
    again = await the_claim(store)
    await store.work.save_diagnosis(again, record("02", again), plan(id="plan-2"), [outbox_message(created=400.0)])
    found = await store.diagnoses.find("02")
    assert found is not None and found.plan is not None and found.plan.id == "plan-1"
    (only,) = await store.outbox.messages()
    assert (only.state, only.message.created) == ("sent", 200.0)


async def test_a_released_attempt_waits_for_news(store: SqlStore) -> None:
    """A fatal mark that proved harmless is taken back, and a later one counts."""
    await more(store, 100.0, fatal=True)
    await store.work.release(await the_claim(store))
    assert not await is_due(store, 1e9)
    await more(store, 2000.0, fatal=True)
    assert (await store.jobs.attempts(KEY.job))[0].fatal == 2000.0
    assert await is_due(store, 2020.0)


async def test_a_fatal_line_during_the_diagnosis_survives_the_release(store: SqlStore) -> None:
    """Only the marks that the worker has seen are taken back."""
    await more(store, 100.0, fatal=True)
    claim = await the_claim(store, 150.0)
    await more(store, 151.0, fatal=True)
    await store.work.release(claim)
    assert await is_due(store, 171.0)


async def test_an_end_during_the_diagnosis_survives_the_release(store: SqlStore) -> None:
    """An attempt that ended meanwhile is diagnosed after its grace."""
    await more(store, 100.0, fatal=True)
    claim = await the_claim(store, 150.0)
    await end(store, 151.0)
    await store.work.release(claim)
    assert await is_due(store, 156.0)


async def test_a_release_without_the_lease_changes_nothing(store: SqlStore) -> None:
    """A worker that was overtaken cannot take marks back."""
    await more(store, 100.0, fatal=True)
    (dead,) = await claimed(store, 1000.0, lease=1.0)
    (alive,) = await claimed(store, 1001.0)
    await store.work.release(dead)
    assert (await store.jobs.attempts(KEY.job))[0].fatal == 100.0
    await saved(store, alive)


async def test_a_better_diagnosis_takes_the_place_of_the_current_one(store: SqlStore) -> None:
    """The replaced one stays readable, and messages of the better one are stored with it."""
    await more(store, 100.0, fatal=True)
    claim = await the_claim(store)
    await saved(store, claim, "01")
    better = record("02", claim, diagnosis("the model saw more"))
    assert await store.work.replace_diagnosis("01", better, plan(), [outbox_message("late")])
    found = await store.diagnoses.page(EVERYTHING, "", 10)
    assert [(one.id, one.current) for one in found] == [("02", True), ("01", False)]
    assert [one.message.key for one in await store.outbox.messages()] == ["late"]


async def test_a_better_diagnosis_that_comes_too_late_stores_nothing(store: SqlStore) -> None:
    """When newer lines were diagnosed meanwhile, the enrichment of the older revision is dropped."""
    await more(store, 100.0, fatal=True)
    claim = await the_claim(store)
    await saved(store, claim, "01")
    await more(store, 300.0)
    await saved(store, await the_claim(store), "02")
    assert not await store.work.replace_diagnosis("01", record("03", claim), plan(), [outbox_message("late")])
    assert [one.id for one in await store.diagnoses.page(EVERYTHING, "", 10)] == ["02", "01"]
    assert await store.outbox.messages() == []


async def test_a_run_that_fell_silent_is_claimed_until_it_is_forgotten(store: SqlStore) -> None:
    """Not before its time, not twice at once, not once it ended or a day has passed."""
    await more(store, 1000.0)
    assert await store.work.claim_silent(1299.0, 300.0, 60.0, 5) == []
    (claim,) = await store.work.claim_silent(1300.0, 300.0, 60.0, 5)
    assert claim.attempt.key == KEY
    assert await store.work.claim_silent(1301.0, 300.0, 60.0, 5) == []
    await store.work.release(claim, until=1900.0)
    assert await store.work.claim_silent(1899.0, 300.0, 60.0, 5) == []
    assert len(await store.work.claim_silent(1900.0, 300.0, 0.0, 5)) == 1
    assert await store.work.claim_silent(90_000.0, 300.0, 60.0, 5) == []


async def test_the_next_silence_is_known_beforehand(store: SqlStore) -> None:
    """When a run will have been silent for long enough is the moment from which it is claimed: after its patience,
    where it was put off until, and at once when dumps of it have come. One that somebody claimed is none."""

    async def silence(now: float) -> float | None:
        return await store.work.next_silence(now, 15.0, 2.0)

    await more(store, 1000.0)
    assert (await silence(1012.9), await silence(1013.0)) == (None, 1015.0)
    (claim,) = await store.work.claim_silent(1015.0, 15.0, 60.0, 5)
    assert await silence(1015.0) is None
    await store.work.release(claim, until=1030.0, patience=40.0)
    assert (await silence(1020.0), await silence(1029.0)) == (None, 1030.0)
    await more(store, 1100.0)
    assert (await silence(1137.0), await silence(1139.0)) == (None, 1140.0)
    dump = RuntimeFile(EvidenceKind.STACKS, b"dump", rank=0, received=1142.0)
    await store.evidence.add_runtime_files(KEY, [dump])
    assert await silence(1142.0) == 1140.0
    assert await silence(90_000.0) is None


async def test_a_new_silence_is_looked_at_before_the_old_one_would_be(store: SqlStore) -> None:
    """What was put off for an evaluation does not put off what comes after it."""
    await more(store, 1000.0)
    (claim,) = await store.work.claim_silent(1015.0, 15.0, 60.0, 5)
    await store.work.release(claim, until=2000.0)
    assert await store.work.claim_silent(1990.0, 15.0, 60.0, 5) == []
    await more(store, 1060.0)
    assert await store.work.claim_silent(1074.0, 15.0, 60.0, 5) == []
    assert len(await store.work.claim_silent(1075.0, 15.0, 60.0, 5)) == 1


async def test_lines_that_come_during_a_look_begin_a_new_silence(store: SqlStore) -> None:
    """Whoever looked did not see them; until then nobody else may claim the attempt."""
    await more(store, 1000.0)
    (claim,) = await store.work.claim_silent(1015.0, 15.0, 60.0, 5)
    await more(store, 1020.0)
    assert await store.work.claim_silent(1040.0, 15.0, 60.0, 5) == []
    await store.work.release(claim, until=9000.0)
    assert len(await store.work.claim_silent(1040.0, 15.0, 60.0, 5)) == 1


async def test_a_run_is_not_looked_at_within_its_own_patience(store: SqlStore) -> None:
    """One that prints each minute is left alone, and keeps its patience when nothing new is said of it."""
    await more(store, 1000.0)
    (claim,) = await store.work.claim_silent(1015.0, 15.0, 60.0, 5)
    assert claim.patience == 0.0
    await store.work.release(claim, until=1180.0, patience=180.0)
    await more(store, 1100.0)
    assert await store.work.claim_silent(1279.0, 15.0, 60.0, 5) == []
    (claim,) = await store.work.claim_silent(1280.0, 15.0, 60.0, 5)
    assert claim.patience == 180.0
    await store.work.release(claim, until=1300.0)
    await more(store, 1310.0)
    assert await store.work.claim_silent(1489.0, 15.0, 60.0, 5) == []


async def test_a_look_at_silence_does_not_delay_an_end(store: SqlStore) -> None:
    """What was released until later is due as soon as it ends."""
    await more(store, 1000.0)
    (claim,) = await store.work.claim_silent(1300.0, 300.0, 60.0, 5)
    await store.work.release(claim, until=5000.0)
    await end(store, 1310.0)
    assert await is_due(store, 1316.0)
