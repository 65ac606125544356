"""What a recovery proves about a cause."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from diagnoser.learning import shadow_evaluation
from diagnoser.model import (
    Attempt,
    AttemptKey,
    Event,
    EventKind,
    FeedbackVerdict,
    HitVerdict,
    Job,
    NodeProof,
    Plan,
    PlanState,
    ProofKind,
    TransitionResult,
)
from diagnoser.model.taxonomy import Action, FailureType, Outcome
from diagnoser.model.work import Claim, DiagnosisRecord
from diagnoser.recovery import retry_history
from tests.contract.records import diagnosis, plan
from tests.rule_learning import NOW, STEPS, Site, site

PROOF = NodeProof("gpu-004", ProofKind.NODE_LOG, "NVRM: Xid (PCI:0000:3b:00): 79")
REACHED = replace(
    plan(),
    state=PlanState.REACHED,
    drained=("gpu-004",),
    fingerprint="another",
    progress=("step", 100.0),
    proofs=(PROOF,),
)
KEY = AttemptKey("llama-70b", 2)


def claim(step: int | None, outcome: Outcome = Outcome.FAILED) -> tuple[Claim, DiagnosisRecord]:
    found = replace(diagnosis(), step=step, outcome=outcome)
    return Claim(Attempt(KEY, NOW), Job(KEY.job), "t"), DiagnosisRecord("02", KEY, 1, NOW, True, found)


@pytest.mark.parametrize(
    ("changes", "step", "proven"),
    [
        ({}, 101, True),
        ({}, 100, False),
        ({}, None, False),
        ({"drained": ()}, 101, False),
        ({"state": PlanState.SENT}, 101, True),
        ({"state": PlanState.NOT_REACHED}, 101, False),
        ({"state": PlanState.ADVISED}, 101, False),
        ({"drained": (), "action": Action.ROLLBACK_AND_RESUBMIT}, 101, False),
        ({"progress": ("seconds", 10.0)}, 101, False),
        ({"proofs": ()}, 101, False),
        ({"proofs": (replace(PROOF, kind=ProofKind.PERSON, by="maria"),)}, 101, False),
        ({"proofs": (replace(PROOF, kind=ProofKind.CHECK),)}, 101, True),
        ({"drained": ("gpu-004", "gpu-005")}, 101, False),
    ],
)
def test_a_cause_is_proven_when_acting_on_it_brought_the_job_further(
    changes: dict[str, object], step: int | None, proven: bool
) -> None:
    """Nodes were taken out for it, each with a proof that no job can print, and the next launch passed the point of
    failure by the same measure."""
    assert shadow_evaluation.proves(replace(REACHED, **changes), *claim(step)) is proven  # type: ignore[arg-type]


def test_the_same_failure_further_on_proves_nothing() -> None:
    """The node was taken out, and it failed in the same way: that was not the cause."""
    made, record = claim(500)
    same = retry_history.fingerprint(record.diagnosis)
    assert not shadow_evaluation.proves(replace(REACHED, fingerprint=same), made, record)
    assert not shadow_evaluation.proves(replace(REACHED, fingerprint=same), *claim(500, Outcome.COMPLETED))


def test_a_launch_follows_from_the_plan_before_it() -> None:
    """The next attempt of the job, or the job that the executor started; not the attempt that the plan is about."""
    assert shadow_evaluation.is_before(REACHED, KEY)
    assert not shadow_evaluation.is_before(REACHED, AttemptKey(KEY.job, 1))
    assert not shadow_evaluation.is_before(REACHED, AttemptKey(KEY.job, 3))
    assert shadow_evaluation.is_before(replace(REACHED, requeued="new"), AttemptKey("new", 1))
    assert not shadow_evaluation.is_before(replace(REACHED, requeued=KEY.job), AttemptKey(KEY.job, 1))


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path) as made:
        yield made


async def recovered(here: Site, *proofs: NodeProof) -> DiagnosisRecord:
    """An ECC error, its node drained with these proofs, the plan reached."""
    ecc = "[rank5]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered on gpu-017"
    first = await here.run("ecc", [*STEPS, ecc])
    assert first.diagnosis.type is FailureType.ECC_ERROR and first.plan is not None

    def reach(known: Plan) -> TransitionResult:
        return TransitionResult(replace(known, state=PlanState.REACHED, drained=("gpu-017",), proofs=proofs))

    await here.store.plans.change(first.plan.id, reach)
    return first


async def test_a_recovery_that_worked_confirms_the_cause(here: Site) -> None:
    """The next attempt completes: the confirmed failure is there, by the recovery, and is not written twice."""
    first = await recovered(here, replace(PROOF, node="gpu-017"))
    await here.run("ecc", [*STEPS, *STEPS, "training completed"], code=0, attempt=2)
    (confirmed,) = await here.store.feedback.confirmed_failures(0.0, "", 5)
    assert (confirmed.diagnosis, confirmed.type) == (first.id, FailureType.ECC_ERROR)
    assert confirmed.verdict is FeedbackVerdict.CONFIRMED and confirmed.by.startswith("recovery: plan ")
    assert not await here.confirmed_failures.confirm(first, "recovery: again", NOW)


async def test_a_recovery_from_what_only_the_job_said_confirms_nothing(here: Site) -> None:
    """A job could print an error, and then complete."""
    await recovered(here)
    await here.run("ecc", [*STEPS, *STEPS, "training completed"], code=0, attempt=2)
    assert await here.store.feedback.confirmed_failures(0.0, "", 5) == []


async def test_a_persons_word_is_not_overruled_by_a_recovery(here: Site) -> None:
    """Somebody named another cause: it stays."""
    first = await recovered(here, replace(PROOF, node="gpu-017"))
    await here.say(first, FailureType.GPU_LOST)
    await here.run("ecc", [*STEPS, *STEPS, "training completed"], code=0, attempt=2)
    (confirmed,) = await here.store.feedback.confirmed_failures(0.0, "", 5)
    assert (confirmed.type, confirmed.by) == (FailureType.GPU_LOST, "maria")


async def test_a_hit_in_an_attempt_whose_cause_is_known_is_settled_at_once(here: Site) -> None:
    """A person spoke about an earlier diagnosis of the attempt; more of its log came, and the rule hits there."""
    rule = await here.taught("quilt-1")
    second = await here.fail("quilt-2", 5)
    await here.say(second)
    key = second.attempt
    await here.store.jobs.add_event(key, Event(EventKind.CHECKPOINT, NOW - 40.0))
    assert await here.worker.step() == 1
    (hit,) = await here.store.rules.hits(rule.id, 5)
    assert (hit.attempt, hit.verdict, hit.diagnosis != second.id) == (key, HitVerdict.CONFIRMED, True)
