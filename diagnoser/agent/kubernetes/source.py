"""Watches a Kubernetes cluster: its workloads, their pods and logs, its nodes."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from diagnoser.agent.api_client import ApiClient
from diagnoser.agent.changes import Changes
from diagnoser.agent.cluster import ClusterSnapshot
from diagnoser.agent.kubernetes import changes, fields, names
from diagnoser.agent.kubernetes.changes import WorkloadView
from diagnoser.agent.kubernetes.cluster import KubernetesNodes
from diagnoser.agent.kubernetes.informer_cache import InformerCache
from diagnoser.agent.kubernetes.kinds import Key
from diagnoser.agent.kubernetes.logs import LogFollower, LogTarget
from diagnoser.agent.kubernetes.parsing import ContainerRun, PodRecord, Workload
from diagnoser.agent.kubernetes.reflector import Reflector
from diagnoser.agent.nodes import NodeRecord
from diagnoser.agent.state_file import AgentState, JobCheckpoint
from diagnoser.model.errors import BadInput, Unavailable

log = structlog.get_logger()


@dataclass(slots=True)
class KubernetesSource:
    """reflectors: keep the cache up to date. now: seconds since the epoch. ships: whether to send logs. dry: change
    nothing on the cluster. Jobs are known by the uid of their workload, logs by the key of their run."""

    client: ApiClient
    nodes: KubernetesNodes
    cache: InformerCache
    logs: LogFollower
    cluster: str
    state: AgentState
    now: Callable[[], float]
    reflectors: Sequence[Reflector] = ()
    ships: bool = True
    dry: bool = False
    log_source: str = field(default="kubernetes", init=False)

    async def wait(self, seconds: float) -> None:
        """Launches also end by time passing."""
        changed = [asyncio.create_task(event.wait()) for event in (self.cache.changed, self.logs.moved)]
        try:
            await asyncio.wait(changed, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in changed:
                task.cancel()
        self.cache.changed.clear()
        self.logs.moved.clear()

    async def snapshot(self, state: AgentState) -> ClusterSnapshot[WorkloadView]:
        """Once everything has been listed: a workload without its pods would look as if it had none."""
        await asyncio.gather(*(reflector.ready.wait() for reflector in self.reflectors))
        await self._report_notes()
        views = self._views(state)
        for uid, view in views.items():  # an end waits for the logs in ``diff``
            if uid in state.jobs:
                await self.ship(view, state.jobs[uid], rest=False)
        if not self.dry:
            for node in self.cache.nodes.values():
                if not node.ours:
                    continue
                if not node.cordoned:
                    await self._unmark(node)
        return ClusterSnapshot(views, dict(self.cache.nodes))

    def _views(self, state: AgentState) -> dict[str, WorkloadView]:
        """Give the chosen workloads by their uid, and those that are gone until their end is reported."""
        pods, now, works = self.cache.by_workload(), self.now(), list(self.cache.works.values())
        self._tidy(pods)
        views: dict[str, WorkloadView] = {}
        for work in works:
            if work.chosen:
                views[work.uid] = WorkloadView(work, tuple(pods.get(work.key, ())), now, self._unread)
        for uid in state.jobs.keys() - {work.uid for work in works}:
            if state.jobs[uid].is_open:
                views[uid] = WorkloadView(None, (), now)
        return views

    async def first_checkpoint(self, job: WorkloadView) -> JobCheckpoint | None:
        """A workload of the same name as an earlier one is its next launch."""
        if job.workload is None:
            return None
        if not any(run.started for run in changes.runs_of(job.pods)):
            return None
        return await self._checkpoint(job.workload)

    async def launch_of(self, work: Workload) -> int:
        """Number of the workload's present launch. Raises Unavailable."""
        checkpoint = self.state.jobs.get(work.uid)
        return (checkpoint or await self._checkpoint(work)).attempt

    def diff(
        self, job: WorkloadView, nodes: Mapping[str, NodeRecord], before: JobCheckpoint
    ) -> tuple[JobCheckpoint, Changes]:
        return changes.diff(job, before, self.cluster)

    async def ship(self, job: WorkloadView, checkpoint: JobCheckpoint, *, rest: bool) -> None:
        """Logs are followed beside the looks: an end waits for them in ``diff``."""
        if not self.ships:
            return
        if not checkpoint.started:
            return
        for pod in job.pods:
            for run in pod.runs:
                if run.started and run.key in checkpoint.members:
                    self.logs.see(run, LogTarget.of_run(run, checkpoint.job, checkpoint.attempt), pod.gone)

    async def _checkpoint(self, work: Workload) -> JobCheckpoint:
        job = names.job_id(self.cluster, work.word, work.namespace, work.name)
        if work.attempt:
            return JobCheckpoint(job, work.attempt)
        stored_job = await self.client.job(job) or {}
        last = max((int(attempt["number"]) for attempt in fields.entries(stored_job, "attempts")), default=0)
        if last and fields.section(stored_job, "labels").get("uid") == work.uid:
            return JobCheckpoint(job, last)
        return JobCheckpoint(job, last + 1)

    async def _report_notes(self) -> None:
        """Send notes about nodes; what could not be sent now is sent at the next look."""
        while self.cache.notes:
            name, line = self.cache.notes[0]
            try:
                await self.client.node_lines(self.cluster, name, f"{line}\n".encode())
            except BadInput as error:
                log.warning("node_lines_refused", node=name, why=str(error))
            self.cache.notes.popleft()

    async def _unmark(self, node: NodeRecord) -> None:
        """Somebody uncordoned a node of ours: our marks must not make the next cordon look like ours."""
        try:
            attempt = await self.nodes.run(self.nodes.uncordon(node))
        except Unavailable as error:
            log.warning("marks_stay", node=node.name, why=str(error))
            return
        log.info("marks_taken_off", node=node.name, answer=attempt.output)

    def _unread(self, run: ContainerRun) -> bool:
        return self.ships and self.logs.unread(run)

    def _tidy(self, pods: Mapping[Key, Collection[PodRecord]]) -> None:
        """Forgets deleted pods whose launch is over, and how far the logs of what cannot be seen were read."""
        for key, workload_pods in pods.items():
            for pod in workload_pods:
                if not pod.gone:
                    continue
                if self._is_reported(key, pod):
                    self.cache.gone.pop(pod.uid, None)
        seen = set[str]()
        for pod in (*self.cache.pods.values(), *self.cache.gone.values()):
            seen.update(run.key for run in pod.runs)
        self.logs.forget(seen)

    def _is_reported(self, key: Key, pod: PodRecord) -> bool:
        work = self.cache.works.get(key)
        if work is None:
            return True
        if work.uid not in self.state.jobs:
            return True
        checkpoint = self.state.jobs[work.uid]
        reported = set(checkpoint.past)
        if checkpoint.ended:
            reported.update(checkpoint.members)
        return any(run.key in reported for run in pod.runs)
