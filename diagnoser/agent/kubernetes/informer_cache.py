"""Keeps how the cluster looks now, by lists and watches. Its size is bounded by the objects that concern us."""

import asyncio
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from diagnoser.agent.kubernetes import fields, parsing
from diagnoser.agent.kubernetes.kinds import RAYJOB, Key, Object, WorkloadKind
from diagnoser.agent.kubernetes.parsing import PodRecord, Workload
from diagnoser.agent.nodes import NodeRecord

GONE_KEPT = 5_000
"""Deleted pods that are kept until their end has been told; more than these are forgotten, oldest first."""
NOTES_KEPT = 1_000
NOT_SCHEDULED = "FailedScheduling"
"""Reason of events by which the scheduler tells why no node takes a pod."""
TAKEN_AWAY = frozenset({"Preempted", "Evicted", "TaintManagerEviction"})
"""Reasons of events by which older clusters tell why a pod was deleted."""


@dataclass(slots=True)
class InformerCache:
    """pods, gone: by uid; gone: deleted pods. works: by key. changed: set by every change. since: older events are no
    news, in seconds since the epoch.

    reasons, waits: by uid of the pod, why the cluster took it away, and why no node took it at first.
    notes: (node, line) that the cluster wrote about a node, not sent yet.
    """

    since: float = 0.0
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    pods: dict[str, PodRecord] = field(default_factory=dict)
    works: dict[Key, Workload] = field(default_factory=dict)
    gone: dict[str, PodRecord] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    waits: dict[str, str] = field(default_factory=dict)
    notes: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=NOTES_KEPT))
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def put_node(self, item: Object) -> None:
        self.nodes[item["metadata"]["name"]] = parsing.node(item)
        self.changed.set()

    def drop_node(self, item: Object) -> None:
        self.nodes.pop(item["metadata"]["name"], None)
        self.changed.set()

    def put_pod(self, item: Object) -> None:
        """An evicted pod may be told without its containers: that they ran is known from before."""
        pod = parsing.pod(item)
        if pod is None:
            return
        before = self.pods.get(pod.uid, pod)
        started = {run.key: run.started for run in before.runs}
        runs = []
        for run in pod.runs:
            runs.append(replace(run, started=run.started or started.get(run.key, 0.0)))
        self.pods[pod.uid] = replace(pod, runs=tuple(runs))
        self.changed.set()

    def drop_pod(self, item: Object) -> None:
        """Forget a pod, but for what its end is told from."""
        if "status" in item:  # how it was at its end
            self.put_pod(item)
        uid = item["metadata"]["uid"]
        pod = self.pods.pop(uid, None)
        self.waits.pop(uid, None)
        if pod is None:
            return
        why = self.reasons.pop(uid, "Deleted") if not self._lost(pod.node) else "NodeLost"
        self.gone[uid] = parsing.gone(pod, why)
        _bound(self.gone)
        self.changed.set()

    def put_event(self, item: Object) -> None:
        """Keep an event that tells why a pod waits or goes, or something bad about a node."""
        if _time_of(item) < self.since:
            return
        about, reason = fields.section(item, "involvedObject"), fields.text(item, "reason")
        if about.get("kind") == "Node" and _is_bad(item):
            name, text = about["name"], " ".join(fields.text(item, "message").split())
            self.notes.append((name, f"node {name}: {reason}: {text[: parsing.TEXT_LENGTH]}"))
            self.changed.set()
        elif reason in TAKEN_AWAY:
            self.reasons[fields.text(about, "uid")] = reason
            _bound(self.reasons)
        elif (about.get("kind"), reason) == ("Pod", NOT_SCHEDULED):
            text = " ".join(fields.text(item, "message").split())
            self.waits[fields.text(about, "uid")] = f"{reason}: {text}"[: parsing.TEXT_LENGTH]
            _bound(self.waits)

    def put_workload(self, kind: WorkloadKind, item: Object) -> None:
        work = parsing.workload(kind, item)
        self.works[work.key] = work
        self.changed.set()

    def drop_workload(self, kind: WorkloadKind, item: Object) -> None:
        """Unless another one has taken its name since."""
        meta = item["metadata"]
        key = (kind.word, meta["namespace"], meta["name"])
        work = self.works.get(key)
        if work and work.uid == meta["uid"]:
            del self.works[key]
        self.changed.set()

    def by_workload(self) -> dict[Key, list[PodRecord]]:
        """Pods of each workload, those that are gone among them."""
        owners = {}
        for work in self.works.values():
            if work.word != RAYJOB.word:
                continue
            if work.cluster:
                owners["raycluster", work.namespace, work.cluster] = work.key
        by_key: dict[Key, list[PodRecord]] = {}
        for pod in (*self.gone.values(), *self.pods.values()):
            if self._lost(pod.node):
                pod = replace(pod, lost=True)
            if reason := self.waits.get(pod.uid):
                pod = replace(pod, wait_reason=reason)
            by_key.setdefault(owners.get(pod.owner, pod.owner), []).append(pod)
        return by_key

    def _lost(self, node: str) -> bool:
        return not self.nodes.get(node, NodeRecord(node)).up


def _is_bad(event: Object) -> bool:
    if event.get("type") == "Warning":
        return True
    return fields.text(event, "reason") == "NodeNotReady"


def _time_of(event: Object) -> float:
    """Seconds since the epoch; 0.0 for an event that says no time."""
    created = fields.text(event["metadata"], "creationTimestamp")
    return parsing.seconds(fields.first_text(event, "lastTimestamp", "eventTime") or created)


def _bound(entries: dict[str, Any]) -> None:
    while len(entries) > GONE_KEPT:
        entries.pop(next(iter(entries)))
