"""What the agent keeps of the cluster's objects."""

from typing import Any

import pytest

from diagnoser.agent.kubernetes import parsing, ranks
from diagnoser.agent.kubernetes.informer_cache import InformerCache
from diagnoser.agent.kubernetes.kinds import KINDS
from diagnoser.agent.kubernetes.logs import LineSplitter
from diagnoser.agent.kubernetes.parsing import ContainerExit
from diagnoser.agent.kubernetes.reflector import Reflector
from diagnoser.agent.state_file import LogOffset

GPUS = {"resources": {"limits": {"nvidia.com/gpu": "8"}}}
START, END = "2026-01-01T00:00:10Z", "2026-01-01T00:01:00Z"


def pod(status: dict[str, Any] | None = None, *, env: dict[str, str] | None = None, **meta: Any) -> dict[str, Any]:
    owner = {"kind": "Job", "name": "llama", "uid": "u"}
    given = {
        "name": "llama-0",
        "namespace": "train",
        "uid": "p1",
        "creationTimestamp": START,
        "ownerReferences": [owner],
    }
    variables = [{"name": name, "value": value} for name, value in (env or {}).items()]
    container = {"name": "main", "env": variables}
    return {
        "metadata": {**given, **meta},
        "spec": {"nodeName": "n1", "containers": [container, {"name": "sidecar"}]},
        "status": status or {},
    }


def shown(state: dict[str, Any], restarts: int = 0, **more: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "main", "restartCount": restarts, "state": state, **more}]}


@pytest.mark.parametrize(
    ("found", "place"),
    [
        (pod(), None),
        (pod(annotations={"batch.kubernetes.io/job-completion-index": "3"}), (3, 1)),
        (pod(labels={"jobset.sigs.k8s.io/job-index": "2"}), (2, 1)),
        (pod(labels={"jobset.sigs.k8s.io/job-index": "2", "batch.kubernetes.io/job-completion-index": "1"}), None),
        (
            pod(labels={"training.kubeflow.org/replica-type": "worker", "training.kubeflow.org/replica-index": "1"}),
            (2, 1),
        ),
        (
            pod(labels={"training.kubeflow.org/replica-type": "master", "training.kubeflow.org/replica-index": "0"}),
            (0, 1),
        ),
        (pod(env={"NODE_RANK": "2", "NPROC_PER_NODE": "4"}), (8, 4)),
        (pod(env={"RANK": "1"}, labels={"diagnoser.io/rank": "7"}), (7, 1)),
        (pod(env={"RANK": "$(INDEX)"}), None),
        (pod(env={"RANK": "99999999999"}), None),
    ],
)
def test_ranks_are_told_by_what_the_pod_says(found: dict[str, Any], place: tuple[int, int] | None) -> None:
    """Ours first, then variables, then the controllers' labels; what cannot be told is not guessed."""
    assert ranks.place(found) == place


def test_a_pod_with_gpus_runs_a_rank_for_each() -> None:
    """An index of pods becomes the first of its ranks."""
    found = pod(labels={"batch.kubernetes.io/job-completion-index": "2"})
    found["spec"]["containers"][0] |= GPUS
    assert ranks.place(found) == (16, 8)


@pytest.mark.parametrize(
    ("meta", "owner"),
    [
        ({}, ("job", "train", "llama")),
        ({"labels": {"jobset.sigs.k8s.io/jobset-name": "set"}}, ("jobset", "train", "set")),
        ({"labels": {"ray.io/cluster": "ray-x"}}, ("raycluster", "train", "ray-x")),
        ({"ownerReferences": [{"kind": "PyTorchJob", "name": "pt"}]}, ("pytorchjob", "train", "pt")),
    ],
)
def test_a_pod_belongs_to_its_workload(meta: dict[str, Any], owner: tuple[str, str, str]) -> None:
    """Also through the Job that a JobSet makes."""
    found = parsing.pod(pod(**meta))
    assert found is not None
    assert found.owner == owner


def test_a_pod_of_anything_else_is_not_kept() -> None:
    """Most pods of a cluster are none of ours."""
    assert parsing.pod(pod(ownerReferences=[{"kind": "ReplicaSet", "name": "web"}])) is None


def test_a_containers_end_is_kept_with_what_the_cluster_says() -> None:
    """The pod's own reason says more than the container's."""
    over = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "startedAt": START, "finishedAt": END}}
    [run] = _runs(shown(over))
    assert (run.started, run.ended) == (1767225610.0, ContainerExit(137, "OOMKilled", 1767225660.0))
    [run] = _runs({**shown(over), "phase": "Failed", "reason": "Evicted", "message": "low on memory"})
    assert run.ended == ContainerExit(137, "Evicted", 1767225660.0, 0, "low on memory")
    why = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]
    [run] = _runs({**shown(over), "phase": "Failed", "conditions": why})
    assert run.ended
    assert run.ended.reason == "PreemptionByScheduler"
    [run] = _runs({"phase": "Failed", "reason": "NodeLost"})
    assert run.ended
    assert (run.ended.code, run.ended.reason) == (None, "NodeLost")


def test_a_container_that_started_again_has_two_lives() -> None:
    """The one before ended, and the present one could not exist before that."""
    last = {"terminated": {"exitCode": 1, "reason": "Error", "startedAt": START, "finishedAt": END}}
    before, now = _runs(shown({"running": {"startedAt": "2026-01-01T00:02:00Z"}}, 1, lastState=last))
    assert (before.key, before.before, before.ended) == ("p1/0", True, ContainerExit(1, "Error", 1767225660.0))
    assert (now.key, now.created, now.ended) == ("p1/1", 1767225661.0, None)


def test_a_pod_that_waits_has_not_started() -> None:
    """Neither without a status nor while its image is pulled."""
    for status in ({}, shown({"waiting": {"reason": "ContainerCreating"}})):
        [run] = _runs(status)
        assert (run.started, run.ended) == (0.0, None)


def _runs(status: dict[str, Any]) -> tuple[parsing.ContainerRun, ...]:
    found = parsing.pod(pod(status))
    assert found is not None
    return found.runs


def workload(word: str, *, gpus: bool = False, **meta: Any) -> parsing.Workload:
    template = {"spec": {"containers": [{"name": "main", **(GPUS if gpus else {})}]}}
    given = {"name": "x", "namespace": "train", "uid": "u", **meta}
    return parsing.workload(KINDS[word], {"metadata": given, "spec": {"template": template}})


def test_workloads_are_chosen_by_kind_gpus_or_mark() -> None:
    """A mark of ours wins; a Job that a JobSet made is looked after with its JobSet."""
    assert workload("pytorchjob").chosen
    assert workload("job", gpus=True).chosen
    assert not workload("job").chosen
    assert workload("job", labels={"diagnoser.io/watch": "true"}).chosen
    assert not workload("rayjob", annotations={"diagnoser.io/watch": "false"}).chosen
    assert not workload("job", gpus=True, ownerReferences=[{"kind": "JobSet", "name": "set"}]).chosen


def test_labels_reach_the_policy_by_their_last_word() -> None:
    """A queue of Kueue is the partition; what a controller wrote for itself is left out."""
    labels = {"diagnoser.io/family": "llama", "controller-uid": "u", "kueue.x-k8s.io/queue-name": "a100"}
    assert workload("job", labels=labels).labels == {"partition": "a100", "family": "llama", "queue-name": "a100"}


def test_a_deleted_pod_ends_by_what_is_known_of_its_node() -> None:
    """A lost node, an event that told why, or a plain deletion."""
    ends = []
    for ready, reason in ((True, ""), (False, ""), (True, "Preempted")):
        cache = InformerCache()
        status = "True" if ready else "Unknown"
        conditions = [{"type": "Ready", "status": status}]
        cache.put_node({"metadata": {"name": "n1"}, "status": {"conditions": conditions}})
        cache.put_pod(pod(shown({"running": {"startedAt": START}})))
        about = {"kind": "Pod", "uid": "p1", "name": "llama-0"}
        cache.put_event({"metadata": {}, "involvedObject": about, "reason": reason})
        cache.drop_pod({"metadata": {"uid": "p1"}})
        [gone] = cache.by_workload()["job", "train", "llama"]
        assert gone.gone
        ends.append(gone.runs[0].ended)
    assert ends == [ContainerExit(None, "Deleted"), ContainerExit(None, "NodeLost"), ContainerExit(None, "Preempted")]


def test_that_a_pod_ran_is_remembered() -> None:
    """Older kubelets tell of an evicted pod without its containers."""
    cache = InformerCache()
    for status in (shown({"running": {"startedAt": START}}), {"phase": "Failed", "reason": "Evicted"}):
        cache.put_pod(pod(status))
    [run] = cache.pods["p1"].runs
    assert run.ended
    assert (run.started, run.ended.reason) == (1767225610.0, "Evicted")


def test_a_warning_about_a_node_becomes_a_line_of_its_log() -> None:
    """Others are no news."""
    about = {"kind": "Node", "name": "n1"}
    event = {"metadata": {}, "involvedObject": about, "reason": "SystemOOM", "message": "System OOM\nencountered"}
    cache = InformerCache()
    cache.put_event({**event, "type": "Warning"})
    cache.put_event({**event, "type": "Normal"})
    assert list(cache.notes) == [("n1", "node n1: SystemOOM: System OOM encountered")]


def test_why_a_pod_waits_is_remembered() -> None:
    """As the scheduler told it last, until the pod is gone; what others tell of the pod is no reason."""
    cache = InformerCache()
    cache.put_pod(pod(shown({"running": {"startedAt": START}})))
    about = {"kind": "Pod", "uid": "p1", "name": "llama-0"}
    message = "0/5 nodes are available: 5 Insufficient nvidia.com/gpu."
    cache.put_event({"metadata": {}, "involvedObject": about, "reason": "FailedScheduling", "message": message})
    cache.put_event({"metadata": {}, "involvedObject": about, "reason": "BackOff", "message": "NODE_FAIL"})
    [waited] = cache.by_workload()["job", "train", "llama"]
    assert waited.wait_reason == f"FailedScheduling: {message}"
    cache.drop_pod({"metadata": {"uid": "p1"}})
    assert cache.waits == {}


def test_pods_of_a_ray_cluster_belong_to_the_job_that_made_it() -> None:
    """The RayJob names its cluster."""
    cache = InformerCache()
    cache.put_pod(pod(labels={"ray.io/cluster": "ray-x"}))
    meta = {"name": "tune", "namespace": "train", "uid": "r1"}
    cache.put_workload(KINDS["rayjob"], {"metadata": meta, "status": {"rayClusterName": "ray-x"}})
    assert list(cache.by_workload()) == [("rayjob", "train", "tune")]


def test_an_object_of_an_unexpected_form_does_not_end_the_watch() -> None:
    """It is passed over, and the watch goes on behind it."""
    kept: list[str] = []

    def put(item: dict[str, Any]) -> None:
        kept.append(item["spec"]["x"])

    reflector = Reflector(None, "/api/v1/pods", put, lambda item: None)  # type: ignore[arg-type]
    for version, spec in (("7", {}), ("8", {"x": "kept"})):
        item = {"metadata": {"uid": version, "name": "p", "resourceVersion": version}, "spec": spec}
        reflector._take({"type": "ADDED", "object": item})
    assert (kept, reflector.version) == (["kept"], "8")


def _cut(offset: LogOffset, *chunks: bytes) -> tuple[list[bytes], LogOffset]:
    splitter = LineSplitter(offset)
    for chunk in chunks:
        splitter.add(chunk)
    splitter.end()
    return splitter.take()


LOG = b"".join(b"2026-01-01T00:00:0%d.%09dZ line %d\n" % (n // 4, n % 4 // 2, n) for n in range(12))


@pytest.mark.parametrize("read", range(13))
def test_a_log_that_is_opened_again_gives_each_line_once(read: int) -> None:
    """The server gives whole seconds again, and lines may have the same stamp."""
    lines = LOG.splitlines(keepends=True)
    first, offset = _cut(LogOffset(), *lines[:read])
    since = offset.time[:19].encode()
    again = [line for line in lines if line[:19] >= since]
    rest, after = _cut(offset, b"".join(again)[:7], b"".join(again)[7:])
    assert [b"line %d" % n in one for n, one in enumerate([*first, *rest])] == [True] * 12
    assert len(first) + len(rest) == after.lines == 12


def test_lines_without_a_stamp_and_without_an_end_count() -> None:
    """Whatever a runtime writes is kept, as text that a record can hold."""
    lines, offset = _cut(LogOffset(), b"no stamp\n2026-01-01T00:00:00.5Z \xff\0last")
    assert lines == [b'{"message":"no stamp"}', '{"message":"\ufffdlast","time":1767225600.5}'.encode()]
    assert offset == LogOffset(2, time="2026-01-01T00:00:00.500000000Z", same=1)


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        ([("Ready", "True", ""), ("SysLogsXIDError", "True", "[79] on GPU 0")], "SysLogsXIDError: [79] on GPU 0"),
        ([("GpuMemWatch", "False", "passed"), ("MemoryPressure", "True", "low")], ""),
        ([("Ready", "False", "kubelet stopped"), ("GpuMemWatch", "True", "x")], "Reason: kubelet stopped"),
    ],
)
def test_a_health_monitor_says_why_a_node_is_out_of_service(
    conditions: list[tuple[str, str, str]], reason: str
) -> None:
    """By a condition of NVSentinel that holds, where the node is ready; a pressure of Kubernetes is none."""
    told = [{"type": kind, "status": status, "reason": "Reason", "message": text} for kind, status, text in conditions]
    manifest = {"metadata": {"name": "n1"}, "spec": {"unschedulable": True}, "status": {"conditions": told}}
    assert parsing.node(manifest).reason == reason
