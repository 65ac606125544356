"""What a plan touches: the nodes that go, those that are tested, and whoever else runs there."""

from dataclasses import replace

from diagnoser.model import AttemptKey, NodeRun, Plan
from diagnoser.model.taxonomy import Action
from diagnoser.recovery.blast_radius import BlastRadius, blast_radius, touched
from tests.contract.records import plan


def made(action: Action, *nodes: str, **more: object) -> Plan:
    fields = {"job": "own", "action": action, "nodes": nodes, "suspects": ("n2",), "allocation": ("n1", "n2", "n3")}
    return replace(plan(), **(fields | more))  # type: ignore[arg-type]


def run(job: str, *nodes: str) -> NodeRun:
    return NodeRun(AttemptKey(job, 1), nodes, 0.0, None)


def test_a_plan_that_names_nodes_touches_these() -> None:
    """Others are neighbours only where they run on them; the job itself is none."""
    near, far, own = run("near", "n1", "n9"), run("far", "n2"), run("own", "n1")
    found = blast_radius(made(Action.CORDON_AND_RESUBMIT, "n1"), [near, far, own])
    assert found == BlastRadius(nodes=("n1",), checked=(), relaunches=True, neighbours=(near,))


def test_a_check_touches_the_nodes_of_the_attempt_the_suspects_first() -> None:
    """Each once; whoever runs on one of them is a neighbour."""
    near = run("near", "n3")
    found = blast_radius(made(Action.CHECK_AND_RESUBMIT), [near, run("far", "n4")])
    assert found == BlastRadius(nodes=(), checked=("n2", "n1", "n3"), relaunches=True, neighbours=(near,))


def test_a_check_that_found_its_nodes_touches_only_these() -> None:
    """The others were sound."""
    found = blast_radius(made(Action.CHECK_AND_RESUBMIT, "n3"), [])
    assert (found.nodes, found.checked) == (("n3",), ())
    assert touched(made(Action.CHECK_AND_RESUBMIT, "n3")) == ("n3",)


def test_a_launch_touches_no_node() -> None:
    """And what only a person does launches nothing."""
    assert touched(made(Action.RESUBMIT)) == ()
    assert blast_radius(made(Action.RESUBMIT), [run("near", "n1")]) == BlastRadius((), (), True, ())
    assert blast_radius(made(Action.NOTIFY_USER), []).relaunches is False
