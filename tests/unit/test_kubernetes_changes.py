"""What is new about a workload since the last look."""

from dataclasses import replace
from typing import Any

import pytest

from diagnoser.agent.changes import Changes, JobRegistration, LifecycleEvent
from diagnoser.agent.kubernetes import changes
from diagnoser.agent.kubernetes.changes import WorkloadView
from diagnoser.agent.kubernetes.parsing import ContainerExit, ContainerRun, PodRecord, Workload
from diagnoser.agent.state_file import JobCheckpoint

WORK = Workload("job", "train", "llama", "u1", labels={"family": "llama"})
NEW = JobCheckpoint("k8s:lab:job:train:llama", 1)
ONE = ContainerRun("p1", 0, "train", "llama-0", "main", "n1", (0, 1), 100.0, 101.0)
TWO = ContainerRun("p2", 0, "train", "llama-1", "main", "n2", (1, 1), 100.0, 102.0)
DEAD = replace(ONE, ended=ContainerExit(1, "Error", 200.0))
KILLED = replace(TWO, ended=ContainerExit(137, "Error", 201.0))


def view(*runs: ContainerRun, work: Workload | None = WORK, now: float = 300.0, unread: bool = False) -> WorkloadView:
    pods = (PodRecord("any", "train", "llama", WORK.key, runs=runs),)
    return WorkloadView(work, pods, now, lambda run: unread)


def diff(seen: WorkloadView, before: JobCheckpoint) -> tuple[JobCheckpoint, Changes]:
    return changes.diff(seen, before, "lab")


def kinds(found: Changes) -> list[Any]:
    return [one.body["kind"] if isinstance(one, LifecycleEvent) else "registered" for one, _ in found]


def started(*runs: ContainerRun) -> JobCheckpoint:
    return diff(view(*runs), NEW)[0]


def test_pods_that_run_are_registered_and_started_once() -> None:
    """With nodes, ranks and labels; the next look has nothing to tell."""
    after, told = diff(view(ONE, TWO), NEW)
    first, second = (one for one, _ in told)
    assert isinstance(first, JobRegistration)
    assert first.body["rank_nodes"] == {"0": "n1", "1": "n2"}
    assert first.body["labels"] == {"family": "llama", "namespace": "train", "kind": "job", "uid": "u1"}
    assert first.body["tenant"] == "train"
    assert second == LifecycleEvent(1, {"kind": "started", "attempt": 1, "time": 101.0})
    assert diff(view(ONE, TWO), after) == (after, [])


def test_a_start_tells_how_long_the_launch_waited() -> None:
    """The first one since its workload was made, a later one since its pods were; with the limit of its time."""
    work = replace(WORK, created=40.0, time_limit=7200)
    after, told = diff(view(ONE, TWO, work=work), NEW)
    assert told[1][0].body == {
        "kind": "started",
        "attempt": 1,
        "time": 101.0,
        "submitted": 40.0,
        "time_limit": 7200,
    }
    again = replace(ONE, uid="p3", created=210.0, started=230.0)
    failed = diff(view(DEAD, KILLED, work=work), after)[0]
    told = diff(view(DEAD, KILLED, again, work=work), failed)[1]
    assert told[-1][0].body == {
        "kind": "started",
        "attempt": 2,
        "time": 230.0,
        "submitted": 210.0,
        "time_limit": 7200,
    }


def test_a_pod_that_only_waits_is_no_launch() -> None:
    """Nothing has run: there is nothing to tell."""
    assert diff(view(replace(ONE, started=0.0)), NEW)[1] == []


def test_the_first_failure_ends_the_launch_for_all() -> None:
    """Rank, node and code are of the pod that failed first; the other died of it."""
    after, told = diff(view(DEAD, KILLED), started(ONE, TWO))
    [(end, _)] = told
    assert isinstance(end, LifecycleEvent)
    assert end.body == {
        "kind": "exit",
        "attempt": 1,
        "reason": "Error",
        "time": 200.0,
        "code": 1,
        "node": "n1",
        "rank": 0,
    }
    assert (after.ended, end.lines) == (True, ())


def test_the_others_get_a_moment_to_end_by_themselves() -> None:
    """Their last lines belong to the diagnosis; a rank that hangs holds nobody up for long."""
    known = started(ONE, TWO)
    assert diff(view(DEAD, TWO, now=203.0), known)[1] == []
    assert kinds(diff(view(DEAD, TWO, now=206.0), known)[1]) == ["exit"]


def test_an_end_waits_for_the_last_lines_but_not_for_ever() -> None:
    """The log of a pod that ended is read first, as far as it can be."""
    known = started(ONE, TWO)
    assert diff(view(DEAD, KILLED, now=203.0, unread=True), known)[1] == []
    assert kinds(diff(view(DEAD, KILLED, now=211.0, unread=True), known)[1]) == ["exit"]


def test_what_starts_after_a_failure_is_the_next_launch() -> None:
    """A controller replaced the pods: the runs before are not counted again while their pods can still be seen."""
    again = replace(ONE, uid="p3", pod="llama-0b", created=210.0, started=211.0, node="n3")
    after, told = diff(view(DEAD, KILLED, again), started(ONE, TWO))
    assert kinds(told) == ["exit", "registered", "started"]
    assert (after.attempt, after.nodes, after.members, after.past) == (2, ("n3",), ("p3/0",), ("p1/0", "p2/0"))
    assert diff(view(DEAD, KILLED, again), after)[1] == []
    end = replace(again, ended=ContainerExit(9, "Error", 250.0))
    assert [one.body["attempt"] for one, _ in diff(view(DEAD, KILLED, end), after)[1]] == [2]


def test_a_replacement_within_the_second_of_the_failure_is_the_next_launch() -> None:
    """Times are of whole seconds. The same holds for an agent that lost its state; but where the pod that failed is of
    that second as well, both belong to the first launch."""
    again = replace(ONE, uid="p3", created=200.0, started=201.0)
    assert diff(view(DEAD, again), started(ONE))[0].attempt == 2
    assert diff(view(DEAD, again), NEW)[0].attempt == 2
    assert diff(view(replace(DEAD, created=200.0), replace(TWO, created=200.0), now=201.0), NEW)[0].attempt == 1


def test_a_pod_that_was_turned_away_is_no_failure() -> None:
    """A kubelet short of devices refuses pods: the launch is the one that runs in the end."""
    away = replace(ONE, uid="p3", created=202.0, started=0.0, ended=ContainerExit(None, "OutOfnvidia.com/gpu", 203.0))
    again = replace(ONE, uid="p4", created=212.0, started=213.0)
    after, told = diff(view(DEAD, away, again), started(ONE))
    assert kinds(told) == ["exit", "registered", "started"]
    assert (after.attempt, after.ended) == (2, False)


def test_a_container_that_starts_again_in_its_pod_is_the_next_launch() -> None:
    """The life before is a run of its own, with its own end."""
    before = replace(DEAD, before=True)
    now = replace(ONE, restarts=1, created=200.5, started=205.0)
    after, told = diff(view(before, now), started(ONE))
    assert kinds(told) == ["exit", "registered", "started"]
    assert (after.attempt, after.members) == (2, ("p1/1",))


def test_each_thing_told_leaves_a_state_to_go_on_from() -> None:
    """The service may go away between any two: what was told is not told again, and the rest is."""
    again = replace(ONE, uid="p3", pod="llama-0b", created=210.0, started=211.0)
    seen = view(DEAD, KILLED, again)
    _, told = diff(seen, started(ONE, TWO))
    for place, (_, tracked) in enumerate(told, 1):
        assert kinds(diff(seen, tracked)[1])[-len(told) + place :] == kinds(told)[place:]
    assert diff(seen, told[-1][1])[1] == []


ENDS = [
    (
        ContainerExit(137, "OOMKilled", 200.0),
        "exit",
        {"code": 137, "reason": "OOMKilled"},
        "reason: OOMKilled, exit code 137",
    ),
    (
        ContainerExit(None, "Evicted", 200.0, 0, "low on memory"),
        "exit",
        {"code": 1, "reason": "Evicted"},
        "low on memory",
    ),
    (ContainerExit(None, "NodeLost"), "exit", {"code": 1, "reason": "NODE_FAIL"}, "node n1 NotReady"),
    (ContainerExit(0, "Error", 200.0, 11), "exit", {"signal": 11, "reason": "Error"}, ""),
    (ContainerExit(143, "Preempted", 200.0), "preempted", {"reason": "Preempted"}, "reason: Preempted"),
    (ContainerExit(None, "Deleted"), "cancelled", {"reason": "Deleted"}, ""),
]


@pytest.mark.parametrize(("ended", "kind", "fields", "line"), ENDS)
def test_an_end_is_told_in_the_clusters_words(
    ended: ContainerExit, kind: str, fields: dict[str, Any], line: str
) -> None:
    """A launch that the cluster stopped never counts as complete, whatever its code."""
    ended = replace(ended, code=1) if ended.signal else ended
    [(end, _)] = diff(view(replace(ONE, ended=ended)), started(ONE))[1]
    assert isinstance(end, LifecycleEvent)
    assert end.body["kind"] == kind
    assert fields.items() <= end.body.items()
    assert line in "".join(end.lines)


def test_a_good_end_is_the_workloads_own() -> None:
    """Pods that its controller deletes then did not fail."""
    done = replace(WORK, end=("done", "Completed"), ended=250.0)
    swept = replace(TWO, ended=ContainerExit(None, "Deleted"))
    [(end, _)] = diff(
        view(replace(ONE, ended=ContainerExit(0, "Completed", 249.0)), swept, work=done), started(ONE, TWO)
    )[1]
    assert end.body == {"kind": "exit", "attempt": 1, "code": 0, "reason": "Completed", "time": 250.0}


def test_a_workload_that_failed_without_a_failed_pod_says_why() -> None:
    """Its deadline passed, and its pods were deleted with it."""
    over = replace(WORK, end=("failed", "DeadlineExceeded"), ended=250.0)
    [(end, _)] = diff(view(ONE, work=over), started(ONE))[1]
    assert isinstance(end, LifecycleEvent)
    assert (end.body["code"], end.body["reason"]) == (1, "DeadlineExceeded")
    assert "DeadlineExceeded" in end.lines[0]


def test_a_deleted_workload_is_cancelled_once() -> None:
    """One that had ended, or never started, is not told about."""
    after, found = diff(view(work=None), started(ONE))
    assert (kinds(found), after.ended) == (["cancelled"], True)
    for before in (NEW, after):
        assert diff(view(work=None), before) == (before, [])


def test_a_pod_that_leaves_a_lost_node_has_ended() -> None:
    """Its kubelet will never say so."""
    pod = PodRecord("p1", "train", "llama-0", ("job", "train", "llama"), "n1", runs=(ONE,), leaving=True)
    assert [run.ended for run in changes.runs_of([replace(pod, lost=True)])] == [ContainerExit(None, "NodeLost")]
    assert [run.ended for run in changes.runs_of([pod])] == [None]
