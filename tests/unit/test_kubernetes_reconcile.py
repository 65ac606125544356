"""What to do next for a plan, and the workload that is made anew."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import orjson
import pytest

from diagnoser.agent.cluster import Attempts, CommandAttempt, Done, Held, NextStep, Run, Wait
from diagnoser.agent.kubernetes import reconcile, restart
from diagnoser.agent.kubernetes.cluster import KubernetesCluster, KubernetesNodes
from diagnoser.agent.kubernetes.informer_cache import InformerCache
from diagnoser.agent.kubernetes.kinds import JOB, KINDS, WorkloadKind, WorkloadRef, ending, templates
from diagnoser.agent.kubernetes.parsing import ContainerRun, PodRecord
from diagnoser.agent.kubernetes.reconcile import WorkloadState
from diagnoser.agent.nodes import NodeRecord
from diagnoser.agent.plan_spec import PlanSpec
from diagnoser.model.errors import BadInput
from diagnoser.model.taxonomy import Action

REF = WorkloadRef(JOB, "train", "llama")
SPEC = PlanSpec("P:1", Action.CORDON_AND_RESUBMIT, "k8s:lab:job:train:llama", 1, ("n1",), "ecc_error")
CHECK = replace(SPEC, action=Action.CHECK_AND_RESUBMIT, nodes=())
PATH = "/apis/batch/v1/namespaces/train/jobs"


def pods(**spec: Any) -> dict[str, Any]:
    return {"metadata": {}, "spec": {"containers": [{"name": "main", "image": "i"}], **spec}}


def work(uid: str = "u1", **spec: Any) -> dict[str, Any]:
    meta = {"name": "llama", "namespace": "train", "uid": uid, "resourceVersion": "5", "annotations": {}}
    return {"kind": "Job", "apiVersion": "batch/v1", "metadata": meta, "spec": {"template": pods(), **spec}}


def stored(found: dict[str, Any], attempt: int = 1) -> dict[str, Any]:
    """The copy that the first step makes."""
    step = relaunched(replace(SPEC, nodes=()), found, attempt)
    assert isinstance(step, Run)
    assert step.command.body is not None
    return dict(step.command.body)


def relaunched(
    spec: PlanSpec, found: dict[str, Any] | None, launch: int, copy: dict[str, Any] | None = None
) -> NextStep:
    return reconcile.relaunch(knowing(spec, copy), WorkloadState(REF, found, launch, copy), Attempts())


def knowing(spec: PlanSpec, copy: dict[str, Any] | None) -> PlanSpec:
    """The plan whose report has the digest of this copy."""
    return replace(spec, copies=frozenset({reconcile.copy_digest(copy)})) if copy else spec


def held(found: dict[str, Any] | None, launch: int, copy: dict[str, Any] | None = None) -> NextStep:
    return reconcile.hold(CHECK, WorkloadState(REF, found, launch, copy), Attempts())


def cluster() -> KubernetesCluster:
    """Good enough for what asks nothing."""
    nothing: Any = None
    return KubernetesCluster(nothing, "me", "lab", InformerCache(), "", nothing, nothing)


def plan(**fields: Any) -> dict[str, Any]:
    given = {"id": "p1", "job": SPEC.job, "attempt": 1, "action": "resubmit", "nodes": [], "rollback": None}
    return given | fields


def test_a_node_in_service_is_cordoned_with_our_marks() -> None:
    """Only as it was seen: the version keeps the patch from crossing a person's."""
    command = KubernetesNodes(None, "me").cordon(SPEC, NodeRecord("n1", version="7"))  # type: ignore[arg-type]
    assert command.words == ("PATCH", "/api/v1/nodes/n1")
    marks = {
        "diagnoser.io/plan": "P:1",
        "diagnoser.io/reason": "diagnoser P:1: ecc_error",
        "diagnoser.io/by": "me",
    }
    meta = {"resourceVersion": "7", "annotations": marks}
    assert command.body == {"metadata": meta, "spec": {"unschedulable": True}}


def test_the_workload_is_stored_before_it_is_deleted_and_deleted_by_its_uid() -> None:
    """Whenever the executor dies, either the object or its copy is there."""
    old = work()
    first = relaunched(SPEC, old, 1)
    assert isinstance(first, Run)
    assert first.command.words == ("POST", "/api/v1/namespaces/train/configmaps")
    second = relaunched(SPEC, old, 1, stored(old))
    assert isinstance(second, Run)
    assert second.command.words == ("DELETE", f"{PATH}/llama")
    assert second.command.body == {"propagationPolicy": "Foreground", "preconditions": {"uid": "u1"}}
    leaving = deepcopy(old)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert isinstance(relaunched(SPEC, leaving, 1, stored(old)), Wait)
    third = relaunched(SPEC, None, 0, stored(old))
    assert isinstance(third, Run)
    assert third.command.words == ("POST", PATH)
    assert third.command.body
    new = {**third.command.body, "metadata": {**third.command.body["metadata"], "uid": "u2"}}
    fourth = relaunched(SPEC, new, 2, stored(old))
    assert isinstance(fourth, Run)
    assert fourth.command.words == ("DELETE", "/api/v1/namespaces/train/configmaps/diagnoser-p-1")
    assert relaunched(SPEC, new, 2) == Done(True, "Job llama: launch 2 was made", SPEC.job)


def test_what_others_made_meanwhile_is_left_alone() -> None:
    """Another object under the name, or a later launch when it was to be checked."""
    end = relaunched(SPEC, work("u9"), 1, stored(work()))
    assert isinstance(end, Done)
    assert not end.reached
    end = held(work(), 2)
    assert isinstance(end, Done)
    assert not end.reached


def test_a_workload_that_ended_well_is_not_launched_again() -> None:
    """When its controller had launched it again already, that is what the plan was for."""
    done = {**work(), "status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    ends = [relaunched(SPEC, done, launch) for launch in (1, 2)]
    assert [isinstance(end, Done) and end.reached for end in ends] == [False, True]


def test_a_check_holds_the_workload_and_the_launch_after_it_excludes_what_it_found() -> None:
    """The copy is made without exclusions: they are known only at the end."""
    old = work()
    assert isinstance(held(old, 1), Run)
    assert held(None, 0, stored(old)) == Held()
    step = relaunched(replace(CHECK, nodes=("n2",)), None, 0, stored(old))
    assert isinstance(step, Run)
    assert "without n2" in step.command.line
    copy = stored(old)
    back = reconcile.put_back(knowing(CHECK, copy), WorkloadState(REF, None, 0, copy), Attempts())
    assert isinstance(back, Run)
    assert "without" not in back.command.line


def test_pods_of_a_later_launch_only_move() -> None:
    """Evicted in today's way, then the old one, then deleted; a disruption budget is asked again, never overruled."""
    here = (PodRecord("ua", "train", "a", REF.key, "n1"), PodRecord("ub", "train", "b", REF.key, "n2"))
    state = WorkloadState(REF, work(), 2, None, here)
    attempts = Attempts()
    lines = []
    for code in (429, 404, 403, 403):
        step = reconcile.relaunch(SPEC, state, attempts)
        assert isinstance(step, Run)
        attempts = Attempts((*attempts, CommandAttempt(step.command, code)))
        lines.append(step.command.line)
    assert [line.partition(" ")[0] for line in lines] == ["POST", "POST", "POST", "DELETE"]
    assert lines[0] == lines[1] == "POST /api/v1/namespaces/train/pods/a/eviction (policy/v1)"
    assert lines[2].endswith("(policy/v1beta1)")
    end = reconcile.relaunch(SPEC, state, attempts)
    assert isinstance(end, Done)
    assert not end.reached
    moved = reconcile.relaunch(SPEC, replace(state, pods=here[1:]), attempts)
    assert isinstance(moved, Done)
    assert moved.reached


def test_a_step_never_shows_what_a_workload_holds() -> None:
    """Variables of a pod may be secrets: the audit names the object, not its text."""
    secret = work(template=pods(containers=[{"name": "main", "env": [{"name": "KEY", "value": "s3cret"}]}]))
    for step in (relaunched(SPEC, secret, 1), relaunched(SPEC, None, 0, stored(secret))):
        assert isinstance(step, Run)
        assert "s3cret" in orjson.dumps(step.command.body).decode()
        assert "s3cret" not in step.command.line


def changed(copy: dict[str, Any], where: str) -> dict[str, Any]:
    """The copy as somebody in the tenant's namespace may have written it."""
    other = deepcopy(copy)
    if where == "workload":
        other["data"]["workload.json"] = orjson.dumps(work(template=pods(hostPID=True))).decode()
    else:
        other["metadata"]["annotations"][f"diagnoser.io/{where}"] = "7"
    return other


@pytest.mark.parametrize("where", ["workload", "attempt", "nodes", "from", "plan"])
def test_a_stored_copy_that_the_report_does_not_know_is_never_created(where: str) -> None:
    """Neither to launch the job again nor to put it back: whoever may write ConfigMaps there has no workload made with
    the agent's rights, and no node made the job's own."""
    copy = stored(work())
    spec, other = knowing(SPEC, copy), changed(copy, where)
    for next_step in (reconcile.relaunch, reconcile.put_back):
        end = next_step(spec, WorkloadState(REF, None, 0, other), Attempts())
        assert isinstance(end, Done)
        assert (end.reached, "is not the one" in end.detail) == (False, True)
    assert reconcile.stored_nodes(spec, other) == ()


def test_a_copy_that_was_changed_before_the_workload_was_deleted_is_made_again() -> None:
    """The workload is still there: its copy is dropped, and stored anew. So is one whose report was lost."""
    copy = stored(work())
    for spec, found in ((knowing(SPEC, copy), changed(copy, "workload")), (SPEC, copy)):
        step = reconcile.relaunch(spec, WorkloadState(REF, work(), 1, found), Attempts())
        assert isinstance(step, Run)
        assert step.command.words == ("DELETE", "/api/v1/namespaces/train/configmaps/diagnoser-p-1")


def test_a_copy_that_is_changed_again_and_again_is_given_up() -> None:
    """The agent stored it, and somebody wrote to it at once: the workload is not deleted."""
    stored_once = relaunched(SPEC, work(), 1)
    assert isinstance(stored_once, Run)
    mine = Attempts((CommandAttempt(stored_once.command, 0),))
    end = reconcile.relaunch(SPEC, WorkloadState(REF, work(), 1, changed(stored(work()), "workload")), mine)
    assert isinstance(end, Done)
    assert (end.reached, "somebody changed the copy" in end.detail) == (False, True)


def test_the_digest_of_a_copy_goes_through_the_report_of_the_plan() -> None:
    """The service keeps the step that stored it, and another agent reads it from there; a step that failed counts for
    nothing. The agent that stored it needs no report."""
    step = relaunched(SPEC, work(), 1)
    assert isinstance(step, Run) and step.command.body
    copy = dict(step.command.body)
    reported = {"command": step.command.line, "exit_code": 0}
    spec = cluster().spec(plan(steps=[reported]), "ecc_error")
    assert spec.copies == {reconcile.copy_digest(copy)}
    assert cluster().spec(plan(steps=[reported | {"exit_code": 409}]), "ecc_error").copies == frozenset()
    mine = Attempts((CommandAttempt(step.command, 0),))
    assert isinstance(reconcile.relaunch(SPEC, WorkloadState(REF, None, 0, copy), mine), Run)


def test_a_workload_whose_pods_run_is_running_until_it_ends_or_is_stored() -> None:
    """Only in the launch that the plan is about."""
    life = ContainerRun("ua", 0, "train", "a", "main", "n1", None, 1.0, started=2.0)
    here = (PodRecord("ua", "train", "a", REF.key, "n1", runs=(life,)),)
    state = WorkloadState(REF, work(), 1, None, here)
    assert reconcile.running(SPEC, state)
    over = {**work(), "status": {"conditions": [{"type": "Failed", "status": "True"}]}}
    pending = (replace(here[0], runs=(replace(life, started=0.0),)),)
    for other in (
        replace(state, manifest=None),
        replace(state, stored=stored(work())),
        replace(state, launch=2),
        replace(state, manifest=over),
        replace(state, pods=pending),
        replace(state, pods=()),
    ):
        assert not reconcile.running(SPEC, other)


BAD = [
    {"job": "slurm-lab-7"},
    {"job": "k8s:west:job:train:llama"},
    {"job": "k8s:lab:cronjob:train:llama"},
    {"job": "k8s:lab:job:train:../x"},
    {"nodes": ["n1/status"]},
    {"id": "p 1"},
    {"action": "rollback_and_resubmit", "rollback": {"checkpoint": "a\nb"}},
    {"action": "rollback_and_resubmit", "rollback": {}},
]


@pytest.mark.parametrize("fields", BAD)
def test_a_plan_that_cannot_be_meant_is_refused(fields: dict[str, Any]) -> None:
    """Names become parts of addresses, and values parts of an environment."""
    with pytest.raises(BadInput):
        cluster().spec(plan(**fields), "ecc_error")


def test_a_value_is_no_reference_to_another_variable() -> None:
    """Kubernetes would replace ``$(NAME)``."""
    back = {"checkpoint": "/ckpt/$(HOME)", "step": 0}
    spec = cluster().spec(plan(action="rollback_and_resubmit", rollback=back), "loss_divergence")
    assert spec.variables == (("DIAGNOSER_CHECKPOINT", "/ckpt/$(HOME)"), ("DIAGNOSER_CHECKPOINT_STEP", "0"))
    new = restart.launched_again(JOB, work(), plan="p1", attempt=2, without=(), variables=spec.variables)
    assert new["spec"]["template"]["spec"]["containers"][0]["env"][1]["value"] == "/ckpt/$$(HOME)"


OBJECTS: dict[str, dict[str, Any]] = {
    "job": {"template": pods(), "selector": {"matchLabels": {"controller-uid": "u1"}}},
    "jobset": {
        "replicatedJobs": [{"name": n, "template": {"spec": {"template": pods()}}} for n in ("head", "workers")]
    },
    "pytorchjob": {"pytorchReplicaSpecs": {name: {"replicas": 1, "template": pods()} for name in ("Master", "Worker")}},
    "rayjob": {"rayClusterSpec": {"headGroupSpec": {"template": pods()}, "workerGroupSpecs": [{"template": pods()}]}},
}


@pytest.mark.parametrize("word", OBJECTS)
def test_every_kind_is_made_anew_off_the_nodes_with_the_variables(word: str) -> None:
    """All pods of all parts; the object is otherwise as its owner wrote it."""
    kind = KINDS[word]
    added = {"uid": "u", "resourceVersion": "1", "managedFields": [], "finalizers": ["foregroundDeletion"]}
    meta = {"name": "x", "namespace": "train", "annotations": {"theirs": "kept"}, **added}
    found = {"apiVersion": kind.group, "kind": kind.name, "metadata": meta, "spec": OBJECTS[word], "status": {"x": 1}}
    given = deepcopy(found)
    clean = restart.cleaned(kind, found)
    new = restart.launched_again(
        kind, clean, plan="p1", attempt=3, without=("n1", "n2"), variables=[("DIAGNOSER_CHECKPOINT", "/c")]
    )
    assert found == given
    assert new["metadata"] == {
        "name": "x",
        "namespace": "train",
        "annotations": {
            "theirs": "kept",
            "diagnoser.io/plan": "p1",
            "diagnoser.io/attempt": "3",
            "diagnoser.io/excluded-nodes": "n1,n2",
        },
    }
    assert "status" not in new
    assert "selector" not in new["spec"]
    parts = templates(kind, new)
    assert len(parts) == (1 if kind is JOB else 2)
    off = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in ("n1", "n2")]
    for part in parts:
        affinity = part["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert affinity == {"nodeSelectorTerms": [{"matchFields": off}]}
        variables = {one["name"]: one["value"] for one in part["spec"]["containers"][0]["env"]}
        assert variables == {"DIAGNOSER_PLAN": "p1", "DIAGNOSER_CHECKPOINT": "/c"}


def test_an_affinity_of_its_own_is_kept_in_every_alternative() -> None:
    """Terms are alternatives: one without our requirement would let the node in. Saying it twice changes nothing."""
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in ("a", "b")]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    found = work(template=pods(affinity={"nodeAffinity": required, "podAffinity": {"x": 1}}))
    new = found
    for attempt in (2, 3):
        new = restart.launched_again(JOB, new, plan="p", attempt=attempt, without=["n1"], variables=[])
    affinity = new["spec"]["template"]["spec"]["affinity"]
    got = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [list(term) for term in got] == [["matchExpressions", "matchFields"]] * 2
    assert [len(term["matchFields"]) for term in got] == [1, 1]
    assert affinity["podAffinity"] == {"x": 1}
    env = new["spec"]["template"]["spec"]["containers"][0]["env"]
    assert env == [{"name": "DIAGNOSER_PLAN", "value": "p"}]


def _condition(kind: str) -> dict[str, Any]:
    return {"status": {"conditions": [{"type": kind, "status": "True", "reason": "why"}]}}


@pytest.mark.parametrize(
    ("kind", "found", "end"),
    [
        (KINDS["job"], _condition("Complete"), "done"),
        (KINDS["job"], _condition("Failed"), "failed"),
        (KINDS["job"], _condition("Suspended"), ""),
        (KINDS["jobset"], _condition("Completed"), "done"),
        (KINDS["pytorchjob"], _condition("Succeeded"), "done"),
        (KINDS["pytorchjob"], _condition("Restarting"), ""),
        (KINDS["rayjob"], {"status": {"jobStatus": "SUCCEEDED"}}, "done"),
        (KINDS["rayjob"], {"status": {"jobStatus": "FAILED", "message": "why"}}, "failed"),
        (KINDS["rayjob"], {"status": {"jobStatus": "RUNNING"}}, ""),
        (KINDS["rayjob"], {}, ""),
    ],
)
def test_each_kind_says_its_end_in_its_own_way(kind: WorkloadKind, found: dict[str, Any], end: str) -> None:
    """A condition, or the word of Ray."""
    assert ending(kind, found)[0] == end
