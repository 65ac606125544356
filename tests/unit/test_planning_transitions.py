"""What a verdict and a node check lead to, as pure decisions."""

from dataclasses import replace

import orjson
import pytest

from diagnoser.model import (
    Attempt,
    AttemptKey,
    ClusterHistory,
    Job,
    Mode,
    NodeActor,
    NodeEvent,
    NodeEventKind,
    PairResult,
    Plan,
    PlanLease,
    PlanState,
)
from diagnoser.model.taxonomy import Action
from diagnoser.model.work import Claim
from diagnoser.recovery import node_check
from diagnoser.recovery.policy import in_mode
from tests.contract.records import plan
from tests.proofs import node_log
from tests.serving import ECC, plan_commands

NOW = 1_000_000.0
NODES = tuple(f"n{number}" for number in range(1, 9))


def begun(**fields: object) -> Plan:
    """A node check of eight nodes that an executor holds."""
    made = replace(plan(), action=Action.CHECK_AND_RESUBMIT, nodes=(), allocation=NODES, cluster="east")
    made = in_mode(replace(made, created=NOW, expires=NOW + 3600, lease=PlanLease("slurm", "t", NOW + 60)), Mode.ACT)
    return replace(made, check=node_check.begin(NODES), **fields)  # type: ignore[arg-type]


def checked(made: Plan, faulty: tuple[str, ...], *marks: NodeEvent) -> Plan:
    """The plan after rounds in which every group with one of these nodes failed."""
    history = ClusterHistory(fleet={"east": 1000}, marks={mark.node: mark for mark in marks})
    while made.check is not None and made.check.verdict is None:
        groups = node_check.todo(made.check)
        results = [PairResult(group, not set(group) & set(faulty), 1.0) for group in groups]
        after = plan_commands().check_results(made, history, "t", made.check.round, results, NOW, vouched=True).plan
        assert after is not None and groups
        made = after
    return made


def by_person(kind: NodeEventKind, node: str = "n3") -> NodeEvent:
    return NodeEvent("east", node, kind, NodeActor.PERSON, NOW - 60.0)


@pytest.mark.parametrize("kind", [NodeEventKind.CORDONED, NodeEventKind.UNCORDONED])
def test_a_faulty_node_that_a_person_handles_is_left_to_the_person(kind: NodeEventKind) -> None:
    """The check found it, and somebody cordoned it or gave it back meanwhile; the other faulty node goes."""
    after = checked(begun(), ("n3", "n6"), by_person(kind))
    assert (after.state, after.nodes) == (PlanState.SENT, ("n6",))
    assert after.check is not None and after.check.verdict is not None
    assert after.check.verdict.faulty == ("n6",)
    assert "left to the person who handles them: n3" in after.history[-1].why
    assert checked(begun(), ("n3", "n6")).nodes == ("n3", "n6")


def test_a_suspect_that_a_person_handles_asks_nobody() -> None:
    """The check proved nothing, and the job blames a node that a person looks after already."""
    suspected = begun(unproven_suspects=("n3",))
    assert checked(suspected, ()).state is PlanState.WAITING
    assert checked(suspected, (), by_person(NodeEventKind.CORDONED)).state is PlanState.SENT


def test_the_root_line_leaves_redacted() -> None:
    """The webhook's body holds log text, which may hold secrets."""
    commands = plan_commands(mode=Mode.ACT, webhook=True, redact=lambda text: text.replace("hunter2", "[redacted]"))
    root = ECC.root_cause
    assert root is not None
    found = replace(ECC, root_cause=replace(root, text="agent hunter2: ECC error"), proofs=node_log("hgx-04"))
    attempt = Attempt(AttemptKey("j"), NOW, NOW, NOW, NOW, nodes=("hgx-04",))
    decision = commands.planner.decide(Claim(attempt, Job("j", created=NOW), "t", 1), found, NOW)
    assert decision.plan is not None
    sent = commands.planner.announce(replace(decision.plan, state=PlanState.SENT), decision.record)
    assert [orjson.loads(message.body)["data"]["diagnosis"]["root_line"] for message in sent] == [
        "agent [redacted]: ECC error"
    ]
    assert all(b"hunter2" not in message.body for message in (*sent, *decision.messages))
