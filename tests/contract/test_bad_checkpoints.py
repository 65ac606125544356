"""A checkpoint is reported bad while executors claim the plan that goes back to it: one always sees the other."""

import asyncio
from dataclasses import replace
from functools import partial

from prometheus_client import CollectorRegistry

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.adapters.wake_signals import LocalWakeSignal
from diagnoser.model import (
    AttemptKey,
    CheckpointPhase,
    Event,
    EventKind,
    Mode,
    Plan,
    PlanReason,
    PlanState,
    Rollback,
    Step,
)
from diagnoser.model.errors import Conflict
from diagnoser.model.taxonomy import Action
from diagnoser.observability.metrics import Metrics
from diagnoser.planning.plan_service import PlanService
from diagnoser.recovery.plan_states import PlanReport
from diagnoser.recovery.policy import in_mode
from tests.contract.records import TIMING, append, claimed, plan, record
from tests.contract.test_plans import NOW, put
from tests.serving import plan_commands

JOBS = [f"job-{number:02}" for number in range(12)]


def service(store: SqlStore) -> PlanService:
    return PlanService(store, plan_commands(), Metrics(CollectorRegistry()), LocalWakeSignal())


def going_back(job: str, attempt: int = 1) -> Plan:
    made = in_mode(plan(AttemptKey(job, attempt), id=f"plan-{job}"), Mode.ACT)
    back = Rollback(f"/ckpt/{job}", 1000, verified=True)
    return replace(
        made, key=f"key-{job}", created=NOW, expires=NOW + 3600, cluster="east", nodes=(), rollback=back,
        action=Action.ROLLBACK_AND_RESUBMIT,
    )  # fmt: skip


async def report_bad(plans: PlanService, job: str, attempt: int = 1) -> None:
    """What the route of events does."""
    event = Event(
        EventKind.CHECKPOINT, NOW, step=1000, path=f"/ckpt/{job}", phase=CheckpointPhase.BAD, reason="a bit flipped"
    )
    await plans.store.jobs.add_event(AttemptKey(job, attempt), event)
    await plans.check_rollbacks(job, NOW)


async def test_no_launch_begins_after_its_checkpoint_was_reported_bad(store: SqlStore, second: SqlStore) -> None:
    """Executors on two replicas claim, ask and launch; reports come in before the claim, about the same time, or after
    the last question. Whoever asks after a report was answered refuses, and what nobody had claimed is held."""
    await put(store, *map(going_back, JOBS))
    taken, asked = ({job: asyncio.Event() for job in JOBS} for _ in range(2))
    answered, launched, refused = set[str](), set[str](), set[str]()

    async def reporter(number: int, job: str) -> None:
        if number % 3:
            await (taken, asked)[number % 3 - 1][job].wait()
        await report_bad(service((store, second)[number % 2]), job)
        answered.add(job)

    async def executor(name: str, plans: PlanService) -> None:
        while len(answered) < len(JOBS):
            await asyncio.sleep(0.001)
            mine = await plans.claim(name, "east", NOW)
            if mine is None:
                continue
            assert mine.lease is not None
            taken[mine.job].set()
            is_known = mine.job in answered
            seen = await plans.store.plans.find(mine.id)  # what an agent does before its first command
            asked[mine.job].set()
            assert seen is not None
            if seen.reason == PlanReason.BAD_CHECKPOINT:
                refused.add(mine.job)
                end = PlanReport(mine.lease.token, PlanState.NOT_REACHED, refused=PlanReason.BAD_CHECKPOINT)
            else:
                assert not is_known
                launched.add(mine.job)
                end = PlanReport(mine.lease.token, PlanState.REACHED, (Step("sbatch", 0),))
            await plans.change(mine.id, NOW, partial(plans.commands.report, report=end, now=NOW))

    services = [service(store), service(second)] * 2
    await asyncio.gather(
        *(reporter(number, job) for number, job in enumerate(JOBS)),
        *(executor(f"x{number}", plans) for number, plans in enumerate(services)),
    )
    assert launched >= set(JOBS[2::3])
    for job in JOBS:
        after = await store.plans.find(f"plan-{job}")
        assert after is not None
        if job in launched:
            assert after.state is PlanState.REACHED
        else:
            expected = PlanState.NOT_REACHED if job in refused else PlanState.HELD
            assert (after.state, after.reason) == (expected, PlanReason.BAD_CHECKPOINT)


async def test_a_plan_that_is_stored_while_the_report_comes_in_is_withdrawn(store: SqlStore, second: SqlStore) -> None:
    """The diagnosis was made before the report, of another attempt; its plan is saved before, after or meanwhile."""
    await store.logs.append([append(AttemptKey(job, 2), fatal=True) for job in JOBS])
    claims = {claim.attempt.key.job: claim for claim in await claimed(store, limit=100)}

    async def save(job: str) -> None:
        made, plans = going_back(job, 2), service(store)
        result = await store.work.save_diagnosis(claims[job], record(f"d-{job}", claims[job], created=NOW), made, [])
        assert result.plan is not None
        await plans.check_rollback(result.plan, NOW)

    await asyncio.gather(*map(save, JOBS), *(report_bad(service(second), job) for job in JOBS))
    for job in JOBS:
        after = await store.plans.find(f"plan-{job}")
        assert after is not None
        assert (after.state, after.reason) == (PlanState.HELD, PlanReason.BAD_CHECKPOINT)
        assert "a bit flipped" in after.history[-1].why
    due = await store.work.claim_attempts(NOW + 500.0, TIMING, 60.0, 100)
    assert {claim.attempt.key for claim in due} >= {AttemptKey(job, 2) for job in JOBS}


async def test_approving_and_reporting_at_once_never_sends_a_bad_checkpoint(store: SqlStore, second: SqlStore) -> None:
    """Whichever comes first, nobody can claim the plan afterwards."""
    await put(store, *(in_mode(going_back(job), Mode.APPROVE) for job in JOBS[:8]))

    async def approve(job: str) -> None:
        plans = service(second)
        try:
            await plans.change(f"plan-{job}", NOW, lambda plan: plans.commands.approve(plan, None, "maria", "", NOW))
        except Conflict:
            return

    await asyncio.gather(*(work for job in JOBS[:8] for work in (approve(job), report_bad(service(store), job))))
    assert {(await store.plans.find(f"plan-{job}")).state for job in JOBS[:8]} == {PlanState.HELD}  # type: ignore[union-attr]
    assert await service(store).claim("late", "east", NOW) is None


async def test_a_claim_that_finds_the_report_takes_the_plan_from_nobody_and_goes_on(store: SqlStore) -> None:
    """The process that took the report died before it looked at the plans: the next claim does, and gets another."""
    await put(store, going_back("job-00"), going_back("job-01"))
    event = Event(EventKind.CHECKPOINT, NOW, step=1000, path="/ckpt/job-00", phase=CheckpointPhase.BAD)
    await store.jobs.add_event(AttemptKey("job-00", 1), event)
    mine = await service(store).claim("slurm", "east", NOW)
    assert mine is not None and mine.job == "job-01"
    held = await store.plans.find("plan-job-00")
    assert held is not None
    assert (held.state, held.lease, held.reason) == (PlanState.HELD, None, PlanReason.BAD_CHECKPOINT)
