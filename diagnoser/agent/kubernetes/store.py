"""What the cluster looks like now, kept up by lists and watches. Its size is bounded by the objects that concern us."""

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from diagnoser.agent.kubernetes import records
from diagnoser.agent.kubernetes.kinds import RAYJOB
from diagnoser.agent.kubernetes.records import Event, NodeRecord, PodRecord, Workload

Key = tuple[str, str, str]
GONE_KEPT = 5_000
"""Deleted pods that are kept until their end has been told; more than these are forgotten, oldest first."""
NOTES_KEPT = 1_000
TAKEN_AWAY = frozenset({"Preempted", "Evicted", "TaintManagerEviction"})
"""Reasons of events by which older clusters tell why a pod was deleted."""


@dataclass(slots=True)
class Store:
    """pods: by uid. works: by (kind, namespace, name). gone: deleted pods. changed: set by every change.

    reasons: by uid of the pod, why the cluster took it away. notes: (node, line) that the cluster wrote about a node,
    not sent yet.
    """

    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    pods: dict[str, PodRecord] = field(default_factory=dict)
    works: dict[Key, Workload] = field(default_factory=dict)
    gone: dict[str, PodRecord] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    notes: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=NOTES_KEPT))
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def put_node(self, node: NodeRecord) -> None:
        self.nodes[node.name] = node
        self.changed.set()

    def drop_node(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.changed.set()

    def lost(self, node: str) -> bool:
        return node in self.nodes and not self.nodes[node].ready

    def put_pod(self, pod: PodRecord) -> None:
        """An evicted pod may be told without its containers: that they ran is known from before."""
        before = self.pods.get(pod.uid)
        began = {run.key: run.started for run in before.runs} if before else {}
        runs = tuple(run if run.started else replace(run, started=began.get(run.key, 0.0)) for run in pod.runs)
        self.pods[pod.uid] = replace(pod, runs=runs)
        self.changed.set()

    def drop_pod(self, uid: str) -> None:
        """What it was is kept for its end to be told."""
        pod = self.pods.pop(uid, None)
        if pod is None:
            return
        why = "NodeLost" if self.lost(pod.node) else self.reasons.pop(uid, "Deleted")
        self.gone[pod.uid] = records.gone(pod, why)
        _bound(self.gone)
        self.changed.set()

    def put_event(self, event: Event) -> None:
        """One that tells why a pod goes, or something bad about a node."""
        if event.node:
            self.notes.append((event.node, event.line))
            self.changed.set()
        elif event.reason in TAKEN_AWAY:
            self.reasons[event.pod] = event.reason
            _bound(self.reasons)

    def put_work(self, work: Workload) -> None:
        self.works[work.key] = work
        self.changed.set()

    def drop_work(self, key: Key, uid: str) -> None:
        """Unless another one has taken its name since."""
        if key in self.works and self.works[key].uid == uid:
            del self.works[key]
        self.changed.set()

    def by_work(self) -> dict[Key, list[PodRecord]]:
        """Pods of each workload, those that are gone among them."""
        rays = {("raycluster", work.namespace, work.cluster): work.key for work in self._rays() if work.cluster}
        found: dict[Key, list[PodRecord]] = {}
        for pod in (*self.gone.values(), *self.pods.values()):
            found.setdefault(rays.get(pod.owner, pod.owner), []).append(pod)
        return found

    def forget(self, uid: str) -> None:
        """A deleted pod whose end has been told."""
        self.gone.pop(uid, None)

    def _rays(self) -> Iterator[Workload]:
        return (work for work in self.works.values() if work.word == RAYJOB.word)


def _bound(found: dict[str, Any]) -> None:
    while len(found) > GONE_KEPT:
        found.pop(next(iter(found)))
