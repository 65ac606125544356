"""Decides what to do next for a plan, given what the cluster shows now. Pure.

There is no memory between two steps: what has been done is seen in the cluster itself (the marks of a cordoned node, a
stored copy of a workload, the plan's name on the new one). So an agent that died is taken over by any other.

A workload is launched again under its own name, because its pods find each other by it. Its pods' template cannot be
changed, so the old object makes room: it is stored first, then deleted, then created anew, and the copy taken away.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import orjson

from diagnoser.agent.cluster import Attempts, Command, Done, Held, NextStep, Run, Wait
from diagnoser.agent.kubernetes import fields, names, restart
from diagnoser.agent.kubernetes.fields import section
from diagnoser.agent.kubernetes.kinds import Object, WorkloadRef, ending, templates
from diagnoser.agent.kubernetes.parsing import PodRecord
from diagnoser.agent.plan_spec import PlanSpec

COPY_KEY = "workload.json"
_STORED = re.compile(r"POST \S+/configmaps \(\S+: a copy of \S+, sha256 ([0-9a-f]{64})\)")
"""The command that stores a copy, as the plan's report has it."""
BUSY = frozenset({409, 429})
"""Answers after which another look tells what to do: the object has changed, or a disruption budget says not yet."""


NODES_LENGTH = 100_000
"""All annotations of an object together may have 256 KiB."""


@dataclass(frozen=True, slots=True)
class WorkloadState:
    """manifest: None when the object is gone. launch: number of its present launch. by: who carries the plan out.

    stored: the copy that was made for this plan, a ConfigMap. pods: of the workload, those that have not ended.
    nodes: of all of its pods that can still be seen.
    """

    ref: WorkloadRef
    manifest: Object | None
    launch: int = 0
    stored: Object | None = None
    pods: tuple[PodRecord, ...] = ()
    by: str = ""
    nodes: tuple[str, ...] = ()

    @property
    def held(self) -> str:
        if not self.stored:
            return ""
        return f"a copy of the workload is in the ConfigMap {self.ref.namespace}/{self.stored['metadata']['name']}"


def request(method: str, path: str, body: Object | None = None, note: str = "") -> Command:
    return Command((method, path), body, note)


def stored_nodes(spec: PlanSpec, stored: Object | None) -> tuple[str, ...]:
    """List where the pods of a workload were that is only a copy now; none for a copy that the report does not know."""
    if stored is None:
        return ()
    if copy_digest(stored) not in spec.copies:
        return ()
    return tuple(_annotations(stored).get(names.NODES, "").split())


def copy_digest(stored: Mapping[str, Any]) -> str:
    """Digest of a stored copy: the workload, and our marks on it. Whoever may write ConfigMaps in the tenant's
    namespace can change both."""
    marks = _annotations(stored)
    ours = [marks.get(name, "") for name in (names.PLAN, names.FROM, names.ATTEMPT, names.NODES)]
    return hashlib.sha256(orjson.dumps([*ours, section(stored, "data").get(COPY_KEY, "")])).hexdigest()


def reported_copies(steps: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Digests of the copies that agents stored, from the report of the plan, which the service keeps."""
    digests = set[str]()
    for step in steps:
        match = _STORED.fullmatch(step["command"])
        if not match:
            continue
        if step["exit_code"] == 0:
            digests.add(match[1])
    return frozenset(digests)


def running(spec: PlanSpec, state: WorkloadState) -> bool:
    """Tell whether the launch that failed still has pods that run, and nothing was stored for the plan."""
    manifest = state.manifest
    if manifest is None:
        return False
    if state.stored is not None:
        return False
    if state.launch != spec.attempt:
        return False
    if manifest["metadata"].get("deletionTimestamp"):
        return False
    if ending(state.ref.kind, manifest)[0]:
        return False
    runs = chain.from_iterable(pod.runs for pod in state.pods)
    return any(run.started for run in runs)


def copy_name(spec: PlanSpec) -> str:
    """Name the ConfigMap that holds the workload while there is none."""
    return "diagnoser-" + (re.sub(r"[^a-z0-9-]+", "-", spec.id.lower())[-60:].strip("-") or "plan")


def hold(spec: PlanSpec, state: WorkloadState, attempts: Attempts) -> NextStep:
    """Get the workload out of the way of a node check: stored and deleted until ``relaunch``. Its nodes cannot be kept
    for the check: other workloads may get them first, and the check tells so."""
    if end := _nothing_to_launch(spec, state):
        return end
    if state.manifest is None:
        return Held()
    if _is_launched_again(spec, state):
        return Done(False, f"launch {state.launch} was made by its controller already; its nodes were not checked")
    return _make_room(spec, state, attempts)


def relaunch(spec: PlanSpec, state: WorkloadState, attempts: Attempts) -> NextStep:
    if _is_made_for(spec, state.manifest):
        return _clean_up(spec, state, attempts)
    if end := _nothing_to_launch(spec, state):
        return end
    if state.manifest is None:
        return _create(spec, state, attempts)
    if _is_launched_again(spec, state) and not spec.variables:
        return _move_pods(spec, state, attempts)
    return _make_room(spec, state, attempts)


def _is_made_for(spec: PlanSpec, manifest: Object | None) -> bool:
    if manifest is None:
        return False
    return _annotations(manifest).get(names.PLAN) == spec.id


def _is_launched_again(spec: PlanSpec, state: WorkloadState) -> bool:
    """Tell whether its controller has launched the workload again already, before anything was done for the plan."""
    if state.stored is not None:
        return False
    return state.launch > spec.attempt


def put_back(spec: PlanSpec, state: WorkloadState, attempts: Attempts) -> NextStep:
    """The workload that was held, as it was."""
    if state.manifest is None and state.stored is not None:
        return _create(spec, state, attempts)
    return _clean_up(spec, state, attempts)


def _nothing_to_launch(spec: PlanSpec, state: WorkloadState) -> Done | None:
    """Say why that is so, or None."""
    ref, manifest, stored = state.ref, state.manifest, state.stored
    if manifest is None:
        return None if stored else Done(False, f"{ref.kind.name} {ref.namespace}/{ref.name} is gone")
    if _is_replaced(stored, manifest):
        return Done(False, "somebody else has made a workload of that name anew; it is left alone")
    if str(fields.marks(manifest).get(names.RESTART, "true")).lower() == "false":
        return Done(False, f"the workload says {names.RESTART}: false")
    if state.launch < spec.attempt:
        return Done(False, f"launch {spec.attempt} is gone; there is launch {state.launch}")
    if ending(ref.kind, manifest)[0] == "done":
        return _ended_well(spec, state.launch)
    if spec.nodes and not templates(ref.kind, manifest):
        return Done(False, "its pods belong to a cluster that it only uses: they cannot be kept off a node")
    return None


def _is_replaced(stored: Object | None, manifest: Object) -> bool:
    """Tell whether the copy is of another workload than the one that has its name now."""
    if not stored:
        return False
    copied_from: object = _annotations(stored).get(names.FROM)
    return bool(copied_from != manifest["metadata"]["uid"])


def _ended_well(spec: PlanSpec, launch: int) -> Done:
    """The plan's end is reached where a controller launched the workload again, and that launch ended well."""
    why = f"launch {launch} ended well; it is not launched again"
    return Done(True, why, spec.job) if launch > spec.attempt else Done(False, why)


def _make_room(spec: PlanSpec, state: WorkloadState, attempts: Attempts) -> NextStep:
    """Store the object, then delete it, by its uid: never one that was made since."""
    assert state.manifest is not None, "the caller has checked it"
    ref, meta, name = state.ref, state.manifest["metadata"], copy_name(spec)
    if state.stored is None:
        marks = {names.PLAN: spec.id, names.BY: state.by, names.FROM: meta["uid"], names.ATTEMPT: str(state.launch)}
        marks[names.NODES] = " ".join(state.nodes)[:NODES_LENGTH]
        copied = {COPY_KEY: orjson.dumps(restart.cleaned(ref.kind, state.manifest)).decode()}
        about = {"name": name, "namespace": ref.namespace, "annotations": marks, "labels": dict(names.MANAGED)}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": copied}
        note = f"({name}: a copy of {ref.name}, sha256 {copy_digest(body)})"
        store = request("POST", ref.core("configmaps"), body, note)
        return attempts.unless_refused(store, "the workload could not be stored")
    if meta.get("deletionTimestamp"):
        return _forget_lost(state, attempts)
    if not _is_ours(spec, state.stored, attempts):
        if _own_copies(attempts):  # storing it again and again would never end
            return Done(False, f"somebody changed the copy of the workload in {name}; the workload is left alone")
        drop = request("DELETE", ref.core("configmaps", name))  # its report was lost, or somebody changed it
        return attempts.unless_refused(drop, "a copy that the plan's report does not know could not be deleted")
    options = {"propagationPolicy": "Foreground", "preconditions": {"uid": meta["uid"]}}
    return attempts.unless_refused(request("DELETE", ref.path, options), "the old workload could not be deleted")


def _forget_lost(state: WorkloadState, attempts: Attempts) -> Run | Wait:
    """Tell the server to forget pods of a node that is lost: they never end. Wait for the others."""
    for pod in state.pods:
        if not pod.never_ends:
            continue
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}}
        command = request("DELETE", state.ref.core("pods", pod.name), options, "(its node is lost)")
        if BUSY.issuperset(attempts.codes(command)):
            return Run(command)
    return Wait("the pods of the old workload end")


def _create(spec: PlanSpec, state: WorkloadState, attempts: Attempts) -> NextStep:
    assert state.stored is not None, "the caller has checked it"
    if not _is_ours(spec, state.stored, attempts):
        why = f"the copy of the workload in {copy_name(spec)} is not the one that the plan's report knows"
        return Done(False, f"{why}; it is not created")
    ref, stored = state.ref, orjson.loads(state.stored["data"][COPY_KEY])
    number = int(_annotations(state.stored)[names.ATTEMPT]) + 1
    body = restart.launched_again(
        ref.kind, stored, plan=spec.id, attempt=number, without=spec.nodes, variables=spec.variables
    )
    note = f"{ref.name}, launch {number}"
    if spec.nodes:
        note += f" without {', '.join(spec.nodes)}"
    for name, value in spec.variables:
        note += f" {name}={value}"
    command = request("POST", ref.kind.path(ref.namespace), body, f"({note})")
    return attempts.unless_refused(command, f"the workload could not be made anew (a copy is in {copy_name(spec)})")


def _is_ours(spec: PlanSpec, stored: Object, attempts: Attempts) -> bool:
    """Tell whether an agent stored the copy: as the plan's report has it, or as this agent has just stored it."""
    return copy_digest(stored) in spec.copies | _own_copies(attempts)


def _own_copies(attempts: Attempts) -> frozenset[str]:
    digests = set[str]()
    for attempt in attempts:
        body = attempt.command.body or {}
        if attempt.code != 0:
            continue
        if body.get("kind") == "ConfigMap":
            digests.add(copy_digest(body))
    return frozenset(digests)


def _clean_up(spec: PlanSpec, state: WorkloadState, attempts: Attempts) -> NextStep:
    command = request("DELETE", state.ref.core("configmaps", copy_name(spec)))
    if state.stored is not None and not attempts.refusal(command):
        return Run(command)
    return Done(True, f"{state.ref.kind.name} {state.ref.name}: launch {state.launch} was made", spec.job)


def _move_pods(spec: PlanSpec, state: WorkloadState, attempts: Attempts) -> NextStep:
    """A controller has launched it again already: its pods leave the plan's nodes, and come back on others."""
    there = [pod for pod in state.pods if pod.node in spec.nodes]
    if not there:
        return Done(True, f"launch {state.launch} was made by its controller already", spec.job)
    for pod in there:
        if not pod.leaving:
            return _evict(state.ref, pod, attempts)
    return Wait("pods leave their nodes")


def _evict(ref: WorkloadRef, pod: PodRecord, attempts: Attempts) -> NextStep:
    """Evict a pod as clusters do today, as before 1.22, or by a plain deletion, whichever the cluster allows."""
    path, meta = ref.core("pods", pod.name), {"name": pod.name, "namespace": ref.namespace}
    options = {"preconditions": {"uid": pod.uid}}
    ways = []
    for version in ("policy/v1", "policy/v1beta1"):
        body = {"apiVersion": version, "kind": "Eviction", "metadata": meta, "deleteOptions": options}
        ways.append(request("POST", f"{path}/eviction", body, f"({version})"))
    for way in (*ways, request("DELETE", path, options)):
        answer = next((attempt for attempt in reversed(attempts) if attempt.command == way), None)
        if answer is None:
            return Run(way)
        if answer.code == 429:
            return Run(way)
        if answer.code == 0:
            return Wait("pods leave their nodes")
    return Done(False, f"{pod.name} could not be taken off {pod.node}: {attempts[-1].output}")


def _annotations(manifest: Mapping[str, Any]) -> Mapping[str, str]:
    return section(manifest, "metadata", "annotations")
