"""What to do next for a plan, given what the cluster looks like now. Pure.

There is no memory between two steps: what has been done is seen in the cluster itself (the marks of a cordoned node, a
stored copy of a workload, the plan's name on the new one). So an executor that died is taken over by any other.

A workload is launched again under its own name, because its pods find each other by it. Its pods' template cannot be
changed, so the old object makes room: it is stored first, then deleted, then created anew, and the copy taken away.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from diagnoser.agent.kubernetes import names, restart
from diagnoser.agent.kubernetes.kinds import Object, ending, templates
from diagnoser.agent.kubernetes.records import NodeRecord
from diagnoser.agent.kubernetes.wanted import Wanted
from diagnoser.agent.plan import End, Ready, Wait

COPY_KEY = "workload.json"
PASSING = frozenset({409, 429})


@dataclass(frozen=True, slots=True)
class PodSeen:
    """leaving: it is being deleted. lost: its node is not ready, so that nobody will end it there."""

    name: str
    uid: str
    node: str
    leaving: bool = False
    lost: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """What the cluster looks like. work: the object, None when there is none. launch: number of its present launch.

    stored: the copy that was made for this plan, a ConfigMap. pods: of the workload.
    """

    work: Object | None
    launch: int
    stored: Object | None
    nodes: Mapping[str, NodeRecord]
    pods: tuple[PodSeen, ...] = ()


@dataclass(frozen=True, slots=True)
class Do:
    """A request. note: what a person reads in place of a body that is long or may hold secrets. drains: the node that
    it takes out."""

    method: str
    path: str
    body: Object | None = field(default=None, compare=False)
    note: str = ""
    drains: str = ""

    @property
    def line(self) -> str:
        told = self.note or (orjson.dumps(self.body).decode() if self.body else "")
        return f"{self.method} {self.path} {told}".rstrip()


@dataclass(frozen=True, slots=True)
class Tried:
    """A request that was answered."""

    step: Do
    code: int
    told: str = ""


Next = Do | Wait | Ready | End


def cordon(want: Wanted, view: View, tried: Sequence[Tried]) -> Next | None:
    """Take the plan's nodes out; None when they are. A node that is cordoned already is left as it is."""
    unknown = [name for name in want.nodes if name not in view.nodes]
    if unknown:
        return End(False, f"the cluster has no node {', '.join(unknown)}; nothing was done")
    for name in want.nodes:
        node = view.nodes[name]
        path = f"/api/v1/nodes/{name}"
        refused = _refused(tried, "PATCH", path)
        if refused:
            return End(False, f"{name} could not be cordoned: {refused.told}")
        if not node.cordoned:
            marks = {names.PLAN: want.id, names.REASON: want.reason, names.BY: want.by}
            meta = {"resourceVersion": node.version, "annotations": marks}
            return Do("PATCH", path, {"metadata": meta, "spec": {"unschedulable": True}}, drains=name)
    return None


def hold(want: Wanted, view: View, tried: Sequence[Tried]) -> Next:
    """Get the workload out of the way of a node check: stored and deleted until ``relaunch``. Its nodes cannot be kept
    for the check: other workloads may get them first, and the check tells so."""
    found = _standing(want, view)
    if isinstance(found, End):
        return found
    if view.work is None:
        return Ready()
    if view.stored is None and view.launch > want.attempt:
        return End(False, f"launch {view.launch} was made by its controller already; its nodes were not checked")
    return _make_room(want, view, tried)


def relaunch(want: Wanted, view: View, tried: Sequence[Tried]) -> Next:
    """Launch the workload again."""
    ours = view.work is not None and _marks(view.work).get(names.PLAN) == want.id
    if ours:
        return _clean_up(want, view, tried)
    found = _standing(want, view)
    if isinstance(found, End):
        return found
    if view.work is None:
        return _create(want, view, tried)
    if view.stored is None and view.launch > want.attempt and not want.variables:
        return _move_pods(want, view, tried)
    return _make_room(want, view, tried)


def put_back(want: Wanted, view: View, tried: Sequence[Tried]) -> Next:
    """The workload that was held, as it was: its plan is nobody's any more."""
    if view.work is None and view.stored is not None:
        return _create(want, view, tried)
    return _clean_up(want, view, tried)


def _standing(want: Wanted, view: View) -> End | None:
    """Why there is nothing to launch again, or None."""
    work, stored = view.work, view.stored
    if work is None:
        return None if stored else End(False, f"{want.kind.name} {want.namespace}/{want.name} is gone")
    marks = {**_marks(work), **(work["metadata"].get("labels") or {})}
    if stored and _marks(stored).get(names.FROM) != work["metadata"]["uid"]:
        return End(False, "somebody else has made a workload of that name anew; it is left alone")
    if str(marks.get(names.RESTART, "true")).lower() == "false":
        return End(False, f"the workload says {names.RESTART}: false")
    if view.launch < want.attempt:
        return End(False, f"launch {want.attempt} is gone; there is launch {view.launch}")
    if ending(want.kind, work)[0] == "done":
        later = view.launch > want.attempt  # a controller launched it again
        return End(later, f"launch {view.launch} ended well; it is not launched again", want.job if later else "")
    if want.nodes and not templates(want.kind, work):
        return End(False, "its pods belong to a cluster that it only uses: they cannot be kept off a node")
    return None


def _make_room(want: Wanted, view: View, tried: Sequence[Tried]) -> Next:
    """Store the object, then delete it, by its uid: never one that was made since."""
    assert view.work is not None, "the caller has looked"
    meta = view.work["metadata"]
    if view.stored is None:
        copy = Do("POST", want.copies, _copy(want, view.work, view.launch), f"({want.copy}: a copy of {want.name})")
        return _unless_refused(copy, tried, "the workload could not be stored")
    if meta.get("deletionTimestamp"):
        return _forget_lost(want, view, tried) or Wait("the pods of the old workload end")
    options = {"propagationPolicy": "Foreground", "preconditions": {"uid": meta["uid"]}}
    return _unless_refused(Do("DELETE", want.path, options), tried, "the old workload could not be deleted")


def _forget_lost(want: Wanted, view: View, tried: Sequence[Tried]) -> Do | None:
    """Pods of a node that is lost never end: the server is told to forget them."""
    for pod in view.pods:
        path = f"/api/v1/namespaces/{want.namespace}/pods/{pod.name}"
        step = Do("DELETE", path, {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}}, "(its node is lost)")
        if pod.leaving and pod.lost and not any(one.step == step and one.code not in PASSING for one in tried):
            return step
    return None


def _create(want: Wanted, view: View, tried: Sequence[Tried]) -> Next:
    assert view.stored is not None, "the caller has looked"
    stored = orjson.loads(view.stored["data"][COPY_KEY])
    number = int(_marks(view.stored)[names.ATTEMPT]) + 1
    new = restart.launched_again(
        want.kind, stored, plan=want.id, attempt=number, without=want.nodes, variables=want.variables
    )
    without = f" without {', '.join(want.nodes)}" if want.nodes else ""
    given = "".join(f" {name}={value}" for name, value in want.variables)
    note = f"({want.name}, launch {number}{without}{given})"
    step = Do("POST", want.kind.path(want.namespace), new, note)
    return _unless_refused(step, tried, f"the workload could not be made anew (a copy is in {want.copy})")


def _clean_up(want: Wanted, view: View, tried: Sequence[Tried]) -> Next:
    step = Do("DELETE", f"{want.copies}/{want.copy}")
    if view.stored is not None and not _refused(tried, step.method, step.path):
        return step
    return End(True, f"{want.kind.name} {want.name}: launch {view.launch} was made", want.job)


def _move_pods(want: Wanted, view: View, tried: Sequence[Tried]) -> Next:
    """A controller has launched it again already: its pods leave the plan's nodes, and come back on others."""
    for pod in view.pods:
        if pod.node in want.nodes and not pod.leaving:
            return _evict(want, pod, tried)
    if any(pod.node in want.nodes for pod in view.pods):
        return Wait("pods leave their nodes")
    return End(True, f"launch {view.launch} was made by its controller already", want.job)


def _evict(want: Wanted, pod: PodSeen, tried: Sequence[Tried]) -> Next:
    """By the eviction of today, that of clusters before 1.22, or a plain deletion, whichever the cluster allows."""
    path = f"/api/v1/namespaces/{want.namespace}/pods/{pod.name}"
    meta = {"name": pod.name, "namespace": want.namespace}
    options = {"preconditions": {"uid": pod.uid}}
    ways = [
        Do("POST", f"{path}/eviction", _eviction(version, meta, options), f"({version})")
        for version in ("policy/v1", "policy/v1beta1")
    ]
    ways.append(Do("DELETE", path, options))
    for way in ways:
        answer = next((one for one in reversed(tried) if one.step == way), None)
        if answer is None or answer.code == 429:  # a disruption budget says not yet
            return way
        if answer.code < 300:
            return Wait("pods leave their nodes")
    return End(False, f"{pod.name} could not be taken off {pod.node}: {tried[-1].told}")


def _eviction(version: str, meta: Object, options: Object) -> Object:
    return {"apiVersion": version, "kind": "Eviction", "metadata": meta, "deleteOptions": options}


def _copy(want: Wanted, work: Object, launch: int) -> Object:
    """The copy lives where its workload does, so that the same people may read it."""
    marks = {names.PLAN: want.id, names.BY: want.by, names.FROM: work["metadata"]["uid"], names.ATTEMPT: str(launch)}
    data = orjson.dumps(restart.cleaned(want.kind, work)).decode()
    meta = {"name": want.copy, "namespace": want.namespace, "annotations": marks, "labels": dict(names.MANAGED)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {COPY_KEY: data}}


def _unless_refused(step: Do, tried: Sequence[Tried], told: str) -> Next:
    refused = _refused(tried, step.method, step.path)
    return End(False, f"{told}: {refused.told}") if refused else step


def _refused(tried: Sequence[Tried], method: str, path: str) -> Tried | None:
    """Not so when the cluster has changed or is busy: then another look tells what to do now."""
    passing = {404, *PASSING} if method != "POST" else PASSING
    here = (one for one in tried if (one.step.method, one.step.path) == (method, path))
    return next((one for one in here if one.code >= 400 and one.code not in passing), None)


def _marks(found: Mapping[str, Any]) -> Mapping[str, str]:
    return found["metadata"].get("annotations") or {}
