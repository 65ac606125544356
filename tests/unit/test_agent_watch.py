"""What is new on the cluster since the last look."""

from dataclasses import replace

import pytest

from diagnoser.agent.slurm import memory, watch
from diagnoser.agent.slurm.records import JobRecord, NodeRecord
from diagnoser.agent.slurm.watch import Happened, Registered, Seen, Standing, Tracked
from diagnoser.agent.tail import Mark

RUNS = JobRecord(7, "RUNNING", nodes=("n1", "n2"), tasks=2, started=100.0, user="ida", name="seven")
UP = {name: NodeRecord(name, frozenset({"IDLE"})) for name in ("n1", "n2")}
DEAD = UP | {"n2": NodeRecord("n2", frozenset({"DOWN"}), text="NodeName=n2 State=DOWN*")}
MET = Tracked(1, ("n1", "n2"), started=True, mark=Mark(5, 50, 3, 9, first=False))


def news(
    job: JobRecord, before: Tracked | None = None, nodes: dict[str, NodeRecord] = UP
) -> tuple[Tracked, list[object]]:
    after, told = watch.news(job, before, nodes, "east", "slurm-east-7")
    return after, list(told)


def test_a_job_that_runs_is_registered_and_started_once() -> None:
    """With nodes, ranks and labels; the next look has nothing to tell."""
    after, told = news(RUNS)
    assert isinstance(told[0], Registered)
    assert told[0].body["rank_nodes"] == {"0": "n1", "1": "n2"}
    assert told[0].body["labels"] == {"slurm_job": "7", "user": "ida"}
    assert told[1] == Happened(1, {"kind": "started", "attempt": 1, "time": 100.0})
    assert news(RUNS, after)[1] == []


@pytest.mark.parametrize(
    ("state", "code", "signal", "told"),
    [
        ("COMPLETED", 0, 0, {"kind": "exit", "code": 0}),
        ("FAILED", 17, 0, {"kind": "exit", "code": 17}),
        ("FAILED", 0, 9, {"kind": "exit", "signal": 9}),
        ("TIMEOUT", 0, 0, {"kind": "exit", "code": 1}),
        ("NODE_FAIL", 0, 0, {"kind": "exit", "code": 1}),
        ("CANCELLED", 0, 15, {"kind": "cancelled"}),
        ("PREEMPTED", 0, 0, {"kind": "preempted"}),
    ],
)
def test_an_end_is_told_in_slurms_word(state: str, code: int, signal: int, told: dict[str, object]) -> None:
    """A job that Slurm stopped never counts as complete, whatever its code."""
    after, found = news(replace(RUNS, state=state, code=code, signal=signal), MET)
    assert found == [Happened(1, {"attempt": 1, "reason": state, **told}, ends=True)]
    assert news(replace(RUNS, state=state), after)[1] == []


def test_a_requeue_that_slurm_did_itself_ends_the_launch_before() -> None:
    """Its end was never seen: a node that is down tells why."""
    after, told = news(replace(RUNS, state="PENDING", restarts=1, nodes=()), MET, DEAD)
    assert after == Tracked(2, mark=replace(MET.mark, first=True))
    [end] = told
    assert isinstance(end, Happened)
    assert end.body == {"kind": "exit", "attempt": 1, "code": 1, "reason": "NODE_FAIL", "node": "n2"}
    assert end.records == ("NodeName=n2 State=DOWN*",)


def test_a_requeue_by_somebody_is_no_failure() -> None:
    """All nodes are well: a person or a plan requeued it."""
    [end] = news(replace(RUNS, restarts=1, state="PENDING", nodes=()), MET)[1]
    assert isinstance(end, Happened)
    assert end.body["kind"] == "cancelled"


def test_what_ended_before_the_agent_began_is_history() -> None:
    """A job that began and ended between two looks is not."""
    ended = replace(RUNS, state="FAILED", ended=200.0)
    assert not watch.concerns(ended, None, since=210.0)
    assert watch.concerns(ended, None, since=200.9)
    assert watch.concerns(RUNS, None, since=210.0)
    assert not watch.concerns(replace(RUNS, state="PENDING"), None, since=0.0)


DRAINED = NodeRecord("n1", frozenset({"IDLE", "DRAIN"}), "cables, ask Ida")
OURS = replace(DRAINED, reason="diagnoser p1: ecc_error")
DOWN = NodeRecord("n1", frozenset({"DOWN"}))


@pytest.mark.parametrize(
    ("before", "node", "told"),
    [
        (Standing(), DRAINED, ("cordoned", "person")),
        (Standing(), OURS, None),
        (Standing("drained", True), DRAINED, ("cordoned", "person")),
        (Standing("drained", True), UP["n1"], ("uncordoned", "person")),
        (Standing("drained"), UP["n1"], ("uncordoned", "person")),
        (Standing("drained"), DRAINED, None),
        (Standing(), DOWN, ("down", "diagnoser")),
        (Standing("down"), UP["n1"], ("resumed", "diagnoser")),
    ],
)
def test_node_changes_are_told_with_who_made_them(
    before: Standing, node: NodeRecord, told: tuple[str, str] | None
) -> None:
    """What a person did is feedback; a drain of ours is told with its plan."""
    _, events = watch.node_news({"n1": before}, [node])
    assert [(event["kind"], event["by"]) for _, event in events] == ([told] if told else [])


def test_what_the_agent_knows_survives_a_restart() -> None:
    """The file gives back what was written; a broken one begins anew."""
    seen = Seen(12.5, {7: MET}, {"n1": Standing("drained", True)})
    assert memory.decode(memory.encode(seen)) == seen
    for broken in (b"", b"[]", b'{"version": 9}', b'{"version": 1, "time": 1, "jobs": {"x": {}}, "nodes": {}}'):
        with pytest.raises((ValueError, KeyError, TypeError)):
            memory.decode(broken)
