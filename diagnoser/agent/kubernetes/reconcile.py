"""What to do next for a plan, given what the cluster shows now. Pure.

There is no memory between two steps: what has been done is seen in the cluster itself (the marks of a cordoned node, a
stored copy of a workload, the plan's name on the new one). So an agent that died is taken over by any other.

A workload is launched again under its own name, because its pods find each other by it. Its pods' template cannot be
changed, so the old object makes room: it is stored first, then deleted, then created anew, and the copy taken away.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from diagnoser.agent.cluster import Attempts, Command, Done, Held, NextStep, Run, Wait
from diagnoser.agent.kubernetes import names, restart
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
    """Where the pods of a workload were that is only a copy now; nothing of a copy that the report does not know."""
    if stored is None or copy_digest(stored) not in spec.copies:
        return ()
    return tuple(_annotations(stored).get(names.NODES, "").split())


def copy_digest(stored: Mapping[str, Any]) -> str:
    """Digest of a stored copy: the workload, and our marks on it. Whoever may write ConfigMaps in the tenant's
    namespace can change both."""
    marks = _annotations(stored)
    ours = [marks.get(name, "") for name in (names.PLAN, names.FROM, names.ATTEMPT, names.NODES)]
    return hashlib.sha256(orjson.dumps([*ours, (stored.get("data") or {}).get(COPY_KEY, "")])).hexdigest()


def reported_copies(steps: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Digests of the copies that agents stored, from the report of the plan, which the service keeps."""
    stored = (_STORED.fullmatch(step["command"]) for step in steps if step["exit_code"] == 0)
    return frozenset(match[1] for match in stored if match)


def running(spec: PlanSpec, state: WorkloadState) -> bool:
    """Whether the launch that failed still has pods that run, and nothing was stored for the plan."""
    manifest = state.manifest
    if manifest is None or state.stored is not None or state.launch != spec.attempt:
        return False
    is_ending = bool(manifest["metadata"].get("deletionTimestamp") or ending(state.ref.kind, manifest)[0])
    return not is_ending and any(run.started for pod in state.pods for run in pod.runs)


def copy_name(spec: PlanSpec) -> str:
    """Of the ConfigMap that holds the workload while there is none."""
    return "diagnoser-" + (re.sub(r"[^a-z0-9-]+", "-", spec.id.lower())[-60:].strip("-") or "plan")


def hold(spec: PlanSpec, state: WorkloadState, attempts: Attempts) -> NextStep:
    """Get the workload out of the way of a node check: stored and deleted until ``relaunch``. Its nodes cannot be kept
    for the check: other workloads may get them first, and the check tells so."""
    if end := _nothing_to_launch(spec, state):
        return end
    if state.manifest is None:
        return Held()
    if state.stored is None and state.launch > spec.attempt:
        return Done(False, f"launch {state.launch} was made by its controller already; its nodes were not checked")
    return _make_room(spec, state, attempts)


def relaunch(spec: PlanSpec, state: WorkloadState, attempts: Attempts) -> NextStep:
    """Launch the workload again."""
    if state.manifest is not None and _annotations(state.manifest).get(names.PLAN) == spec.id:
        return _clean_up(spec, state, attempts)
    if end := _nothing_to_launch(spec, state):
        return end
    if state.manifest is None:
        return _create(spec, state, attempts)
    if state.stored is None and state.launch > spec.attempt and not spec.variables:
        return _move_pods(spec, state, attempts)
    return _make_room(spec, state, attempts)


def put_back(spec: PlanSpec, state: WorkloadState, attempts: Attempts) -> NextStep:
    """The workload that was held, as it was."""
    if state.manifest is None and state.stored is not None:
        return _create(spec, state, attempts)
    return _clean_up(spec, state, attempts)


def _nothing_to_launch(spec: PlanSpec, state: WorkloadState) -> Done | None:
    """Why that is so, or None."""
    ref, manifest, stored = state.ref, state.manifest, state.stored
    if manifest is None:
        return None if stored else Done(False, f"{ref.kind.name} {ref.namespace}/{ref.name} is gone")
    marks = {**_annotations(manifest), **(manifest["metadata"].get("labels") or {})}
    if stored and _annotations(stored).get(names.FROM) != manifest["metadata"]["uid"]:
        return Done(False, "somebody else has made a workload of that name anew; it is left alone")
    if str(marks.get(names.RESTART, "true")).lower() == "false":
        return Done(False, f"the workload says {names.RESTART}: false")
    if state.launch < spec.attempt:
        return Done(False, f"launch {spec.attempt} is gone; there is launch {state.launch}")
    if ending(ref.kind, manifest)[0] == "done":
        later = state.launch > spec.attempt  # a controller launched it again
        return Done(later, f"launch {state.launch} ended well; it is not launched again", spec.job if later else "")
    if spec.nodes and not templates(ref.kind, manifest):
        return Done(False, "its pods belong to a cluster that it only uses: they cannot be kept off a node")
    return None


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
    if not _is_ours(spec, state.stored, attempts) and not meta.get("deletionTimestamp"):
        if _own_copies(attempts):  # storing it again and again would never end
            return Done(False, f"somebody changed the copy of the workload in {name}; the workload is left alone")
        drop = request("DELETE", ref.core("configmaps", name))  # its report was lost, or somebody changed it
        return attempts.unless_refused(drop, "a copy that the plan's report does not know could not be deleted")
    if meta.get("deletionTimestamp"):
        return _forget_lost(state, attempts) or Wait("the pods of the old workload end")
    options = {"propagationPolicy": "Foreground", "preconditions": {"uid": meta["uid"]}}
    return attempts.unless_refused(request("DELETE", ref.path, options), "the old workload could not be deleted")


def _forget_lost(state: WorkloadState, attempts: Attempts) -> Run | None:
    """Pods of a node that is lost never end: the server is told to forget them."""
    for pod in state.pods:
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}}
        command = request("DELETE", state.ref.core("pods", pod.name), options, "(its node is lost)")
        tried = any(attempt.command == command and attempt.code not in BUSY for attempt in attempts)
        if pod.leaving and pod.lost and not tried:
            return Run(command)
    return None


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
    without = f" without {', '.join(spec.nodes)}" if spec.nodes else ""
    env = "".join(f" {name}={value}" for name, value in spec.variables)
    command = request("POST", ref.kind.path(ref.namespace), body, f"({ref.name}, launch {number}{without}{env})")
    return attempts.unless_refused(command, f"the workload could not be made anew (a copy is in {copy_name(spec)})")


def _is_ours(spec: PlanSpec, stored: Object, attempts: Attempts) -> bool:
    """Whether the copy is what an agent stored: as the plan's report has it, or as this agent has just stored it."""
    return copy_digest(stored) in spec.copies | _own_copies(attempts)


def _own_copies(attempts: Attempts) -> frozenset[str]:
    """Digests of the copies that this agent has stored."""
    bodies = (attempt.command.body for attempt in attempts if attempt.code == 0)
    return frozenset(copy_digest(body) for body in bodies if body and body.get("kind") == "ConfigMap")


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
    staying = next((pod for pod in there if not pod.leaving), None)
    return _evict(state.ref, staying, attempts) if staying else Wait("pods leave their nodes")


def _evict(ref: WorkloadRef, pod: PodRecord, attempts: Attempts) -> NextStep:
    """By the eviction of today, that of clusters before 1.22, or a plain deletion, whichever the cluster allows."""
    path, meta = ref.core("pods", pod.name), {"name": pod.name, "namespace": ref.namespace}
    options = {"preconditions": {"uid": pod.uid}}
    ways = []
    for version in ("policy/v1", "policy/v1beta1"):
        body = {"apiVersion": version, "kind": "Eviction", "metadata": meta, "deleteOptions": options}
        ways.append(request("POST", f"{path}/eviction", body, f"({version})"))
    for way in (*ways, request("DELETE", path, options)):
        answer = next((attempt for attempt in reversed(attempts) if attempt.command == way), None)
        if answer is None or answer.code == 429:  # a disruption budget says not yet
            return Run(way)
        if answer.code == 0:
            return Wait("pods leave their nodes")
    return Done(False, f"{pod.name} could not be taken off {pod.node}: {attempts[-1].output}")


def _annotations(manifest: Mapping[str, Any]) -> Mapping[str, str]:
    return manifest["metadata"].get("annotations") or {}
