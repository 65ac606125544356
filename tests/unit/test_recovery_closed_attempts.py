"""When the matter of an attempt is closed: a person refused a plan, or the job ran again and completed."""

import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.adapters.wake_signals import LocalWakeSignal
from diagnoser.compress import AttemptLog
from diagnoser.model import (
    Advice,
    AttemptKey,
    Diagnosis,
    Event,
    EventKind,
    Facts,
    Job,
    Mode,
    Plan,
    PlanReason,
    PlanState,
    Step,
    TransitionResult,
)
from diagnoser.model.taxonomy import Action, Outcome
from diagnoser.planning.plan_service import PlanService
from diagnoser.recovery.plan_states import PlanReport
from tests.databases import sqlite_store
from tests.proofs import node_log
from tests.serving import ECC, OOM
from tests.thorough import THOROUGH
from tests.unit.test_recovery_flow import CORDON, NODE, Site
from tests.unit.test_recovery_guardrails import R, S, done, plan, settle, shipped_policy, stands

RESUBMIT = replace(ECC, recovery=Advice(Action.RESUBMIT, "transient_service"), nodes=())
CHECK = replace(ECC, recovery=Advice(Action.CHECK_AND_RESUBMIT, "infrastructure"))
ORDERS = 100 if THOROUGH else 10
CLEAN = replace(OOM, outcome=Outcome.COMPLETED, recovery=Advice(Action.NONE, "no_failure"), root_cause=None, nodes=())


class ManagedSite(Site):
    """A site with a person who decides and an executor that claims."""

    def __init__(self, store: SqlStore, mode: Mode = Mode.ACT) -> None:
        super().__init__(store, mode=mode, webhook=False)
        self.service = PlanService(store, self.commands, self.metrics, LocalWakeSignal())
        self.completed: set[int] = set()

    async def analyze(self, log: AttemptLog, facts: Facts) -> Diagnosis:
        return CLEAN if facts.attempt in self.completed else self.verdict

    async def plan_of(self, attempt: int = 1) -> Plan:
        """The newest plan of the attempt."""
        return [plan for plan in await self.plans() if plan.attempt == attempt][-1]

    async def wait_for_person(self) -> Plan:
        """A plan of attempt 1 that waits, also on a site that acts: the node check proved nothing."""
        self.verdict = CHECK
        await self.fail()
        claimed = await self.service.claim("slurm", "default", self.now)
        assert claimed is not None
        waits = replace(claimed, state=PlanState.WAITING, lease=None, nodes=(NODE,), reason=PlanReason.UNPROVEN)
        await self.change(claimed.id, waits)
        return waits

    async def change(self, id: str, after: Plan) -> None:
        await self.store.plans.change(id, lambda _: TransitionResult(after))

    async def decide(self, id: str, command: Callable[..., TransitionResult], **values: object) -> Plan:
        return await self.service.change(id, self.now, partial(command, now=self.now, **values))

    async def refuse(self, plan: Plan) -> None:
        await self.decide(plan.id, self.commands.refuse, by="ida", comment="the node is well")

    async def complete_again(self, attempt: int = 2, **event: object) -> None:
        """A later launch of the job ends well, as its scheduler says."""
        await self.store.jobs.register(Job("llm-7b", nodes=(NODE, "gpu-099"), created=1.0), attempt)
        if not event:
            self.completed.add(attempt)
        ended = Event(EventKind.EXIT, self.now, **{"code": 0, **event})  # type: ignore[arg-type]
        await self.store.jobs.add_event(AttemptKey("llm-7b", attempt), ended)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = await sqlite_store(tmp_path / "test.db")
    yield opened
    await opened.close()


@pytest.mark.parametrize("verdict", [CORDON, RESUBMIT], ids=["another action with proven nodes", "a plain launch"])
async def test_a_refusal_closes_its_attempt(store: SqlStore, verdict: object) -> None:
    """A later verdict of the same attempt, with proven nodes or another action, waits for a person; nobody can claim
    it, and a person may still approve it."""
    site = ManagedSite(store)
    await site.refuse(await site.wait_for_person())
    site.verdict = verdict  # type: ignore[assignment]
    await site.fail(reason="its node's log came late")
    later = await site.plan_of()
    assert (later.state, later.reason) == (PlanState.WAITING, PlanReason.ATTEMPT_CLOSED)
    assert "a person refused plan" in later.history[-1].why
    assert await site.service.claim("slurm", "default", site.now) is None
    record = await store.diagnoses.find(later.diagnosis)
    approved = await site.decide(later.id, site.commands.approve, record=record, by="ida", comment="yes")
    assert approved.state is PlanState.SENT
    assert await site.service.claim("slurm", "default", site.now) is not None


async def test_a_refusal_that_was_taken_back_leaves_the_matter_with_people(store: SqlStore) -> None:
    """The plan waits again; a later verdict that plans something else waits, too."""
    site = ManagedSite(store)
    refused = await site.wait_for_person()
    await site.refuse(refused)
    await site.decide(refused.id, site.commands.revoke_decision, by="ida", comment="")
    site.verdict = CORDON
    await site.fail(reason="its node's log came late")
    later = await site.plan_of()
    assert (later.state, later.reason) == (PlanState.WAITING, PlanReason.ATTEMPT_CLOSED)
    assert [plan.state for plan in await site.plans()] == [PlanState.SUPERSEDED, PlanState.WAITING]


async def test_the_next_failure_of_a_job_is_a_new_matter(store: SqlStore) -> None:
    """The refusal was about attempt 1."""
    site = ManagedSite(store)
    await site.refuse(await site.wait_for_person())
    site.verdict = replace(CORDON, step=900)
    await site.fail(2)
    assert (await site.plan_of(2)).state is PlanState.SENT


@pytest.mark.parametrize("how", ["exit", "verdict"])
async def test_a_relaunch_that_completed_closes_the_attempts_before_it(store: SqlStore, how: str) -> None:
    """Whoever launched it: a late verdict of the first attempt is advice. The scheduler's exit is enough, and so is
    the verdict of a launch whose end nobody reported."""
    site = ManagedSite(store, Mode.OBSERVE)
    await site.fail()
    if how == "exit":
        await site.complete_again()
    else:
        site.verdict = CLEAN
        await site.fail(2)
    site = ManagedSite(store)
    site.now += 600.0
    site.verdict = replace(CORDON, nodes=(replace(ECC.nodes[0], node="gpu-099"),), proofs=node_log("gpu-099"))
    await site.fail(reason="its node's log came late")
    later = await site.plan_of()
    assert (later.state, later.reason) == (PlanState.ADVISED, PlanReason.ATTEMPT_CLOSED)
    assert "attempt 2 of the job completed" in later.history[-1].why


@pytest.mark.parametrize("event", [{"code": 1}, {"code": 0, "rank": 3}, {"code": None, "signal": 9}])
async def test_a_relaunch_that_did_not_complete_closes_nothing(store: SqlStore, event: dict[str, object]) -> None:
    """It failed, or only one of its ranks has left."""
    site = ManagedSite(store)
    await site.complete_again(**event)  # type: ignore[arg-type]
    await site.fail()
    assert (await site.plan_of()).state is PlanState.SENT


async def test_a_plan_is_not_handed_out_once_its_job_completed_again(store: SqlStore) -> None:
    """It was sent while no agent was there, and a person launched the job; what a person approved stands."""
    site = ManagedSite(store)
    await site.fail()
    await site.complete_again()
    assert await site.service.claim("slurm", "default", site.now) is None
    held = await site.plan_of()
    assert (held.state, held.reason) == (PlanState.HELD, PlanReason.ATTEMPT_CLOSED)


async def test_a_plan_that_a_person_approved_is_handed_out_although_its_job_completed_again(store: SqlStore) -> None:
    """The person has said that the node goes."""
    site = ManagedSite(store, Mode.APPROVE)
    await site.fail()
    await site.complete_again()
    waits = await site.plan_of()
    record = await store.diagnoses.find(waits.diagnosis)
    await site.decide(waits.id, site.commands.approve, record=record, by="ida", comment="")
    assert await site.service.claim("slurm", "default", site.now) is not None


async def test_a_launch_that_was_refused_because_the_job_ran_is_planned_anew_when_it_ends(store: SqlStore) -> None:
    """By a plan of its own; the refused one stays as it was, and does not count as a launch."""
    site = ManagedSite(store)
    for refusal in range(3):
        await site.fail(reason=f"look {refusal}")
        claimed = await site.service.claim("slurm", "default", site.now)
        assert claimed is not None and claimed.lease is not None
        if refusal == 2:
            break
        refused = PlanReport(claimed.lease.token, PlanState.NOT_REACHED, refused=PlanReason.STILL_RUNNING)
        await site.decide(claimed.id, site.commands.report, report=refused)
    plans = await site.plans()
    assert [plan.state for plan in plans] == [PlanState.NOT_REACHED, PlanState.NOT_REACHED, PlanState.SENT]
    assert len({plan.key for plan in plans}) == 3


def test_a_plan_that_expired_or_was_superseded_closes_nothing() -> None:
    """Nobody said no to it."""
    for state in (S.EXPIRED, S.SUPERSEDED):
        before = done(9, 600, state=state, key="other", action=Action.CHECK_AND_RESUBMIT)
        assert settle(shipped_policy(), plan(), before).state is S.SENT
    refused = done(9, 600, state=S.REFUSED, key="other", action=Action.CHECK_AND_RESUBMIT)
    assert stands(settle(shipped_policy(), plan(), refused))[1:] == (S.WAITING, R.ATTEMPT_CLOSED)
    assert settle(shipped_policy(), plan(), replace(refused, job="k", fingerprint="g")).state is S.SENT


def test_a_launch_refused_because_the_job_ran_spends_no_retry_and_no_cap() -> None:
    """Else whoever makes a running job look ended would spend what its owner needs later."""
    refused = [
        done(attempt, 600, state=S.NOT_REACHED, reason=R.STILL_RUNNING, progress=("step", 900.0))
        for attempt in range(1, 9)
    ]
    assert settle(shipped_policy(), plan(progress=("step", 800.0)), *refused).state is S.SENT
    launched = [replace(past, reason=R.NOT_REACHED) for past in refused]
    assert stands(settle(shipped_policy(), plan(progress=("step", 800.0)), *launched))[1:] == (S.HELD, R.RETRIES_SPENT)


def test_a_plan_of_an_earlier_attempt_than_the_one_that_completed_is_advice_in_every_mode() -> None:
    """Pure: the number alone decides."""
    for mode in Mode:
        closed = settle(shipped_policy(), plan(9, mode=mode), completed=10)
        assert (closed.state, closed.reason) == (S.ADVISED, R.ATTEMPT_CLOSED)
    assert settle(shipped_policy(), plan(9), completed=9).state is S.SENT
    assert settle(shipped_policy(), plan(9), completed=8).state is S.SENT


async def test_a_plan_that_was_begun_is_not_withdrawn_because_a_later_attempt_completed(store: SqlStore) -> None:
    """An executor that takes it over has to end what the one before it began: a node may be half out."""
    site = ManagedSite(store)
    site.verdict = RESUBMIT
    await site.fail()
    claimed = await site.service.claim("slurm", "default", site.now)
    assert claimed is not None
    begun = replace(claimed, steps=(Step("scontrol update NodeName=gpu-017 State=DRAIN", 0),))
    await site.change(claimed.id, begun)
    after = await site.decide(claimed.id, site.commands.hold_completed, completed=2)
    assert after.state is PlanState.SENT
    await site.change(claimed.id, claimed)
    withdrawn = await site.decide(claimed.id, site.commands.hold_completed, completed=2)
    assert (withdrawn.state, withdrawn.reason) == (PlanState.HELD, PlanReason.ATTEMPT_CLOSED)


async def test_nothing_is_done_after_a_refusal_or_a_completed_relaunch_in_any_order(tmp_path: Path) -> None:
    """Orders and delays of steps, a kernel line, the failure, the exit, a refusal and a relaunch, by seed. What an
    executor could claim before either is allowed; after it nothing can be claimed, and something could before in
    some of them."""
    acted_before = 0
    for seed in range(ORDERS):
        store = await sqlite_store(tmp_path / f"{seed}.db")
        try:
            acted_before += await _play(ManagedSite(store, Mode.ACT), random.Random(seed))
        finally:
            await store.close()
    assert acted_before >= ORDERS // 10


async def _play(site: ManagedSite, chance: random.Random) -> bool:
    """Whether a plan could be claimed before the matter was closed. Asserts that none could be afterwards."""
    order = ["steps", "kernel line", "failure", "exit", "refusal", "relaunch"]
    chance.shuffle(order)
    verdicts = {"steps": RESUBMIT, "kernel line": CORDON, "failure": CHECK, "exit": RESUBMIT}
    closed, acted = False, False
    for turn, happens in enumerate([*order, *chance.sample(sorted(verdicts), 2)]):
        site.now += chance.choice([0.0, 1.0, 60.0, 900.0])
        if happens == "relaunch":
            await site.complete_again()
            closed = True
        elif happens == "refusal":
            closed |= await _refused(site)
        else:
            site.verdict = verdicts[happens]
            await site.fail(reason=f"{happens} {turn}")
        claimed = await _claimed_with_end(site, chance)
        assert not (closed and claimed), (order, happens)
        acted |= claimed
    return acted


async def _refused(site: ManagedSite) -> bool:
    """Whether a plan of the attempt waited, and a person refused it."""
    waits = [plan for plan in await site.plans() if plan.state is PlanState.WAITING]
    for waiting in waits:
        await site.refuse(waiting)
    return bool(waits)


async def _claimed_with_end(site: ManagedSite, chance: random.Random) -> bool:
    """Whether there was a plan to carry out. Its executor is refused by a job that runs, or the check asks a person."""
    claimed = await site.service.claim("slurm", "default", site.now)
    if claimed is None or claimed.lease is None:
        return False
    if chance.random() < 0.5:
        report = PlanReport(claimed.lease.token, PlanState.NOT_REACHED, refused=PlanReason.STILL_RUNNING)
        await site.decide(claimed.id, site.commands.report, report=report)
    else:
        waits = replace(claimed, state=PlanState.WAITING, lease=None, reason=PlanReason.UNPROVEN)
        await site.change(claimed.id, waits)
    return True
