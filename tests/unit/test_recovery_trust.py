"""Before a node goes: the scheduler gave it to the attempt, and somebody who speaks for it blames it."""

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from diagnoser import compress
from diagnoser.adapters.sql.store import SqlStore
from diagnoser.adapters.wake_signals import LocalWakeSignal
from diagnoser.compress import AttemptLog
from diagnoser.model import (
    Advice,
    Attempt,
    AttemptKey,
    ClusterHistory,
    Event,
    EventKind,
    Facts,
    Job,
    LineBlock,
    Mode,
    Plan,
    PlanReason,
    PlanState,
    ProofKind,
    Provenance,
    Stream,
)
from diagnoser.model.errors import Conflict
from diagnoser.model.taxonomy import Action, Outcome
from diagnoser.model.work import Claim
from diagnoser.observability.metrics import Metrics
from diagnoser.planning.plan_service import PlanService
from diagnoser.recovery import guardrails, trust
from diagnoser.recovery.policy import in_mode
from tests.contract.records import KEY, append, claimed, diagnosis, plan, record
from tests.databases import sqlite_store
from tests.hostile_logs import NAMING, VICTIM, forgeries
from tests.proofs import node_log, proven
from tests.rule_files import ANALYZER
from tests.serving import plan_commands
from tests.thorough import examples

NOW = 1000.0
NODES = ("gpu-001", "gpu-002", "gpu-003")
R = PlanReason


def cordon(**fields: object) -> Plan:
    """A plan that an executor could claim, of the node gpu-004."""
    made = in_mode(plan(), Mode.ACT)
    return replace(made, created=NOW, expires=NOW + 3600, cluster="east", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("allocation", "proofs", "reason"),
    [
        (("gpu-004", "gpu-005"), node_log("gpu-004"), None),
        (("gpu-004", "gpu-005"), (), R.UNPROVEN),
        (("gpu-004", "gpu-005"), node_log("gpu-005"), R.UNPROVEN),
        (("gpu-005",), node_log("gpu-004"), R.FOREIGN_NODE),
        ((), node_log("gpu-004"), R.ALLOCATION_UNKNOWN),
    ],
)
def test_what_speaks_against_a_plan(
    allocation: tuple[str, ...], proofs: tuple[object, ...], reason: PlanReason | None
) -> None:
    """Its nodes must be of the attempt, and each needs a proof of its own."""
    objection = trust.why_not_removable(cordon(proofs=proofs), allocation)
    assert (objection and objection[0]) == reason


def test_one_foreign_node_is_one_too_many() -> None:
    """A plan may not take out the node of another job beside one of its own, and the reason names only the other."""
    two = cordon(nodes=("gpu-004", "gpu-777"), proofs=node_log("gpu-004", "gpu-777"))
    objection = trust.why_not_removable(two, ("gpu-004", "gpu-005"))
    assert objection is not None
    assert objection[0] is R.FOREIGN_NODE
    assert "gpu-777" in objection[1] and "gpu-004" not in objection[1]


def test_a_claim_looks_at_the_nodes_that_are_known_now() -> None:
    """A plan was made when its attempt was thought to run elsewhere: what the scheduler says since then counts."""
    planned = cordon(proofs=node_log("gpu-004"), allocation=("gpu-004", "gpu-005"))
    held = plan_commands().claim(planned, ("gpu-005", "gpu-006"), "slurm-1", "t", NOW).plan
    assert held is not None
    assert (held.state, held.reason) == (PlanState.HELD, R.FOREIGN_NODE)


def test_a_plan_without_nodes_needs_no_proof() -> None:
    """To launch a job again takes nobody's node."""
    assert trust.why_not_removable(cordon(nodes=()), ()) is None


def test_a_node_goes_under_the_name_that_the_scheduler_gives_it() -> None:
    """Short and full names are one node; a name that fits two of them is left as it is, and so stays foreign."""
    allocation = ("gpu-1.east", "gpu-2.east", "gpu-2.west")
    assert trust.match_scheduler_names(["gpu-1", "gpu-1.lab.east", "gpu-2", "10.0.0.7"], allocation) == (
        "gpu-1.east",
        "gpu-2",
        "10.0.0.7",
    )


@pytest.mark.parametrize("mode", [Mode.ACT, Mode.APPROVE])
def test_the_check_of_a_blamed_node_remembers_whom_it_is_about(mode: Mode) -> None:
    """Whatever reason the plan takes on later: a proof against one node says nothing about the other."""
    nodes = ("gpu-004", "gpu-005")
    made = in_mode(cordon(nodes=nodes, allocation=nodes, proofs=node_log("gpu-005")), mode)
    checked = guardrails.apply_guardrails(plan_commands().policy, made, ClusterHistory(), NOW).plan
    assert checked is not None
    assert (checked.action, checked.nodes, checked.reason) == (Action.CHECK_AND_RESUBMIT, (), R.UNPROVEN)
    assert checked.unproven_suspects == ("gpu-004",)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    opened = await sqlite_store(tmp_path / "test.db")
    yield opened
    await opened.close()


async def stored(store: SqlStore, made: Plan) -> PlanService:
    await store.logs.append([append(KEY, fatal=True)])
    (claim,) = await claimed(store)
    await store.work.save_diagnosis(claim, record("d1", claim, created=NOW), made, [])
    return PlanService(store, plan_commands(), Metrics(CollectorRegistry()), LocalWakeSignal())


@pytest.mark.parametrize(
    ("made", "told", "reason"),
    [
        (cordon(allocation=("gpu-004",)), ("gpu-004",), R.UNPROVEN),
        (proven(cordon()), ("gpu-005",), R.FOREIGN_NODE),
        (cordon(proofs=node_log("gpu-004")), (), R.ALLOCATION_UNKNOWN),
    ],
    ids=["unproven", "foreign", "unknown"],
)
async def test_a_claim_asks_again(store: SqlStore, made: Plan, told: tuple[str, ...], reason: PlanReason) -> None:
    """However the plan came to be sent: it is held with the reason, people are alerted, and it is counted."""
    plans = await stored(store, made)
    if told:
        await store.jobs.register(Job(KEY.job, nodes=told, created=NOW), KEY.number)
    assert await plans.claim("slurm", "east", NOW) is None
    held = await store.plans.find(made.id)
    assert held is not None
    assert (held.state, held.reason, held.lease) == (PlanState.HELD, reason, None)
    assert [message.message.key for message in await store.outbox.messages() if made.id in message.message.key]
    count = plans.metrics.registry.get_sample_value
    assert count("diagnoser_plan_transitions_total", {"reason": reason.value}) == 1.0


async def test_a_proven_plan_is_claimed(store: SqlStore) -> None:
    """With the node in the attempt's list, as stored now."""
    made = proven(cordon())
    plans = await stored(store, made)
    await store.jobs.register(Job(KEY.job, nodes=made.nodes, created=NOW), KEY.number)
    taken = await plans.claim("slurm", "east", NOW)
    assert taken is not None and taken.lease is not None


def test_a_person_may_vouch_for_a_node_of_the_job_and_no_other() -> None:
    """An approval is a proof with the person's name; it opens no way to a foreign node."""
    waiting = replace(in_mode(cordon(allocation=("gpu-004",)), Mode.APPROVE))
    sent = plan_commands().approve(waiting, None, "maria", "seen it", NOW).plan
    assert sent is not None
    assert [(proof.node, proof.kind, proof.by) for proof in sent.proofs] == [("gpu-004", ProofKind.PERSON, "maria")]
    with pytest.raises(Conflict, match="did not give gpu-004"):
        plan_commands().approve(replace(waiting, allocation=("gpu-005",)), None, "maria", "", NOW)


def compressed(stream: Stream, lines: list[str]) -> compress.Delta:
    compressor = ANALYZER.compressor()
    compressor.feed(LineBlock(stream, "".join(f"{line}\n" for line in lines).encode(), received=NOW))
    return compressor.take()


@cache
def texts() -> tuple[str, ...]:
    own = tuple(sentence.format(node=node) for sentence in NAMING for node in (*NODES, VICTIM))
    return (*own, *(forgery.text for forgery in forgeries()), "RuntimeError: CUDA error: unspecified launch failure")


LINES = st.lists(st.deferred(lambda: st.sampled_from(texts())), max_size=4)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    printed=LINES,
    logs=st.dictionaries(st.sampled_from((*NODES, VICTIM)), LINES, max_size=3),
    allocation=st.sampled_from([(), NODES, NODES[:1]]),
    mode=st.sampled_from([Mode.APPROVE, Mode.ACT]),
)
def test_a_plan_takes_only_proven_nodes_of_the_attempt(
    printed: list[str], logs: dict[str, list[str]], allocation: tuple[str, ...], mode: Mode
) -> None:
    """For any log and any logs of nodes: what may act names nodes of the attempt alone, each with its proof, which is
    a line of that node's own log."""
    job = Job("j", cluster="east", nodes=allocation, tenant="ida", created=NOW)
    events = (Event(EventKind.EXIT, NOW, code=1),)
    parts = {
        node: [compress.to_bytes(compressed(Stream("kernel", node, provenance=Provenance.NODE), lines))]
        for node, lines in logs.items()
    }
    facts = Facts(job, 1, events, parts, (NOW, NOW), nodes=allocation)
    log = AttemptLog(compressed(Stream(), ["step 1 loss 2.5", *printed]))
    verdict = ANALYZER.analyze(log, facts)
    attempt = Attempt(AttemptKey("j"), NOW, NOW, NOW, NOW, events=events, nodes=allocation)
    commands = plan_commands(mode=mode)
    decision = commands.planner.decide(Claim(attempt, job, "t", 1), verdict, NOW)
    if decision.plan is None:
        return
    made = decision.transition(decision.plan, ClusterHistory(fleet={"east": 1000})).plan
    assert made is not None
    if made.state is PlanState.HELD:
        return
    assert set(made.nodes) <= set(allocation)
    assert made.unproven == ()
    told = {(node, line) for node, lines in logs.items() for text in lines for line in text.splitlines()}
    assert {(proof.node, proof.text) for proof in made.proofs} <= told
    assert made.action is not Action.CORDON_AND_RESUBMIT or made.nodes


@pytest.mark.parametrize(
    ("scheduler", "ended", "outcome", "plans"),
    [
        (True, None, Outcome.FAILED, False),
        (True, None, Outcome.HUNG, True),
        (True, NOW, Outcome.FAILED, True),
        (False, None, Outcome.FAILED, True),
    ],
    ids=["runs", "hangs", "ended", "no agent"],
)
def test_a_job_that_its_scheduler_shows_running_gets_no_plan(
    scheduler: bool, ended: float | None, outcome: Outcome, plans: bool
) -> None:
    """Whatever it prints, unless it hangs; the verdict is there, and the plan comes with the scheduler's word."""
    attempt = Attempt(KEY, NOW, NOW, NOW, ended, nodes=("gpu-004",))
    claim = Claim(attempt, Job(KEY.job, cluster="east"), "token", has_scheduler=scheduler)
    verdict = replace(diagnosis(), outcome=outcome, recovery=Advice(Action.RESUBMIT, "it was the network"))
    decision = plan_commands(mode=Mode.ACT).planner.decide(claim, verdict, NOW)
    assert (decision.plan is not None) == plans


@pytest.mark.parametrize("mode", [Mode.ACT, Mode.APPROVE, Mode.OBSERVE])
def test_without_an_allocation_a_plan_names_no_node(mode: Mode) -> None:
    """Whoever makes up a launch could else have a node of others named to people, whatever proves."""
    blamed = cordon(proofs=node_log("gpu-004"), suspects=("gpu-004", "gpu-009"))
    policy = plan_commands().policy
    settled = guardrails.apply_guardrails(policy, in_mode(blamed, mode), ClusterHistory(), NOW).plan
    assert settled is not None
    assert (settled.nodes, settled.suspects, settled.reason) == ((), (), R.ALLOCATION_UNKNOWN)
    assert settled.state is (PlanState.ADVISED if mode is Mode.OBSERVE else PlanState.HELD)
