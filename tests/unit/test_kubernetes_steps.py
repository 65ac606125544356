"""What to do next for a plan, and the workload that is made anew."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import orjson
import pytest

from diagnoser.agent.kubernetes import restart, steps, wanted
from diagnoser.agent.kubernetes.kinds import JOB, KINDS, Kind, ending, templates
from diagnoser.agent.kubernetes.records import NodeRecord
from diagnoser.agent.kubernetes.steps import Do, PodSeen, Tried, View
from diagnoser.agent.kubernetes.wanted import Wanted
from diagnoser.agent.plan import End, Ready, Wait
from diagnoser.model.errors import BadInput
from diagnoser.model.taxonomy import Action

UP = {name: NodeRecord(name, version="7") for name in ("n1", "n2")}
WANT = Wanted(
    "P:1", Action.CORDON_AND_RESUBMIT, "k8s:lab:job:train:llama", JOB, "train", "llama", 1, ("n1",), "ecc_error"
)
CHECK = replace(WANT, action=Action.CHECK_AND_RESUBMIT, nodes=())
PATH = "/apis/batch/v1/namespaces/train/jobs"


def pods(**spec: Any) -> dict[str, Any]:
    return {"metadata": {}, "spec": {"containers": [{"name": "main", "image": "i"}], **spec}}


def work(uid: str = "u1", **spec: Any) -> dict[str, Any]:
    meta = {"name": "llama", "namespace": "train", "uid": uid, "resourceVersion": "5", "annotations": {}}
    return {"kind": "Job", "apiVersion": "batch/v1", "metadata": meta, "spec": {"template": pods(), **spec}}


def stored(found: dict[str, Any], attempt: int = 1) -> dict[str, Any]:
    """The copy that the first step makes."""
    step = steps.relaunch(replace(WANT, nodes=()), View(found, attempt, None, {}), [])
    assert isinstance(step, Do)
    assert step.body is not None
    return step.body


def plan(**fields: Any) -> dict[str, Any]:
    given = {"id": "p1", "job": WANT.job, "attempt": 1, "action": "resubmit", "nodes": [], "rollback": None}
    return given | fields


def test_a_node_in_service_is_cordoned_with_our_marks() -> None:
    """Only as it was seen: the version keeps the patch from crossing a person's."""
    step = steps.cordon(WANT, View(work(), 1, None, UP), [])
    assert isinstance(step, Do)
    assert (step.method, step.path, step.drains) == ("PATCH", "/api/v1/nodes/n1", "n1")
    assert step.body == {
        "metadata": {
            "resourceVersion": "7",
            "annotations": {
                "diagnoser.io/plan": "P:1",
                "diagnoser.io/reason": "diagnoser P:1: ecc_error",
                "diagnoser.io/by": "",
            },
        },
        "spec": {"unschedulable": True},
    }


def test_a_cordoned_node_is_left_as_it_is() -> None:
    """By us before we died, or by a person."""
    assert steps.cordon(WANT, View(work(), 1, None, {"n1": NodeRecord("n1", cordoned=True)}), []) is None


def test_a_patch_that_crossed_another_is_looked_at_again() -> None:
    """409: the next look decides; a 403 ends the plan."""
    view = View(work(), 1, None, UP)
    step = steps.cordon(WANT, view, [])
    assert isinstance(step, Do)
    assert steps.cordon(WANT, view, [Tried(step, 409)]) == step
    end = steps.cordon(WANT, view, [Tried(step, 403, "HTTP 403: no")])
    assert isinstance(end, End)
    assert (end.reached, "HTTP 403: no" in end.detail) == (False, True)


def test_one_unknown_node_stops_all() -> None:
    """Nothing is cordoned for a plan that is partly about another cluster."""
    end = steps.cordon(replace(WANT, nodes=("n1", "n9")), View(work(), 1, None, UP), [])
    assert isinstance(end, End)
    assert (end.reached, "n9" in end.detail) == (False, True)


def test_the_workload_is_stored_before_it_is_deleted_and_deleted_by_its_uid() -> None:
    """Whenever the executor dies, either the object or its copy is there."""
    old = work()
    first = steps.relaunch(WANT, View(old, 1, None, UP), [])
    assert isinstance(first, Do)
    assert (first.method, first.path) == ("POST", "/api/v1/namespaces/train/configmaps")
    second = steps.relaunch(WANT, View(old, 1, stored(old), UP), [])
    assert isinstance(second, Do)
    assert (second.method, second.path) == ("DELETE", f"{PATH}/llama")
    assert second.body == {"propagationPolicy": "Foreground", "preconditions": {"uid": "u1"}}
    leaving = deepcopy(old)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert isinstance(steps.relaunch(WANT, View(leaving, 1, stored(old), UP), []), Wait)
    third = steps.relaunch(WANT, View(None, 0, stored(old), UP), [])
    assert isinstance(third, Do)
    assert (third.method, third.path) == ("POST", PATH)
    assert third.body
    fourth = steps.relaunch(
        WANT, View({**third.body, "metadata": {**third.body["metadata"], "uid": "u2"}}, 2, stored(old), UP), []
    )
    assert isinstance(fourth, Do)
    assert (fourth.method, fourth.path) == ("DELETE", "/api/v1/namespaces/train/configmaps/diagnoser-p-1")
    assert steps.relaunch(WANT, View(third.body, 2, None, UP), []) == End(
        True, "Job llama: launch 2 was made", WANT.job
    )


def test_what_others_made_meanwhile_is_left_alone() -> None:
    """Another object under the name, or a later launch when it was to be checked."""
    end = steps.relaunch(WANT, View(work("u9"), 1, stored(work()), UP), [])
    assert isinstance(end, End)
    assert not end.reached
    held = steps.hold(CHECK, View(work(), 2, None, UP), [])
    assert isinstance(held, End)
    assert not held.reached


def test_a_workload_that_ended_well_is_not_launched_again() -> None:
    """When its controller had launched it again already, that is what the plan was for."""
    done = {**work(), "status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    ends = [steps.relaunch(WANT, View(done, launch, None, UP), []) for launch in (1, 2)]
    assert [isinstance(end, End) and end.reached for end in ends] == [False, True]


def test_a_check_holds_the_workload_and_the_launch_after_it_excludes_what_it_found() -> None:
    """The copy is made without exclusions: they are known only at the end."""
    old = work()
    assert isinstance(steps.hold(CHECK, View(old, 1, None, UP), []), Do)
    assert steps.hold(CHECK, View(None, 0, stored(old), UP), []) == Ready()
    step = steps.relaunch(replace(CHECK, nodes=("n2",)), View(None, 0, stored(old), UP), [])
    assert isinstance(step, Do)
    assert "without n2" in step.line
    back = steps.put_back(CHECK, View(None, 0, stored(old), UP), [])
    assert isinstance(back, Do)
    assert "without" not in back.line


def test_pods_of_a_later_launch_only_move() -> None:
    """Evicted in today's way, then the old one, then deleted; a disruption budget is asked again, never overruled."""
    view = View(work(), 2, None, UP, (PodSeen("a", "ua", "n1"), PodSeen("b", "ub", "n2")))
    tried: list[Tried] = []
    lines = []
    for code in (429, 404, 403, 403):
        step = steps.relaunch(WANT, view, tried)
        assert isinstance(step, Do)
        tried.append(Tried(step, code))
        lines.append(step.line)
    assert [line.partition(" ")[0] for line in lines] == ["POST", "POST", "POST", "DELETE"]
    assert lines[0] == lines[1] == "POST /api/v1/namespaces/train/pods/a/eviction (policy/v1)"
    assert lines[2].endswith("(policy/v1beta1)")
    end = steps.relaunch(WANT, view, tried)
    assert isinstance(end, End)
    assert not end.reached
    moved = steps.relaunch(WANT, replace(view, pods=(PodSeen("c", "uc", "n2"),)), tried)
    assert isinstance(moved, End)
    assert moved.reached


def test_a_step_never_shows_what_a_workload_holds() -> None:
    """Variables of a pod may be secrets: the audit names the object, not its text."""
    secret = work(template=pods(containers=[{"name": "main", "env": [{"name": "KEY", "value": "s3cret"}]}]))
    for view in (View(secret, 1, None, UP), View(None, 0, stored(secret), UP)):
        step = steps.relaunch(WANT, view, [])
        assert isinstance(step, Do)
        assert "s3cret" in orjson.dumps(step.body).decode()
        assert "s3cret" not in step.line


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
        wanted.wanted(plan(**fields), "lab", "ecc_error", "me")


def test_a_value_is_no_reference_to_another_variable() -> None:
    """Kubernetes would replace ``$(NAME)``."""
    back = {"checkpoint": "/ckpt/$(HOME)", "step": 0}
    want = wanted.wanted(plan(action="rollback_and_resubmit", rollback=back), "lab", "loss_divergence", "me")
    assert want.variables == (("DIAGNOSER_CHECKPOINT", "/ckpt/$$(HOME)"), ("DIAGNOSER_CHECKPOINT_STEP", "0"))


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
def test_each_kind_says_its_end_in_its_own_way(kind: Kind, found: dict[str, Any], end: str) -> None:
    """A condition, or the word of Ray."""
    assert ending(kind, found)[0] == end
