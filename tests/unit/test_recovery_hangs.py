"""A running launch is ended without a person where two looks of agents agree, and nowhere else."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from diagnoser.adapters.sql.store import SqlStore
from diagnoser.adapters.wake_signals import LocalWakeSignal
from diagnoser.diagnosis import hang_evidence, pipeline
from diagnoser.model import (
    WAITING_RANKS,
    ClusterHistory,
    Diagnosis,
    EvidenceKind,
    EvidenceLine,
    Facts,
    HangFindings,
    HangLook,
    HangSuspect,
    Job,
    Mode,
    Plan,
    Provenance,
    RuntimeFile,
    Stream,
    StuckPlace,
    SuspectKind,
)
from diagnoser.model.evidence import Evidence
from diagnoser.model.taxonomy import Action, FailureType, Outcome, category_of
from diagnoser.observability.metrics import Metrics
from diagnoser.planning.plan_service import PlanService
from diagnoser.recovery import guardrails, plan_states
from diagnoser.recovery.policy import mode_for
from diagnoser.rules.causality import CausalResult
from tests.contract.records import KEY, append, claimed, record
from tests.databases import sqlite_store
from tests.serving import plan_commands
from tests.unit.test_hang_activity import look_of, stacks
from tests.unit.test_recovery_guardrails import NOW, R, S, done, plan, settle, shipped_policy

FRAME = "read (data/shards.py:40)"
FIRST = HangLook(NOW - 36, NOW - 20, ((3, FRAME),))
SECOND = replace(FIRST, taken=NOW - 1)


def ending(look: HangLook | None, id: str = "first", **fields: object) -> Plan:
    """A plan that would end a launch that hangs."""
    made = plan(action=Action.RESUBMIT, id=id, key="k", suspects=(), look=look)
    return replace(made, **fields)  # type: ignore[arg-type]


def waiting() -> Plan:
    """After the first look."""
    return settle(shipped_policy(), ending(FIRST))


def test_two_looks_that_agree_act_once() -> None:
    """The plan of the first one gives way; whoever comes third finds that it was done."""
    policy, first = shipped_policy(), waiting()
    assert (first.state, first.reason) == (S.WAITING, R.ONE_LOOK)
    result = guardrails.apply_guardrails(policy, ending(SECOND, "second"), ClusterHistory(past=(first,)), NOW)
    assert result.plan is not None
    assert (result.plan.id, result.plan.state, result.plan.reason) == ("second", S.SENT, R.ACT)
    assert [(past.id, past.state) for past in result.others] == [("first", S.SUPERSEDED)]
    assert result.plan.key != first.key
    past = (*result.others, result.plan)
    third = ending(replace(SECOND, taken=NOW + 20), "third")
    assert settle(policy, third, *past) == result.plan


@pytest.mark.parametrize(
    "second",
    [
        FIRST,
        replace(FIRST, taken=FIRST.taken + 5),
        replace(SECOND, last_line=NOW - 10),
        replace(SECOND, suspects=((2, FRAME),)),
        replace(SECOND, suspects=((3, "forward (model.py:1)"),)),
        replace(SECOND, suspects=((3, FRAME), (4, FRAME))),
        replace(SECOND, taken=FIRST.taken - 60),
    ],
    ids=["same", "too soon", "printed since", "other rank", "other frame", "more ranks", "clock set back"],
)
def test_looks_that_do_not_agree_leave_it_to_a_person(second: HangLook) -> None:
    """One that is replayed is no second one, and a process that moved is not stuck."""
    first = waiting()
    assert settle(shipped_policy(), ending(second, "second"), first) == first


def test_a_person_decides_first() -> None:
    """A refusal after the first look holds."""
    refused = plan_states.refuse(waiting(), by="maria", comment="", now=NOW - 5)
    assert settle(shipped_policy(), ending(SECOND, "second"), refused).state is S.REFUSED


def test_a_job_is_launched_again_once_an_hour() -> None:
    """Whatever the earlier launch was for; then a person looks."""
    lately, long_ago = done(8, 1800.0), done(8, 4000.0, progress=("step", 1.0))
    found = settle(shipped_policy(), ending(FIRST), lately)
    assert (found.state, found.reason) == (S.WAITING, R.HANG_AGAIN)
    assert settle(shipped_policy(), ending(FIRST), long_ago).reason == R.ONE_LOOK


HUNG = Diagnosis(
    Outcome.HUNG,
    category_of(FailureType.NCCL_TIMEOUT_ERROR),
    FailureType.NCCL_TIMEOUT_ERROR,
    0.9,
    "rule:nccl_watchdog",
    evidence=(EvidenceLine(7, "Watchdog caught collective operation timeout", ""),),
)
SEEN = HangFindings(look=FIRST)


@pytest.mark.parametrize(
    ("diagnosis", "is_running", "mode"),
    [
        (HUNG, True, Mode.APPROVE),
        (replace(HUNG, hang=HangFindings()), True, Mode.APPROVE),
        (replace(HUNG, hang=SEEN), True, Mode.ACT),
        (replace(HUNG, hang=SEEN, decided_by="llm:m"), True, Mode.APPROVE),
        (replace(HUNG, decided_by="heuristic:waiting_ranks"), False, Mode.APPROVE),
        (replace(HUNG, outcome=Outcome.FAILED), False, Mode.ACT),
    ],
    ids=["a line", "dumps", "a look", "a model", "dumps of a run that ended", "an error of a run that ended"],
)
def test_what_ends_a_running_launch(diagnosis: Diagnosis, is_running: bool, mode: Mode) -> None:
    """Neither a line that it prints nor dumps that anybody sent."""
    assert mode_for(diagnosis, Mode.ACT, is_running=is_running) is mode
    assert mode_for(diagnosis, Mode.OBSERVE, is_running=is_running) is Mode.OBSERVE


NODES = tuple(f"gpu-{rank}" for rank in range(8))
FACTS = Facts(Job("j"), nodes=NODES, last_line=NOW - 36)


@pytest.mark.parametrize(
    ("suspects", "place"),
    [
        ([(3, SuspectKind.STACK, "gpu-3")], StuckPlace.RANK),
        ([(3, SuspectKind.STACK, "gpu-3"), (4, SuspectKind.STACK, "gpu-3")], StuckPlace.NODE),
        ([(3, SuspectKind.ABSENT, "gpu-3")], StuckPlace.NODE),
    ],
    ids=["in its own code", "both on one node", "cut off"],
)
def test_a_node_is_checked_first_where_it_may_be_at_fault(
    suspects: list[tuple[int, SuspectKind, str]], place: StuckPlace
) -> None:
    """Else the job is launched again on the same ones."""
    found = tuple(HangSuspect(rank, kind, "", 0.8, node) for rank, kind, node in suspects)
    hung = replace(HUNG, hang=HangFindings(found, look=FIRST), decided_by=WAITING_RANKS)
    advised = pipeline.with_advice(hung, CausalResult(None), FACTS, shipped_policy())
    assert advised.grounds.stuck is place
    expected = Action.RESUBMIT if place is StuckPlace.RANK else Action.CHECK_AND_RESUBMIT
    assert advised.recovery.action is expected


def seen(*more: RuntimeFile, cores: float = 0.01, node: str = "gpu-3") -> HangLook | None:
    """What a look is made of: eight stacks and what rank 3 did, by an agent; and other files."""
    files = [replace(file, node=f"gpu-{file.rank}") for file in stacks(FRAME)]
    files.append(replace(look_of(cores, 0), node=node))
    agents = [replace(file, received=NOW - 20 + at, provenance=Provenance.RUNTIME) for at, file in enumerate(files)]
    every = hang_evidence.vouched_first([*agents, *more])
    report = hang_evidence.analyze(Evidence(), FACTS, every)
    assert report is not None
    return hang_evidence.look(Evidence(), FACTS, report, every)


FORGED = RuntimeFile(EvidenceKind.STACKS, b'Thread 1 (active): "MainThread"\n    sleep (x.py:1)\n', 8, received=NOW)


def test_a_look_is_what_agents_saw_of_a_rank_that_does_nothing() -> None:
    """Of a rank at work there is none; nor where it is only one with what the job sent, or on another's node."""
    look = seen()
    assert look is not None
    assert (look.last_line, look.suspects) == (NOW - 36, ((3, FRAME),))
    assert look.taken == NOW - 17, "the first file of rank 3"
    assert seen(cores=0.9) is None
    assert seen(FORGED) is None, "the job's own token adds a suspect"
    assert seen(replace(FORGED, rank=4)) == look, "an agent took the stack of rank 4"
    report = hang_evidence.analyze(Evidence(), FACTS, [])
    assert report is None
    alone = [replace(file, received=NOW) for file in (*stacks(FRAME), look_of(0.0, 0))]
    by_job = hang_evidence.analyze(Evidence(), FACTS, alone)
    assert by_job is not None and by_job.suspects[0].stuck_in == FRAME
    assert hang_evidence.look(Evidence(), FACTS, by_job, alone) is None


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = await sqlite_store(tmp_path / "test.db")
    yield opened
    await opened.close()


async def sent(store: SqlStore, mode: Mode) -> PlanService:
    """Both looks agreed, and the launch has printed nothing since."""
    await store.logs.append([append(KEY, at=SECOND.last_line, fatal=True)])
    await store.jobs.register(Job(KEY.job, nodes=NODES, created=NOW), KEY.number)
    made = ending(SECOND, job=KEY.job, attempt=KEY.number, state=S.SENT, reason=R.ACT.value)
    (claim,) = await claimed(store, NOW)
    await store.work.save_diagnosis(claim, record("d1", claim, created=NOW), made, [])
    return PlanService(store, plan_commands(mode=mode), Metrics(CollectorRegistry()), LocalWakeSignal())


async def test_a_run_that_printed_since_is_left_alone(store: SqlStore) -> None:
    """Whoever claims its plan finds none, and it says why."""
    service = await sent(store, Mode.ACT)
    await store.logs.append([append(KEY, at=NOW - 1, stream=Stream(node="gpu-0"))])
    assert await service.claim("slurm", "east", NOW) is None
    held = await store.plans.find("first")
    assert held is not None
    assert (held.state, held.reason, held.lease) == (S.HELD, R.STILL_RUNNING, None)


async def test_a_policy_that_changed_since_is_heard(store: SqlStore) -> None:
    """A person decides, as it says now."""
    service = await sent(store, Mode.APPROVE)
    assert await service.claim("slurm", "east", NOW) is None
    held = await store.plans.find("first")
    assert held is not None
    assert (held.state, held.reason) == (S.WAITING, R.NEEDS_APPROVAL)


async def test_two_executors_end_it_once(store: SqlStore) -> None:
    """One of them gets the plan."""
    service = await sent(store, Mode.ACT)
    claims = await asyncio.gather(*(service.claim(f"agent-{number}", "east", NOW) for number in range(4)))
    assert len(list(filter(None, claims))) == 1
