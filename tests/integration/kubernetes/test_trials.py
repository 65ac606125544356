"""Evaluation batches as Jobs, against a double of the API server."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from diagnoser.agent.kubernetes.batch_jobs import JobSettings
from diagnoser.agent.kubernetes.evaluation_batches import KubernetesBatches
from diagnoser.evaluations import batch_folder
from diagnoser.evaluations.coordinator import Coordinator
from diagnoser.evaluations.weights import CopyLimits
from diagnoser.model.errors import BadInput, Unavailable
from diagnoser.model.evaluations import BatchKind, BatchState, Node
from diagnoser.ports import Command, Order, OrderState
from tests.databases import sqlite_store
from tests.integration.kubernetes.conftest import NAMESPACE, PlainKube
from tests.integration.kubernetes.containers import Containers
from tests.integration.kubernetes.double import Object, Server
from tests.trial_runs import FAST, carry_out, check, completions, coordinator, suite, trial_run

JOB = "diagnoser-trial-b1"


@pytest.fixture
async def trials(server: Server, tmp_path: Path) -> AsyncIterator[KubernetesBatches]:
    """Two GPUs may be taken of each of two nodes that have eight."""
    for name in ("gpu-01", "gpu-02", "gpu-03"):
        node = server.state.objects["nodes", "", name]
        server.state.put("nodes", {**node, "status": {**node["status"], "allocatable": {"nvidia.com/gpu": "8"}}})
    settings = JobSettings("eval:1", 1000, 1000, {str(tmp_path): ""}, memory_folder=str(tmp_path / "memory"))
    nodes = (Node("gpu-01", 2), Node("gpu-02", 2))
    (tmp_path / "memory").mkdir()
    copies = CopyLimits(str(tmp_path / "memory" / "weights"), 0.0)
    async with httpx.AsyncClient(base_url=server.base) as client:
        yield KubernetesBatches(PlainKube(cast(Any, None), client), NAMESPACE, settings, copies, time.time, nodes)


@pytest.fixture
def order(tmp_path: Path) -> Order:
    command = Command(("sh", "-c", "echo 1 > $0/x", "{samples}"), {}, str(tmp_path / "samples"))
    return Order("b1", BatchKind.INFER, "gpu-01", 0, 1, "", str(tmp_path / "b1"), str(tmp_path), (command,))


@contextmanager
def containers(server: Server) -> Iterator[Containers]:
    """With the part of the Job's controller: a Job ends as its pod does."""

    def request(method: str, path: str, body: Any) -> Object:
        answer = httpx.request(method, server.base + path, json=body, headers={"authorization": "Bearer t"})
        found: Object = answer.json()
        return found

    def ended(pod: Object, code: int) -> None:
        job = pod["metadata"]["labels"]["job-name"]
        if server.state.get("jobs", job):
            server.state.end(job, "Failed" if code else "Complete", "BackoffLimitExceeded" if code else "")

    with Containers(request, NAMESPACE, ended) as found:
        yield found


async def state(trials: KubernetesBatches, order: Order) -> OrderState:
    return (await trials.poll([order]))[0].state


def _forget(order: Order) -> None:
    Path(order.folder, "submitted").unlink()


def jobs(server: Server) -> list[str]:
    return sorted(name for plural, _, name in server.state.objects if plural == "jobs")


async def test_a_run_is_carried_out_by_jobs(server: Server, trials: KubernetesBatches, tmp_path: Path) -> None:
    """On the nodes that may be used; each sample is inferred once, and the copies of the weights are dropped."""
    store = await sqlite_store(tmp_path / "test.db")
    try:
        await store.evaluations.add_run(replace(trial_run(tmp_path, suite(tmp_path, (8,))), backend="kubernetes@train"))
        on_all_nodes = replace(FAST, fast=True)
        with containers(server):
            progress = await carry_out(
                Coordinator(store.evaluations, trials, time.time, lambda: secrets.token_hex(4), settings=on_all_nodes),
                "r1",
            )
    finally:
        await store.close()
    check(progress)
    assert set(completions(tmp_path).values()) == {1}
    assert {batch.node for batch in progress.batches if batch.kind is BatchKind.INFER} == {"gpu-01", "gpu-02"}
    assert {batch.state for batch in progress.batches} == {BatchState.ENDED}
    cleaning = [name for name in jobs(server) if "diagnoser-trial-r1" not in name]
    assert len(cleaning) == 2


async def test_a_batch_is_one_job_however_often_it_is_started(
    server: Server, trials: KubernetesBatches, order: Order
) -> None:
    """Also by somebody who does not see that it is: who comes second is refused, and takes that for a start."""
    assert await state(trials, order) is OrderState.UNKNOWN
    await asyncio.gather(trials.start(order), trials.start(order))
    _forget(order)
    await trials.start(order)
    assert jobs(server) == [JOB]
    assert server.changes().count("POST jobs") >= 2, "the server has refused the second one"
    assert await state(trials, order) is OrderState.QUEUED


async def test_a_batch_that_was_cancelled_is_not_started(
    server: Server, trials: KubernetesBatches, order: Order
) -> None:
    """Neither later nor, by another coordinator, while it is cancelled."""
    await trials.start(order)
    await trials.cancel(order)
    await trials.cancel(order)
    await trials.start(order)
    assert jobs(server) == []
    assert await state(trials, order) is OrderState.LOST
    assert server.asked[-1].body == {"propagationPolicy": "Background"}
    other = replace(order, batch="b2", folder=f"{order.folder}-2")
    create = type(trials)._create

    async def cancelled_meanwhile(self: KubernetesBatches, job: Object, query: Any = None) -> None:
        await self.cancel(other)
        await create(self, job, query)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KubernetesBatches, "_create", cancelled_meanwhile)
        await trials.start(other)
    assert jobs(server) == []


async def test_what_the_runner_printed_says_why_a_job_failed(
    server: Server, trials: KubernetesBatches, order: Order
) -> None:
    """A folder where its commands cannot run; the log is in the folder of the batch."""
    faulty = replace(order, directory="/no/such/folder")
    with containers(server):
        await trials.start(faulty)
        limit = time.monotonic() + 60
        while await state(trials, faulty) is not OrderState.LOST:
            assert time.monotonic() < limit
            await asyncio.sleep(0.05)
    [status] = await trials.poll([faulty])
    assert "BackoffLimitExceeded" in status.detail and "No such file or directory" in status.detail


async def test_a_job_that_is_gone_is_lost_unless_its_results_are_there(
    server: Server, trials: KubernetesBatches, order: Order
) -> None:
    """A person may delete it, and Kubernetes does some minutes after its end."""
    await trials.start(order)
    server.state.drop("jobs", NAMESPACE, JOB)
    assert await state(trials, order) is OrderState.LOST
    batch_folder.mark(Path(order.folder), "ended")
    assert await state(trials, order) is OrderState.ENDED
    await trials.start(order)
    assert jobs(server) == []


async def test_a_batch_on_a_dead_node_is_lost_and_its_job_deleted(
    server: Server, trials: KubernetesBatches, order: Order
) -> None:
    """Once it runs: nobody else would end its pod. Before that it only waits."""
    await trials.start(order)
    server.state.ready("gpu-01", "Unknown")
    assert await state(trials, order) is OrderState.QUEUED
    assert [node.name for node in await trials.nodes()] == ["gpu-02"]
    batch_folder.mark(Path(order.folder), "started")
    [status] = await trials.poll([order])
    assert (status.state, status.detail) == (OrderState.LOST, "the node gpu-01 is not ready")
    assert jobs(server) == []


async def test_a_cordoned_node_ends_its_batch_and_gets_none(
    server: Server, trials: KubernetesBatches, order: Order
) -> None:
    """What runs there goes on."""
    await trials.start(order)
    batch_folder.mark(Path(order.folder), "started")
    server.state.add_node("gpu-01", unschedulable=True)
    assert [node.name for node in await trials.nodes()] == ["gpu-02"]
    assert await state(trials, order) is OrderState.RUNNING


async def test_a_batch_that_kueue_preempted_waits(server: Server, trials: KubernetesBatches, order: Order) -> None:
    """It is suspended, and goes on when it is admitted again."""
    await trials.start(order)
    batch_folder.mark(Path(order.folder), "started")
    job = server.state.objects["jobs", NAMESPACE, JOB]
    server.state.put("jobs", {**job, "spec": {**job["spec"], "suspend": True}})
    assert await state(trials, order) is OrderState.QUEUED


async def test_a_batch_whose_pod_is_preempted_runs_again_and_has_not_failed(
    server: Server, trials: KubernetesBatches, tmp_path: Path
) -> None:
    """As the Job says by its policy, whether another pod took its GPUs or its node was drained."""
    store = await sqlite_store(tmp_path / "test.db")
    preempted: list[str] = []
    start = KubernetesBatches.start

    async def preempt_first(self: KubernetesBatches, order: Order) -> None:
        await start(self, order)
        if not preempted:
            preempted.append(order.batch)
            job = f"diagnoser-trial-{order.batch}"
            [pod] = [name for kind, _, name in server.state.objects if kind == "pods" and name.startswith(job)]
            server.state.drop("pods", NAMESPACE, pod)
            server.state.end(job, reason="PodFailurePolicy")

    try:
        await store.evaluations.add_run(replace(trial_run(tmp_path, suite(tmp_path, (4,))), backend="kubernetes@train"))
        with containers(server), pytest.MonkeyPatch.context() as patch:
            patch.setattr(KubernetesBatches, "start", preempt_first)
            progress = await carry_out(coordinator(store, trials), "r1")
    finally:
        await store.close()
    check(progress)
    assert [batch.id for batch in progress.batches if batch.state is BatchState.CANCELLED] == preempted
    assert {record.failures for record in progress.shards} == {0}


@pytest.mark.parametrize(("code", "error"), [(403, BadInput), (422, BadInput), (429, Unavailable), (503, Unavailable)])
async def test_what_the_api_server_refuses_is_told(
    server: Server, trials: KubernetesBatches, order: Order, code: int, error: type[Exception]
) -> None:
    """For good, or until it can; nothing counts as started."""
    server.state.refused["POST", "jobs"] = code
    with pytest.raises(error):
        await trials.start(order)
    assert not batch_folder.is_marked(Path(order.folder), "submitted")
    server.state.refused.clear()
    await trials.start(order)
    assert jobs(server) == [JOB]


async def test_a_check_before_the_run_makes_nothing(server: Server, trials: KubernetesBatches) -> None:
    """It finds what will be refused, a node that is mistyped, and trials that are larger than any node."""
    await trials.check(1)
    assert jobs(server) == []
    with pytest.raises(BadInput, match="no node gpu-9"):
        await replace(trials, nodes_given=(Node("gpu-9", 1),)).check(1)
    with pytest.raises(BadInput, match="no node has the 4 GPUs of a trial, but 2 at most"):
        await trials.check(4)
    server.state.refused["POST", "jobs"] = 403
    with pytest.raises(BadInput, match="the Job is refused: HTTP 403"):
        await trials.check(1)


async def test_without_names_all_nodes_with_gpus_may_be_used(server: Server, trials: KubernetesBatches) -> None:
    """With as many as they have."""
    server.state.add_node("cpu-01")
    found = await replace(trials, nodes_given=()).nodes()
    assert found == [Node("gpu-01", 8), Node("gpu-02", 8), Node("gpu-03", 8)]
