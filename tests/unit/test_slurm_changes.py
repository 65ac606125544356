"""What is new about a job of Slurm since the last look."""

from dataclasses import replace
from typing import Any

import pytest

from diagnoser.agent.changes import JobRegistration, LifecycleEvent
from diagnoser.agent.nodes import NodeRecord
from diagnoser.agent.slurm import changes
from diagnoser.agent.slurm.parsing import JobRecord
from diagnoser.agent.state_file import JobCheckpoint

RUNS = JobRecord(7, "RUNNING", nodes=("n1", "n2"), tasks=2, started=100.0, user="ida", name="seven")
UP = {name: NodeRecord(name) for name in ("n1", "n2")}
DEAD = UP | {"n2": NodeRecord("n2", up=False, record="NodeName=n2 State=DOWN*")}
NEW = JobCheckpoint("slurm-east-7", 1)
MET = replace(NEW, nodes=("n1", "n2"), started=True)


def diff(
    job: JobRecord, before: JobCheckpoint = NEW, nodes: dict[str, NodeRecord] = UP
) -> tuple[JobCheckpoint, list[JobRegistration | LifecycleEvent]]:
    """The service may go away behind any of them: from the state that is kept then, the rest follows."""
    after, found = changes.diff(job, nodes, before, "east")
    for place, (_, known) in enumerate(found, 1):
        rest = changes.diff(job, nodes, known, "east")[1]
        assert rest[len(rest) - len(found) + place :] == found[place:]
    return after, [change for change, _ in found]


def test_a_job_that_runs_is_registered_and_started_once() -> None:
    """With nodes, ranks and labels; the next look has nothing to tell."""
    after, told = diff(RUNS)
    assert isinstance(told[0], JobRegistration)
    assert told[0].body["rank_nodes"] == {"0": "n1", "1": "n2"}
    assert told[0].body["labels"] == {"slurm_job": "7", "user": "ida"}
    assert told[0].body["tenant"] == "ida"
    assert told[1] == LifecycleEvent(1, {"kind": "started", "attempt": 1, "time": 100.0})
    assert diff(RUNS, after)[1] == []


def test_a_job_that_is_suspended_and_goes_on_is_told_once_each() -> None:
    """Its silence is no hang meanwhile."""
    after, told = diff(replace(RUNS, state="SUSPENDED"), MET)
    assert told == [LifecycleEvent(1, {"kind": "suspended", "attempt": 1})]
    after, told = diff(RUNS, diff(replace(RUNS, state="STOPPED"), after)[0])
    assert (told, diff(RUNS, after)[1]) == ([LifecycleEvent(1, {"kind": "resumed", "attempt": 1})], [])


def test_a_start_tells_how_long_the_launch_waited_and_why() -> None:
    """Slurm forgets the reason when the job starts; a launch that is requeued waits anew."""
    pending = replace(RUNS, state="PENDING", nodes=(), started=0.0, submitted=40.0, wait_reason="Resources", minutes=60)
    waits = changes.wait_reasons({"7": pending}, {"8": "Priority"})
    assert waits == {"7": "Resources"}
    running = replace(pending, state="RUNNING", nodes=("n1", "n2"), started=100.0, wait_reason="")
    waits = changes.wait_reasons({"7": running}, waits)
    [_, start] = diff(replace(running, wait_reason=waits["7"]))[1]
    assert start.body == {
        "kind": "started",
        "attempt": 1,
        "time": 100.0,
        "submitted": 40.0,
        "reason": "Resources",
        "time_limit": 3600,
    }
    assert changes.wait_reasons({"7": replace(running, state="FAILED")}, waits) == {}


@pytest.mark.parametrize(
    "chosen",
    [
        {"labels": {"account": "free", "user": "ida", "tenant": "ida"}},
        {"name": "ida", "comment": "tenant=ida"},
        {"user": "", "uid": 1002},
    ],
)
def test_a_job_cannot_choose_its_tenant(chosen: dict[str, Any]) -> None:
    """Without accounting Slurm takes any account at submission: it stays a label. The user is the submitter's."""
    told = diff(replace(RUNS, **{"user": "eve", **chosen}))[1][0]
    assert isinstance(told, JobRegistration)
    assert told.body["tenant"] == (chosen.get("user", "eve") or "uid 1002")


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
    after, found = diff(replace(RUNS, state=state, code=code, signal=signal), MET)
    assert found == [LifecycleEvent(1, {"attempt": 1, "reason": state, **told}, ends=True)]
    assert diff(replace(RUNS, state=state), after)[1] == []


def test_a_requeue_that_slurm_did_itself_ends_the_launch_before() -> None:
    """Its end was never seen: a node that is down tells why."""
    after, told = diff(replace(RUNS, state="PENDING", restarts=1, nodes=()), MET, DEAD)
    assert after == JobCheckpoint("slurm-east-7", 2, earlier_nodes=MET.nodes)
    [end] = told
    assert isinstance(end, LifecycleEvent)
    assert end.body == {"kind": "exit", "attempt": 1, "code": 1, "reason": "NODE_FAIL", "node": "n2"}
    assert end.lines == ("NodeName=n2 State=DOWN*",)


def test_a_requeue_by_somebody_is_no_failure() -> None:
    """All nodes are well: a person or a plan requeued it."""
    [end] = diff(replace(RUNS, restarts=1, state="PENDING", nodes=()), MET)[1]
    assert isinstance(end, LifecycleEvent)
    assert end.body["kind"] == "cancelled"


def test_what_ended_before_the_agent_began_is_history() -> None:
    """A job that began and ended between two looks is not."""
    ended = replace(RUNS, state="FAILED", ended=200.0)
    assert not changes.concerns(ended, False, since=210.0)
    assert changes.concerns(ended, False, since=200.9)
    assert changes.concerns(RUNS, False, since=210.0)
    assert not changes.concerns(replace(RUNS, state="PENDING"), False, since=0.0)
