"""Tells the service what happens on the cluster: workloads, their pods' places, ends and logs, and the nodes."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from diagnoser.agent.kubernetes import memory, names, watch
from diagnoser.agent.kubernetes.kube import Kube
from diagnoser.agent.kubernetes.logs import Logs, Place
from diagnoser.agent.kubernetes.memory import Seen
from diagnoser.agent.kubernetes.records import NodeRecord, PodRecord, Workload
from diagnoser.agent.kubernetes.store import Key, Store
from diagnoser.agent.kubernetes.watch import Happened, Look, Registered, Standing, Tracked
from diagnoser.agent.service import Service
from diagnoser.model.errors import BadInput, Unavailable

CLUSTER_SOURCE = "kubernetes"

log = structlog.get_logger()


@dataclass(slots=True)
class Observer:
    """works, nodes: what the service has been told. now: seconds since the epoch. ships: whether to send logs.

    dry: change nothing on the cluster.
    """

    service: Service
    kube: Kube
    store: Store
    logs: Logs
    cluster: str
    path: Path
    now: Callable[[], float]
    ships: bool = True
    dry: bool = False
    works: dict[str, Tracked] = field(default_factory=dict)
    nodes: Mapping[str, Standing] = field(default_factory=dict)
    saved: Seen | None = None

    def recall(self, seen: Seen) -> None:
        self.works, self.nodes = dict(seen.works), seen.nodes
        self.logs.marks.update(seen.marks)

    async def wait(self, seconds: float) -> None:
        """Until something has changed, at most so long: launches also end by time passing."""
        changed = [asyncio.create_task(event.wait()) for event in (self.store.changed, self.logs.moved)]
        try:
            await asyncio.wait(changed, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in changed:
                task.cancel()
        self.store.changed.clear()
        self.logs.moved.clear()

    async def look(self) -> None:
        """One look at everything. Raises Unavailable when the service is away; the next look goes on there."""
        pods = self.store.by_work()
        try:
            await self._tell_nodes()
            for work in list(self.store.works.values()):
                if work.chosen:
                    await self._follow(work, pods.get(work.key, []))
            await self._tell_vanished()
        finally:
            self._tidy(pods)
            self._save()

    async def attempt(self, work: Workload) -> int:
        """Number of the workload's present launch. Raises Unavailable."""
        known = self.works.get(work.uid)
        return known.attempt if known else (await self._met(work)).attempt

    async def _follow(self, work: Workload, pods: Collection[PodRecord]) -> None:
        before = self.works.get(work.uid)
        runs = watch.runs_of(pods, self.store.nodes)
        if before is None:
            if not any(run.started for run in runs):
                return
            before = await self._met(work)
        self._read_logs(before, pods)
        after, told = watch.news(Look(work, runs, self.now(), self.cluster, self._unread), before)
        for one, tracked in told:
            await self._tell(before.job, one)
            self.works[work.uid] = tracked
        self.works[work.uid] = after
        self._read_logs(after, pods)

    async def _met(self, work: Workload) -> Tracked:
        """A workload that was not known. One of the same name as an earlier one is its next launch."""
        job = names.job_id(self.cluster, work.word, work.namespace, work.name)
        if work.attempt:
            return Tracked(job, work.attempt)
        known = await self.service.job(job)
        attempts = [int(one["number"]) for one in known.get("attempts") or ()] if known else []
        if known is None or not attempts:
            return Tracked(job, 1)
        last = max(attempts)
        same = (known.get("labels") or {}).get("uid") == work.uid
        return Tracked(job, last if same else last + 1)

    async def _tell(self, job: str, one: Registered | Happened) -> None:
        """Raises Unavailable."""
        try:
            if isinstance(one, Registered):
                await self.service.register(one.body)
                return
            if one.lines:
                body = "".join(f"{line}\n" for line in one.lines).encode()
                await self.service.lines(job, one.attempt, CLUSTER_SOURCE, 0, body)
            await self.service.event(job, one.body)
        except BadInput as error:
            log.warning("workload_refused", job=job, why=str(error))

    async def _tell_vanished(self) -> None:
        there = {work.uid for work in self.store.works.values()}
        for uid in set(self.works) - there:
            one = watch.vanished(self.works[uid], self.now())
            if one:
                await self._tell(self.works[uid].job, one)
            del self.works[uid]

    async def _tell_nodes(self) -> None:
        """What could not be told now is told at the next look."""
        while self.store.notes:
            name, line = self.store.notes[0]
            try:
                await self.service.node_lines(self.cluster, name, f"{line}\n".encode())
            except BadInput as error:
                log.warning("node_lines_refused", node=name, why=str(error))
            self.store.notes.popleft()
        nodes = list(self.store.nodes.values())
        standing, events = watch.node_news(self.nodes, nodes)
        for name, event in events:
            try:
                if event["kind"] == "down":
                    line = f"node {name} NotReady: {event['reason']}\n"
                    await self.service.node_lines(self.cluster, name, line.encode())
                await self.service.node(name, {**event, "cluster": self.cluster})
            except BadInput as error:
                log.warning("node_event_refused", node=name, why=str(error))
            self.nodes = {**self.nodes, name: standing[name]}
        self.nodes = standing
        for node in nodes:
            if watch.stale(node) and not self.dry:
                await self._unmark(node)

    async def _unmark(self, node: NodeRecord) -> None:
        """Takes our marks off a node that somebody uncordoned."""
        try:
            answer = await self.kube.ask("PATCH", f"/api/v1/nodes/{node.name}", unmarked(node))
        except Unavailable as error:
            log.warning("marks_stay", node=node.name, why=str(error))
            return
        log.info("marks_taken_off", node=node.name, answer=answer.told)

    def _read_logs(self, tracked: Tracked, pods: Collection[PodRecord]) -> None:
        if not self.ships or not tracked.started:
            return
        members = set(tracked.members)
        for pod in pods:
            for run in pod.runs:
                if run.key in members and run.started:
                    self.logs.see(run, Place.of(run, tracked.job, tracked.attempt), pod.gone)

    def _unread(self, run: Any) -> bool:
        return self.ships and self.logs.unread(run)

    def _tidy(self, pods: Mapping[Key, Collection[PodRecord]]) -> None:
        """Forgets deleted pods whose launch is over, and how far the logs of what cannot be seen were read."""
        for key, some in pods.items():
            for pod in some:
                if pod.gone and self._told(key, pod):
                    self.store.forget(pod.uid)
        every = (*self.store.pods.values(), *self.store.gone.values())
        self.logs.forget({run.key for pod in every for run in pod.runs})

    def _told(self, key: Key, pod: PodRecord) -> bool:
        work = self.store.works.get(key)
        tracked = self.works.get(work.uid) if work else None
        if tracked is None:
            return True
        keys = {run.key for run in pod.runs}
        return bool(keys & set(tracked.past)) or (tracked.ended is not None and bool(keys & set(tracked.members)))

    def _save(self) -> None:
        seen = Seen(dict(self.works), dict(self.nodes), dict(self.logs.marks))
        if seen == self.saved:
            return
        try:
            memory.save(self.path, seen)
            self.saved = seen
        except OSError as error:
            log.warning("state_not_saved", path=str(self.path), why=str(error))


def unmarked(node: NodeRecord) -> dict[str, Any]:
    """A merge patch that takes our marks off, unless the node has changed since it was seen."""
    marks = dict.fromkeys(names.NODE_ANNOTATIONS)
    return {"metadata": {"resourceVersion": node.version, "annotations": marks}}
