"""Running attempts are watched: one whose loss diverged is handed over once, and people are told of one that slows."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import update

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.adapters.sql.tables import attempts
from diagnoser.adapters.wake_signals import LocalWakeSignal
from diagnoser.config.alerting import load_table
from diagnoser.config.settings import Settings
from diagnoser.diagnosis.evidence_collection import EvidenceCollection
from diagnoser.model import (
    LOSS_SERIES,
    Advice,
    AttemptKey,
    Diagnosis,
    EvidenceKind,
    Job,
    LineBlock,
    PlanState,
    Provenance,
    RequestReason,
    RuntimeFile,
    Stream,
)
from diagnoser.model.alerts import AlertKind, decode
from diagnoser.model.queries import DiagnosisFilter
from diagnoser.model.taxonomy import Action, FailureType, Outcome
from diagnoser.notifications.routing import AlertRouting
from diagnoser.worker.metric_watch import MetricWatch
from diagnoser.worker.straggler_looks import StragglerLooks
from tests.databases import sqlite_store
from tests.rule_files import ANALYZER
from tests.serving import NOW, plan_commands, store_log, verdict
from tests.unit.test_hang_activity import MAIN, WAITING

RUN = AttemptKey("pretrain-7", 1)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = await sqlite_store(tmp_path / "test.db")
    yield opened
    await opened.close()


def watch(store: SqlStore, clock: Callable[[], float] = lambda: NOW) -> MetricWatch:
    planner = plan_commands(
        alerts=AlertRouting(load_table(Settings()), ("slack",)), base_url="https://d.example"
    ).planner
    ids = count(1)
    looks = StragglerLooks(store, EvidenceCollection(store.evidence, clock, lambda _: f"{next(ids):026}"), clock)
    return MetricWatch(store, ANALYZER.compressor, planner, clock, LocalWakeSignal(), LocalWakeSignal(), looks)


async def printed(
    store: SqlStore, first: int, losses: Sequence[float], seconds: float = 2.0, received: float = NOW
) -> None:
    lines = [
        f"step {step} loss {loss:.4f} step_time {seconds + step % 3 / 50:.3f}\n"
        for step, loss in enumerate(losses, first)
    ]
    await store_log(store, RUN, LineBlock(Stream(), "".join(lines).encode(), first, received=received))


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


async def test_a_run_that_prints_without_a_step_is_handed_over_ever_more_rarely(store: SqlStore) -> None:
    """What a monitor prints beside the training keeps no hang from being looked at; a step begins the count anew."""
    clock, handed, number = [NOW], [], 0
    seen = watch(store, lambda: clock[0])
    for second in range(0, 400, 10):
        number, clock[0] = number + 1, NOW + second
        text = f"step {second} loss 2.0\n" if second in (0, 10, 20, 310) else "[gpu-monitor] util 100%\n"
        await store_log(store, RUN, LineBlock(Stream(), text.encode(), number, received=clock[0]))
        await store.db.execute(update(attempts).values(last_line=clock[0]))
        await seen.step()
        if seen.take_still():
            handed.append(second)
    assert handed == [80, 110, 160, 230, 370]


async def test_a_run_that_prints_nothing_is_left_to_the_look_at_silent_runs(store: SqlStore) -> None:
    """It was handed on a minute after its last step where another line came after that: a second look at all of it."""
    clock = [NOW]
    seen = watch(store, lambda: clock[0])
    handed = []
    for second in (0, 2, 4, 30, *range(31, 100)):
        clock[0] = NOW + second
        if second <= 30:
            text = "saving\n" if second == 30 else f"step {second} loss 2.0\n"
            await store_log(store, RUN, LineBlock(Stream(), text.encode(), second, received=clock[0]))
            await store.db.execute(update(attempts).values(last_line=clock[0]))
        await seen.step()
        if seen.take_still():
            handed.append(second)
    assert handed == []


async def test_a_run_that_makes_steps_again_hangs_no_more(store: SqlStore) -> None:
    """Its verdict says when and does not count, its plan is withdrawn, people are told once; one step is too few."""
    clock = [NOW]
    seen = watch(store, lambda: clock[0])
    shown = []
    for step, seconds in enumerate((0, 2, 4, 6, 900, 900, 905, 910)):
        clock[0] = NOW + seconds
        text = f"step {step} loss 2.0\n"
        if step == 4:
            await save_hang(store, NOW + 600)
            text = "[gpu-monitor] util 100%\n"
        await store_log(store, RUN, LineBlock(Stream(), text.encode(), step + 1, received=clock[0]))
        await store.db.execute(update(attempts).values(last_line=clock[0]))
        await seen.step()
        current = await store.diagnoses.of_attempt(RUN)
        shown.append(current.diagnosis.outcome if current else None)
    assert shown == [None] * 4 + [Outcome.HUNG] * 2 + [None] * 2
    [hang] = await store.diagnoses.page(DiagnosisFilter(job=RUN.job, current_only=False), "", 9)
    assert hang.plan and hang.plan.state is PlanState.SUPERSEDED
    assert hang.diagnosis.notes[0].startswith("The run went on at ") and not await store.work.went_on(0.0)
    assert await store.incidents.of_diagnosis(hang.id) is None
    [alert] = [decode(entry.message.body) for entry in await store.outbox.messages()]
    assert (
        (alert.kind, alert.job) == (AlertKind.RECOVERED, RUN.job) and "went on at" in alert.title and not alert.action
    )


async def test_a_loss_that_came_back_is_no_failure_and_may_break_again(store: SqlStore) -> None:
    """A plan that rolls back was approved of a run that had rolled back by itself; ten good steps are too few."""
    clock = [NOW + 9.0]
    seen = watch(store, lambda: clock[0])
    await printed(store, 1, [2.0 + 0.01 * (step % 4) for step in range(60)])
    await printed(store, 61, [2100.0] * 6)
    await seen.step()
    diverged = verdict(
        FailureType.LOSS_DIVERGENCE, decided_by=LOSS_SERIES, recovery=Advice(Action.ROLLBACK_AND_RESUBMIT, "")
    )
    await save_running(store, NOW - 5.0, diverged)
    plans = []
    for first, losses in ((67, [2100.0, 2.1]), (69, [2.02] * 9), (78, [2.02] * 39), (117, [1800.0] * 6)):
        await printed(store, first, losses, received=NOW + first)
        await store.db.execute(update(attempts).values(last_line=NOW + first))
        clock[0] += 9.0
        await seen.step()
        [record] = await store.diagnoses.page(DiagnosisFilter(job=RUN.job, current_only=False), "", 9)
        plans.append(record.plan and record.plan.state)
        assert seen.take_diverged() == ([RUN] if first in (67, 117) else [])
    assert plans == [PlanState.ADVISED, PlanState.ADVISED, PlanState.SUPERSEDED, PlanState.SUPERSEDED]
    assert record.diagnosis.notes[0].startswith("The loss came back at ")


async def save_hang(store: SqlStore, now: float) -> None:
    """Store a verdict that a run hangs, with advice."""
    await save_running(
        store, now, verdict(FailureType.UNKNOWN, outcome=Outcome.HUNG, recovery=Advice(Action.NOTIFY_USER, ""))
    )


async def save_running(store: SqlStore, now: float, diagnosis: Diagnosis) -> None:
    """Store a verdict on a run that goes on, as a worker does."""
    [claim] = await store.work.claim_running(now, [RUN], 6.0)
    decision = plan_commands().planner.decide(claim, diagnosis, now)
    await store.work.save_diagnosis(claim, decision.record, decision.plan, (), decision.transition)


def taken(rank: int, cores: float = 1.0) -> list[RuntimeFile]:
    """A look of an agent at eight ranks, of which one computes while seven wait."""
    texts = dict.fromkeys(range(8), WAITING) | {rank: f"{MAIN}    forward (model.py:7)\n"}
    files = [RuntimeFile(EvidenceKind.STACKS, text.encode(), number, f"gpu-{number}") for number, text in texts.items()]
    work = json.dumps({"activity": {str(rank): {"cores": cores, "bytes": 0}}}).encode()
    files.append(RuntimeFile(EvidenceKind.ACTIVITY, work, node=f"gpu-{rank}"))
    return [replace(file, received=NOW, provenance=Provenance.RUNTIME) for file in files]


@pytest.mark.parametrize(
    ("computing", "alert"),
    [
        ([3, 3], ("straggler", "rank 3 on gpu-3 is a straggler: steps take 9.0 times as long as before since step 21")),
        ([1, 3, 3], ("straggler", "rank 3 on gpu-3 is a straggler: steps take 9.0 times as long as before")),
        ([1, 2, 3, 4], None),
        ([], None),
    ],
    ids=["straggler", "at the second look", "nobody", "no agent"],
)
async def test_the_rank_that_computes_in_two_looks_is_the_straggler(
    store: SqlStore, computing: Sequence[int], alert: tuple[str, str] | None
) -> None:
    """People are told once, and not where looks disagree or nobody answers; each replica asks for the same looks."""
    for step in range(1, 24):
        line = LineBlock(
            Stream(), f"step {step} loss 2.0\n".encode(), step, received=NOW + step + 8 * max(0, step - 20)
        )
        await store_log(store, RUN, line)
    clock = [NOW]
    watches = [watch(store, lambda: clock[0]), watch(store, lambda: clock[0])]
    for rank in computing:
        for seen in watches:
            await seen.step()
        [asked] = await store.evidence.claim_requests("default", NOW, 60.0, 0.0, 10)
        assert asked.reason is RequestReason.SLOWNESS
        await store.evidence.add_runtime_files(RUN, taken(rank))
        await store.evidence.finish_request(asked.id, "default", NOW, "stacks: 8")
        for seen in watches:
            await seen.step()
    if not computing:
        await watches[0].step()
        clock[0] += 61.0
        await watches[0].step()
    alerts = [decode(entry.message.body) for entry in await store.outbox.messages()]
    assert [told.type for told in alerts] == ([alert[0]] if alert else [])
    assert all(alert and alert[1] in told.title for told in alerts)


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


async def test_the_owner_is_told_once_of_a_contract_that_does_not_count(store: SqlStore) -> None:
    """It stops nothing: the run is watched as any other."""
    labels = {"contract": '{"relaunch": 1}'}
    await store.jobs.register(Job(RUN.job, labels=labels, registered=True, tenant="ida"), RUN.number)
    await printed(store, 1, [2.0] * 5)
    for seen in (watch(store), watch(store)):
        await seen.step()
    [message] = [entry.message for entry in await store.outbox.messages()]
    alert = decode(message.body)
    assert (alert.kind, alert.type, alert.owner) == (AlertKind.METRIC, "bad_contract", "ida")
    assert "there is no field 'relaunch'" in alert.title
