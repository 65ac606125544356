"""Batches of evaluation runs as Kubernetes Jobs. A Job's name is that of its batch, so that a batch that is started
twice is one Job, and whoever coordinates the run finds it.

Folders of a run are on a file system that the coordinator and all pods have at the same path.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from diagnoser.agent.kubernetes import batch_jobs, fields, names
from diagnoser.agent.kubernetes.batch_jobs import JobSettings
from diagnoser.agent.kubernetes.cluster import KubernetesNodes
from diagnoser.agent.kubernetes.kinds import JOB, Object
from diagnoser.agent.kubernetes.kube import ApiResponse, Kube
from diagnoser.agent.nodes import is_down
from diagnoser.evaluations import batch_folder
from diagnoser.evaluations.batch_folder import CANCELLED, STARTED, SUBMITTED, SchedulerJob
from diagnoser.evaluations.weights import CopyLimits
from diagnoser.model.errors import BadInput, Unavailable
from diagnoser.model.evaluations import BatchKind, Node
from diagnoser.ports import Clock, Order, OrderState, OrderStatus

_NODES = "/api/v1/nodes"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class KubernetesBatches:
    """``ports.NodeExecutor``. copies: their folder as pods have it. nodes_given: that may be used, each with the GPUs
    that may be taken of it; none for all that ``selector``, of labels, leaves."""

    kube: Kube
    namespace: str
    settings: JobSettings
    copies: CopyLimits
    clock: Clock
    nodes_given: Sequence[Node] = ()
    selector: str = ""

    async def nodes(self) -> list[Node]:
        limits = {node.name: node.gpus for node in self.nodes_given}
        found = []
        for manifest in await self._manifests():
            name = manifest["metadata"]["name"]
            bounds = (limits.get(name), batch_jobs.usable_gpus(manifest, self.settings))
            if gpus := min((bound for bound in bounds if bound is not None), default=0):
                found.append(Node(name, gpus))
        if not found:
            log.warning("trials_no_node", why="none that may be used is ready, schedulable and has GPUs")
        return found

    async def check(self, gpus: int) -> None:
        """Check that the API server takes a run with so many GPUs a trial; nothing is made. Raises BadInput."""
        found = {manifest["metadata"]["name"] for manifest in await self._manifests()}
        if absent := [node.name for node in self.nodes_given if node.name not in found]:
            raise BadInput(f"the cluster has no node {absent[0]}")
        sizes = [node.gpus for node in await self.nodes()]
        if sizes and max(sizes) < gpus:
            raise BadInput(f"no node has the {gpus} GPUs of a trial, but {max(sizes)} at most")
        await self.poll(())
        for kind in BatchKind:
            order = Order(f"check-{kind}", kind, "any", 0, gpus, "", "/", "/", ())
            job = batch_jobs.batch_job(order, order.folder, self.settings, self.copies)
            await self._create(job, {"dryRun": "All"})

    async def _manifests(self) -> list[Object]:
        """Get the nodes that may be used, as far as they exist."""
        if self.nodes_given:
            paths = [f"{_NODES}/{names.valid(node.name, 'node')}" for node in self.nodes_given]
            return list(filter(None, await asyncio.gather(*map(self.kube.get, paths))))
        return await self._list(_NODES, self.selector)

    async def start(self, order: Order) -> None:
        folder = Path(order.folder)
        if batch_folder.is_marked(folder, CANCELLED, SUBMITTED, STARTED):
            return
        batch_folder.write_order(order, self.copies, {})
        await self._create(batch_jobs.batch_job(order, str(folder), self.settings, self.copies))
        batch_folder.mark(folder, SUBMITTED)
        if batch_folder.is_marked(folder, CANCELLED):  # meanwhile, by whoever may have found no Job yet
            await self._delete(order)

    async def poll(self, orders: Sequence[Order]) -> list[OrderStatus]:
        jobs = {job["metadata"]["name"]: job for job in await self._list(JOB.path(self.namespace), batch_jobs.BATCH)}
        found = [await self._seen(order, jobs.get(batch_jobs.job_name(order.batch))) for order in orders]
        now = self.clock()
        return [batch_folder.status(Path(order.folder), job, now) for order, job in zip(orders, found, strict=True)]

    async def cancel(self, order: Order) -> None:
        batch_folder.mark(Path(order.folder), CANCELLED)
        await self._delete(order)

    async def finish(self, checkpoints: Sequence[str], nodes: Sequence[str]) -> None:
        """A short Job on each node drops its copies; a node that is down has none. Pods' own memory ends with them."""
        if not self.copies.folder:
            return
        if not self.settings.memory_folder:
            return
        usable = {node.name for node in await self.nodes()}
        for node in sorted(usable & set(nodes)):
            await self._create(batch_jobs.clean_job(node, checkpoints, self.settings, self.copies))

    async def _seen(self, order: Order, job: Mapping[str, Any] | None) -> SchedulerJob | None:
        """A batch that has started, and whose pod is not ready, is lost where its node is: nobody ends that pod."""
        if job is None:
            return None
        if job["metadata"].get("deletionTimestamp"):
            return None
        found = batch_jobs.read_status(job)
        if found.state is not OrderState.QUEUED:
            return found
        if batch_jobs.is_suspended(job):
            return found
        if not batch_folder.is_marked(Path(order.folder), STARTED):
            return found
        if order.node and is_down(order.node, await KubernetesNodes(self.kube, "").nodes([order.node])):
            await self._delete(order)
            return SchedulerJob(OrderState.LOST, detail=f"the node {order.node} is not ready")
        return replace(found, state=OrderState.RUNNING)

    async def _list(self, path: str, selector: str) -> list[Object]:
        query, items = dict[str, str](), list[Object]()
        if selector:
            query["labelSelector"] = selector
        async for page in self.kube.pages(path, query):
            items += fields.entries(page, "items")
        return items

    async def _create(self, job: Object, query: Mapping[str, str] | None = None) -> None:
        """Create a Job; one that is there already has been started. Raises BadInput for what Kubernetes refuses,
        Unavailable for what it may take later, such as above a quota."""
        answer = await self.kube.ask("POST", JOB.path(self.namespace), job, query)
        if (answer.code, answer.body.get("reason")) != (409, "AlreadyExists"):
            _require(answer, "the Job is refused")

    async def _delete(self, order: Order) -> None:
        path = JOB.path(self.namespace, batch_jobs.job_name(order.batch))
        answer = await self.kube.ask("DELETE", path, {"propagationPolicy": "Background"})
        if answer.code != 404:
            _require(answer, "the Job cannot be deleted")


def _require(answer: ApiResponse, fault: str) -> None:
    """Raises Unavailable for what may be taken later, BadInput for any other refusal."""
    if answer.ok:
        return
    if answer.code in (409, 429) or "exceeded quota" in answer.message:
        raise Unavailable(f"{fault}: {answer.message}")
    raise BadInput(f"{fault}: {answer.message}")
