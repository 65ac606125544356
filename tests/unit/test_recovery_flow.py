"""From a failed attempt to a plan on its way: worker, messages and rails over a real store."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from prometheus_client import CollectorRegistry

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.adapters.wake_signals import LocalWakeSignal
from diagnoser.compress import AttemptLog
from diagnoser.model import (
    Advice,
    AttemptKey,
    CheckpointPhase,
    Diagnosis,
    Event,
    EventKind,
    Facts,
    Job,
    Mode,
    Plan,
    PlanReason,
    PlanState,
    Rollback,
)
from diagnoser.model.queries import PlanFilter
from diagnoser.model.taxonomy import Action, FailureType
from diagnoser.model.work import DiagnosisRecord
from diagnoser.observability.metrics import Metrics
from diagnoser.planning.plan_service import PlanService
from diagnoser.recovery.plan_states import PlanReport
from diagnoser.worker.worker import WorkerConfig
from tests.contract.records import TIMING, plan
from tests.databases import sqlite_store
from tests.proofs import node_log, take
from tests.scripted_worker import Bystander, scripted_worker
from tests.serving import ECC, OOM, plan_commands, verdict

NODE = ECC.nodes[0].node
CORDON = replace(ECC, recovery=Advice(Action.CORDON_AND_RESUBMIT, "broken_node_named"), proofs=node_log(NODE))


class Site(Bystander):
    """A worker that acts, with scripted verdicts and a clock that the test moves."""

    def __init__(self, store: SqlStore, **more: object) -> None:
        self.store, self.now = store, 1_000_000.0
        self.commands = plan_commands(**{"mode": Mode.ACT, "webhook": True, **more})
        self.verdict: Diagnosis = CORDON
        self.better: Diagnosis | None = None
        self.metrics, outbox = Metrics(CollectorRegistry()), LocalWakeSignal()
        self.worker = scripted_worker(
            store,
            self,
            self.commands.planner,
            lambda: self.now,
            WorkerConfig(TIMING),
            self.metrics,
            llm_stage=self,
            outbox=outbox,
            plans=PlanService(store, self.commands, self.metrics, outbox),
        )

    async def analyze(self, log: AttemptLog, facts: Facts) -> Diagnosis:
        return self.verdict

    async def run(self, record: DiagnosisRecord, log: AttemptLog, facts: Facts) -> Diagnosis | None:
        return self.better

    async def fail(self, attempt: int = 1, job: str = "llm-7b", **event: object) -> None:
        """The attempt ends, and the worker sees it."""
        key = AttemptKey(job, attempt)
        await self.store.jobs.register(Job(job, nodes=(NODE, "gpu-099"), created=1.0), attempt)
        await self.store.jobs.add_event(key, Event(EventKind.EXIT, self.now, code=1, **event))  # type: ignore[arg-type]
        self.now += 60.0
        await self.worker.step()
        await self.worker.finish()

    async def plans(self) -> list[Plan]:
        return (await self.store.plans.page(PlanFilter(), "", 100))[::-1]

    async def sent(self, kind: str) -> list[str]:
        return [one.message.key for one in await self.store.outbox.messages() if one.message.kind == kind]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = await sqlite_store(tmp_path / "test.db")
    yield opened
    await opened.close()


async def test_a_failure_becomes_a_plan_that_acts(store: SqlStore) -> None:
    """It knows its cluster, family and diagnosis, is announced once, and can be claimed."""
    site = Site(store)
    await store.jobs.register(Job("llm-7b", cluster="east", name="llm-7b-run3", created=1.0))
    await site.fail()
    (made,) = await site.plans()
    assert (made.state, made.cluster, made.family) == (PlanState.SENT, "east", "llm-b-run")
    assert await site.sent("recovery") == [made.key]
    record = await store.diagnoses.find(made.diagnosis)
    assert record is not None and record.plan == made
    held = await take(store, "slurm", "east", site.now)
    assert held is not None and held.id == made.id


async def test_what_becomes_of_plans_is_counted_by_reason(store: SqlStore) -> None:
    """Once each time a plan comes to stand, also when nothing is done, and from zero for every reason."""
    site = Site(store)

    def counts() -> dict[str, float]:
        count = site.metrics.registry.get_sample_value
        return {reason: count("diagnoser_plan_transitions_total", {"reason": reason}) or 0.0 for reason in PlanReason}

    assert {
        site.metrics.registry.get_sample_value("diagnoser_plan_transitions_total", {"reason": one})
        for one in PlanReason
    } == {0.0}
    site.verdict = replace(CORDON, step=500)
    await site.fail(1)
    await site.fail(1, reason="again")  # the plan that stands is no new one
    await site.fail(2)
    site.verdict = OOM
    await site.fail(3)
    site.now += 3601.0
    await site.worker.step()
    expected = {PlanReason.ACT: 1.0, PlanReason.SAME_STEP: 1.0, PlanReason.FOR_A_PERSON: 1.0, PlanReason.EXPIRED: 1.0}
    assert {reason: count for reason, count in counts().items() if count} == expected


async def test_a_better_verdict_does_not_act_a_second_time(store: SqlStore) -> None:
    """The model's verdict on the same failure leaves the plan that was sent; both diagnoses show it."""
    site = Site(store)
    site.better = replace(OOM, recovery=Advice(Action.RESUBMIT, "transient_service"))
    await site.fail()
    (made,) = await site.plans()
    assert made.action is Action.CORDON_AND_RESUBMIT
    assert len(await site.sent("recovery")) == 1
    await site.fail(reason="again")  # later events of the same attempt: a new revision
    assert [one.id for one in await site.plans()] == [made.id]
    assert len(await site.sent("recovery")) == 1


async def test_the_same_failure_at_the_same_step_is_held_and_told(store: SqlStore) -> None:
    """Two attempts end at step 500: the second plan is held, and people get an alert."""
    site = Site(store)
    site.verdict = replace(CORDON, step=500)
    await site.fail(1)
    await site.fail(2)
    first, second = await site.plans()
    assert (first.state, second.state, second.reason) == (PlanState.SENT, PlanState.HELD, PlanReason.SAME_STEP)
    assert await site.sent("recovery") == [first.key]
    assert any(second.id in key for key in await site.sent("alert"))


async def test_a_plan_that_nobody_took_up_expires_with_an_alert(store: SqlStore) -> None:
    """Once, also when two workers look."""
    site = Site(store)
    await site.fail()
    site.now += 3601.0
    await site.worker.step()
    await Site(store).worker.step()
    site.now += 60.0
    await site.worker.step()
    (made,) = await site.plans()
    assert (made.state, made.history[-1].why) == (PlanState.EXPIRED, "its time was over before anybody took it up")
    assert len([key for key in await site.sent("alert") if made.id in key]) == 1


@pytest.mark.parametrize(("reason", "alerts"), [(PlanReason.PLACE_FAILS, 0), (PlanReason.NEEDS_APPROVAL, 1)])
def test_of_a_place_whose_nodes_fail_only_the_check_says_that_nobody_answered(reason: PlanReason, alerts: int) -> None:
    """Sixteen plans that wait for it would send sixteen alerts at the end of the hour."""
    waits = replace(plan(), state=PlanState.WAITING, reason=reason, expires=100.0)
    over = plan_commands(mode=Mode.ACT).expire(waits, 101.0)
    assert over.plan is not None
    assert over.plan.state is PlanState.EXPIRED
    assert len(over.messages) == alerts


async def test_a_word_to_the_owner_goes_to_the_webhook_and_to_no_executor(store: SqlStore) -> None:
    """Nobody can carry it out, so nothing waits and nothing expires."""
    site = Site(store)
    site.verdict = OOM
    await site.fail()
    (made,) = await site.plans()
    assert (made.state, made.reason) == (PlanState.ADVISED, PlanReason.FOR_A_PERSON)
    assert await site.sent("recovery") == [made.key]
    assert await take(store, "slurm", "default", site.now) is None


async def test_observing_sends_nothing(store: SqlStore) -> None:
    """The plan is stored for people to see."""
    site = Site(store, mode=Mode.OBSERVE)
    await site.fail()
    assert [one.state for one in await site.plans()] == [PlanState.ADVISED]
    assert await site.sent("recovery") == []


async def test_a_diverged_run_is_told_where_to_go_on(store: SqlStore) -> None:
    """Checkpoint and batches to skip are in the plan and in the webhook's body."""
    site, back = Site(store), Rollback("/ckpt/1500", 1500, 1601, 1702)
    advice = Advice(Action.ROLLBACK_AND_RESUBMIT, "go_back_to_a_healthy_checkpoint")
    site.verdict = verdict(FailureType.LOSS_DIVERGENCE, rollback=back, recovery=advice)
    await site.fail()
    (made,) = await site.plans()
    assert made.rollback == back
    (webhook,) = [one.message for one in await store.outbox.messages() if one.message.kind == "recovery"]
    assert orjson.loads(webhook.body)["data"]["rollback"] == {
        "checkpoint": "/ckpt/1500",
        "step": 1500,
        "skip_from": 1601,
        "skip_to": 1702,
        "verified": False,
    }


async def test_a_checkpoint_that_turns_out_bad_is_taken_out_of_an_open_plan(store: SqlStore) -> None:
    """While nobody has approved it, the plan of the new diagnosis replaces the one with the old checkpoint."""
    site = Site(store, mode=Mode.APPROVE)
    advice = Advice(Action.ROLLBACK_AND_RESUBMIT, "go_back_to_a_healthy_checkpoint")
    for back in (Rollback("/ckpt/1500", 1500), Rollback("/ckpt/1000", 1000, verified=True)):
        site.verdict = verdict(FailureType.LOSS_DIVERGENCE, rollback=back, recovery=advice)
        await site.fail(reason=back.checkpoint)
    before, after = await site.plans()
    assert (before.state, after.state) == (PlanState.SUPERSEDED, PlanState.WAITING)
    assert after.rollback == Rollback("/ckpt/1000", 1000, verified=True)


async def test_a_checkpoint_that_turns_out_bad_is_taken_out_of_a_plan_that_was_sent(store: SqlStore) -> None:
    """As long as nobody has claimed it, it is held and people hear why; the diagnosis is made again, and its plan takes
    the place of the held one."""
    site = Site(store, webhook=False)
    advice = Advice(Action.ROLLBACK_AND_RESUBMIT, "go_back_to_a_healthy_checkpoint")
    site.verdict = verdict(FailureType.LOSS_DIVERGENCE, rollback=Rollback("/ckpt/1500", 1500), recovery=advice)
    await site.fail()
    bad = Event(EventKind.CHECKPOINT, site.now, step=1500, path="/ckpt/1500", phase=CheckpointPhase.BAD, reason="flip")
    await store.jobs.add_event(AttemptKey("llm-7b", 1), bad)
    plans = PlanService(store, site.commands, site.metrics, LocalWakeSignal())
    await plans.check_rollbacks("llm-7b", site.now)
    (held,) = await site.plans()
    assert (held.state, held.reason) == (PlanState.HELD, PlanReason.BAD_CHECKPOINT)
    assert [key for key in await site.sent("alert") if f"{held.id}-held" in key]
    site.verdict = replace(site.verdict, rollback=Rollback("/ckpt/1000", 1000, verified=True))
    site.now += 60.0
    await site.worker.step()
    before, after = await site.plans()
    assert (before.state, after.state) == (PlanState.SUPERSEDED, PlanState.SENT)
    held_by = await take(store, "slurm", "default", site.now)
    assert held_by is not None and held_by.id == after.id


@pytest.mark.parametrize("refuses", [False, True])
async def test_a_plan_in_the_hands_of_an_executor_is_marked_and_planned_anew_where_it_refuses(
    store: SqlStore, refuses: bool
) -> None:
    """What it has launched stays launched once: no second plan is made then."""
    site = Site(store, webhook=False)
    advice = Advice(Action.ROLLBACK_AND_RESUBMIT, "go_back_to_a_healthy_checkpoint")
    site.verdict = verdict(FailureType.LOSS_DIVERGENCE, rollback=Rollback("/ckpt/1500", 1500), recovery=advice)
    await site.fail()
    plans = PlanService(store, site.commands, site.metrics, LocalWakeSignal())
    mine = await plans.claim("slurm", "default", site.now)
    assert mine is not None and mine.lease is not None
    bad = Event(EventKind.CHECKPOINT, site.now, step=1500, path="/ckpt/1500", phase=CheckpointPhase.BAD)
    await store.jobs.add_event(AttemptKey("llm-7b", 1), bad)
    await plans.check_rollbacks("llm-7b", site.now)
    marked = await store.plans.find(mine.id)
    assert marked is not None and (marked.state, marked.reason) == (PlanState.SENT, PlanReason.BAD_CHECKPOINT)
    report = PlanReport(mine.lease.token, PlanState.NOT_REACHED, refused=PlanReason.BAD_CHECKPOINT)
    if not refuses:
        report = PlanReport(mine.lease.token, PlanState.REACHED, requeued="llm-7b")
    await plans.change(mine.id, site.now, lambda plan: site.commands.report(plan, report, site.now))
    site.verdict = replace(site.verdict, rollback=Rollback("/ckpt/1000", 1000, verified=True))
    site.now += 60.0
    await site.worker.step()
    states = [plan.state for plan in await site.plans()]
    assert states == ([PlanState.NOT_REACHED, PlanState.SENT] if refuses else [PlanState.REACHED])


async def test_the_plan_of_a_model_s_verdict_does_not_go_back_to_a_bad_checkpoint(store: SqlStore) -> None:
    """The checkpoint was reported bad while the model was asked: whoever stores the plan looks at the reports."""
    site = Site(store, webhook=False)
    site.verdict = OOM
    advice = Advice(Action.ROLLBACK_AND_RESUBMIT, "go_back_to_a_healthy_checkpoint")
    back = Rollback("/ckpt/1500", 1500)
    site.better = verdict(FailureType.LOSS_DIVERGENCE, rollback=back, recovery=advice)
    bad = Event(EventKind.CHECKPOINT, site.now, step=1500, path="/ckpt/1500", phase=CheckpointPhase.BAD, reason="flip")
    await store.jobs.add_event(AttemptKey("llm-7b", 1), bad)
    await site.fail()
    made = (await site.plans())[-1]
    assert (made.rollback, made.state, made.reason) == (back, PlanState.HELD, PlanReason.BAD_CHECKPOINT)


async def test_what_the_webhook_told_of_is_not_withdrawn_and_people_hear_of_it(store: SqlStore) -> None:
    """Whoever received it may have launched the job already: a second plan would launch it twice."""
    site = Site(store)
    advice = Advice(Action.ROLLBACK_AND_RESUBMIT, "go_back_to_a_healthy_checkpoint")
    site.verdict = verdict(FailureType.LOSS_DIVERGENCE, rollback=Rollback("/ckpt/1500", 1500), recovery=advice)
    await site.fail()
    bad = Event(EventKind.CHECKPOINT, site.now, step=1500, path="/ckpt/1500", phase=CheckpointPhase.BAD)
    await store.jobs.add_event(AttemptKey("llm-7b", 1), bad)
    plans = PlanService(store, site.commands, site.metrics, LocalWakeSignal())
    for _ in range(2):
        await plans.check_rollbacks("llm-7b", site.now)
    (sent,) = await site.plans()
    assert (sent.state, sent.reason) == (PlanState.SENT, PlanReason.BAD_CHECKPOINT)
    assert len([key for key in await site.sent("alert") if f"{sent.id}-sent" in key]) == 1
    assert await plans.claim("slurm", "default", site.now) is None
