"""What is new about a workload since the last look."""

from dataclasses import replace
from typing import Any

import pytest

from diagnoser.agent.kubernetes import memory, watch
from diagnoser.agent.kubernetes.memory import Mark, Seen
from diagnoser.agent.kubernetes.records import Ended, NodeRecord, PodRecord, Run, Workload
from diagnoser.agent.kubernetes.watch import Happened, Look, Registered, Standing, Tracked

WORK = Workload("job", "train", "llama", "u1", labels={"family": "llama"})
NEW = Tracked("k8s:lab:job:train:llama", 1)
ONE = Run("p1", 0, "train", "llama-0", "main", "n1", (0, 1), 100.0, 101.0)
TWO = Run("p2", 0, "train", "llama-1", "main", "n2", (1, 1), 100.0, 102.0)
DEAD = replace(ONE, ended=Ended(1, "Error", 200.0))
KILLED = replace(TWO, ended=Ended(137, "Error", 201.0))


def look(*runs: Run, work: Workload = WORK, now: float = 300.0, unread: bool = False) -> Look:
    return Look(work, runs, now, "lab", lambda run: unread)


def kinds(told: watch.Told) -> list[Any]:
    return [one.body["kind"] if isinstance(one, Happened) else "registered" for one, _ in told]


def begun(*runs: Run) -> Tracked:
    return watch.news(look(*runs), NEW)[0]


def test_pods_that_run_are_registered_and_started_once() -> None:
    """With nodes, ranks and labels; the next look has nothing to tell."""
    after, told = watch.news(look(ONE, TWO), NEW)
    first, second = (one for one, _ in told)
    assert isinstance(first, Registered)
    assert first.body["rank_nodes"] == {"0": "n1", "1": "n2"}
    assert first.body["labels"] == {"family": "llama", "namespace": "train", "kind": "job", "uid": "u1"}
    assert second == Happened(1, {"kind": "started", "attempt": 1, "time": 101.0})
    assert watch.news(look(ONE, TWO), after) == (after, [])


def test_a_pod_that_only_waits_is_no_launch() -> None:
    """Nothing has run: there is nothing to tell."""
    assert watch.news(look(replace(ONE, started=0.0)), NEW)[1] == []


def test_the_first_failure_ends_the_launch_for_all() -> None:
    """Rank, node and code are of the pod that failed first; the other died of it."""
    after, told = watch.news(look(DEAD, KILLED), begun(ONE, TWO))
    [(end, _)] = told
    assert isinstance(end, Happened)
    assert end.body == {
        "kind": "exit",
        "attempt": 1,
        "reason": "Error",
        "time": 200.0,
        "code": 1,
        "node": "n1",
        "rank": 0,
    }
    assert (after.ended, end.lines) == (200.0, ())


def test_the_others_get_a_moment_to_end_by_themselves() -> None:
    """Their last lines belong to the diagnosis; a rank that hangs holds nobody up for long."""
    known = begun(ONE, TWO)
    assert watch.news(look(DEAD, TWO, now=203.0), known)[1] == []
    assert kinds(watch.news(look(DEAD, TWO, now=206.0), known)[1]) == ["exit"]


def test_an_end_waits_for_the_last_lines_but_not_for_ever() -> None:
    """The log of a pod that ended is read first, as far as it can be."""
    known = begun(ONE, TWO)
    assert watch.news(look(DEAD, KILLED, now=203.0, unread=True), known)[1] == []
    assert kinds(watch.news(look(DEAD, KILLED, now=211.0, unread=True), known)[1]) == ["exit"]


def test_what_starts_after_a_failure_is_the_next_launch() -> None:
    """A controller replaced the pods: the runs before are not counted again while their pods can still be seen."""
    again = replace(ONE, uid="p3", pod="llama-0b", created=210.0, started=211.0, node="n3")
    after, told = watch.news(look(DEAD, KILLED, again), begun(ONE, TWO))
    assert kinds(told) == ["exit", "registered", "started"]
    assert (after.attempt, after.nodes, after.members, after.past) == (2, ("n3",), ("p3/0",), ("p1/0", "p2/0"))
    assert watch.news(look(DEAD, KILLED, again), after)[1] == []
    end = replace(again, ended=Ended(9, "Error", 250.0))
    assert [one.body["attempt"] for one, _ in watch.news(look(DEAD, KILLED, end), after)[1]] == [2]


def test_a_replacement_within_the_second_of_the_failure_is_the_next_launch() -> None:
    """Times are of whole seconds. Before anything is known, such a pod belongs to the first launch."""
    again = replace(ONE, uid="p3", created=200.0, started=201.0)
    assert watch.news(look(DEAD, again), begun(ONE))[0].attempt == 2
    assert watch.news(look(replace(DEAD, created=200.0), replace(TWO, created=200.0), now=201.0), NEW)[0].attempt == 1


def test_a_pod_that_was_turned_away_is_no_failure() -> None:
    """A kubelet short of devices refuses pods: the launch is the one that runs in the end."""
    away = replace(ONE, uid="p3", created=202.0, started=0.0, ended=Ended(None, "OutOfnvidia.com/gpu", 203.0))
    again = replace(ONE, uid="p4", created=212.0, started=213.0)
    after, told = watch.news(look(DEAD, away, again), begun(ONE))
    assert kinds(told) == ["exit", "registered", "started"]
    assert (after.attempt, after.ended) == (2, None)


def test_a_container_that_starts_again_in_its_pod_is_the_next_launch() -> None:
    """The life before is a run of its own, with its own end."""
    before = replace(DEAD, before=True)
    now = replace(ONE, restarts=1, created=200.5, started=205.0)
    after, told = watch.news(look(before, now), begun(ONE))
    assert kinds(told) == ["exit", "registered", "started"]
    assert (after.attempt, after.members) == (2, ("p1/1",))


def test_each_thing_told_leaves_a_state_to_go_on_from() -> None:
    """The service may go away between any two: what was told is not told again, and the rest is."""
    again = replace(ONE, uid="p3", pod="llama-0b", created=210.0, started=211.0)
    seen = look(DEAD, KILLED, again)
    _, told = watch.news(seen, begun(ONE, TWO))
    for place, (_, tracked) in enumerate(told, 1):
        assert kinds(watch.news(seen, tracked)[1])[-len(told) + place :] == kinds(told)[place:]
    assert watch.news(seen, told[-1][1])[1] == []


ENDS = [
    (Ended(137, "OOMKilled", 200.0), "exit", {"code": 137, "reason": "OOMKilled"}, "reason: OOMKilled, exit code 137"),
    (Ended(None, "Evicted", 200.0, 0, "low on memory"), "exit", {"code": 1, "reason": "Evicted"}, "low on memory"),
    (Ended(None, "NodeLost"), "exit", {"code": 1, "reason": "NODE_FAIL"}, "node n1 NotReady"),
    (Ended(0, "Error", 200.0, 11), "exit", {"signal": 11, "reason": "Error"}, ""),
    (Ended(143, "Preempted", 200.0), "preempted", {"reason": "Preempted"}, "reason: Preempted"),
    (Ended(None, "Deleted"), "cancelled", {"reason": "Deleted"}, ""),
]


@pytest.mark.parametrize(("ended", "kind", "fields", "line"), ENDS)
def test_an_end_is_told_in_the_clusters_words(ended: Ended, kind: str, fields: dict[str, Any], line: str) -> None:
    """A launch that the cluster stopped never counts as complete, whatever its code."""
    ended = replace(ended, code=1) if ended.signal else ended
    [(end, _)] = watch.news(look(replace(ONE, ended=ended)), begun(ONE))[1]
    assert isinstance(end, Happened)
    assert end.body["kind"] == kind
    assert fields.items() <= end.body.items()
    assert line in "".join(end.lines)


def test_a_good_end_is_the_workloads_own() -> None:
    """Pods that its controller deletes then did not fail."""
    done = replace(WORK, end=("done", "Completed"), ended=250.0)
    swept = replace(TWO, ended=Ended(None, "Deleted"))
    [(end, _)] = watch.news(look(replace(ONE, ended=Ended(0, "Completed", 249.0)), swept, work=done), begun(ONE, TWO))[
        1
    ]
    assert end.body == {"kind": "exit", "attempt": 1, "code": 0, "reason": "Completed", "time": 250.0}


def test_a_workload_that_failed_without_a_failed_pod_says_why() -> None:
    """Its deadline passed, and its pods were deleted with it."""
    over = replace(WORK, end=("failed", "DeadlineExceeded"), ended=250.0)
    [(end, _)] = watch.news(look(ONE, work=over), begun(ONE))[1]
    assert isinstance(end, Happened)
    assert (end.body["code"], end.body["reason"]) == (1, "DeadlineExceeded")
    assert "DeadlineExceeded" in end.lines[0]


def test_a_deleted_workload_is_cancelled_once() -> None:
    """One that had ended, or never started, is not told about."""
    told = watch.vanished(begun(ONE), 300.0)
    assert told and told.body["kind"] == "cancelled"
    assert watch.vanished(NEW, 300.0) is None
    assert watch.vanished(replace(begun(ONE), ended=200.0), 300.0) is None


def test_a_pod_that_leaves_a_lost_node_has_ended() -> None:
    """Its kubelet will never say so."""
    pod = PodRecord("p1", "train", "llama-0", ("job", "train", "llama"), "n1", runs=(ONE,), leaving=True)
    lost, there = ({"n1": NodeRecord("n1", ready=ready)} for ready in (False, True))
    assert [run.ended for run in watch.runs_of([pod], lost)] == [Ended(None, "NodeLost")]
    assert [run.ended for run in watch.runs_of([pod], there)] == [None]


OURS = NodeRecord("n1", cordoned=True, plan="p9", reason="diagnoser p9: ecc_error")
THEIRS = NodeRecord("n1", cordoned=True, reason="")
DOWN = NodeRecord("n1", ready=False, why="Kubelet is silent")
NODES = [
    (Standing(), THEIRS, ("cordoned", "person")),
    (Standing(), OURS, None),
    (Standing("cordoned", ours=True), NodeRecord("n1"), ("uncordoned", "person")),
    (Standing("cordoned"), NodeRecord("n1"), ("uncordoned", "person")),
    (Standing(), DOWN, ("down", "diagnoser")),
    (Standing("down"), NodeRecord("n1"), ("resumed", "diagnoser")),
    (Standing("down"), replace(DOWN, cordoned=True), ("cordoned", "person")),
    (Standing("cordoned", ours=True), OURS, None),
]


@pytest.mark.parametrize(("before", "node", "told"), NODES)
def test_a_node_that_changed_is_told(before: Standing, node: NodeRecord, told: tuple[str, str] | None) -> None:
    """Cordons of ours are told with their plan; all others are a person's."""
    _, events = watch.node_news({"n1": before}, [node])
    assert [(event["kind"], event["by"]) for _, event in events] == ([told] if told else [])


def test_our_marks_are_stale_once_a_node_is_back() -> None:
    """Else the next person's cordon would look like ours."""
    assert watch.stale(replace(OURS, cordoned=False))
    assert not watch.stale(OURS)
    assert not watch.stale(NodeRecord("n1"))


def test_memory_comes_back_as_it_was() -> None:
    """Through the file's bytes; anything else in the file is refused."""
    tracked = replace(begun(ONE, TWO), ended=5.0, past=("x/0",))
    seen = Seen({"u1": tracked}, {"n1": Standing("down")}, {"p1/0": Mark(3, "2026-01-01T00:00:00.000000001Z", 2)})
    assert memory.decode(memory.encode(seen)) == seen
    with pytest.raises(ValueError, match="version 7"):
        memory.decode(b'{"version": 7}')
