"""Evaluation runs on a real Slurm: each batch is a job, and what dies is taken over."""

import asyncio
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from diagnoser.agent.slurm.commands import CommandResult
from diagnoser.agent.slurm.evaluation_batches import SlurmBatches
from diagnoser.evaluations.coordinator import Coordinator
from diagnoser.evaluations.weights import CopyLimits
from diagnoser.model.evaluations import BatchKind, BatchRecord, BatchState, Node, RunProgress, RunState
from diagnoser.ports import Command, Order, OrderState
from tests.databases import sqlite_store
from tests.integration.slurm import cluster as slurm
from tests.integration.slurm.cluster import Cluster, until
from tests.trial_runs import FAST, check, completions, suite, trial_run

ROOT = Path(__file__).parents[3]


def executor(cluster: Cluster, folder: Path, names: Sequence[str], *infer: str) -> SlurmBatches:
    environment = {**cluster.environment, "PYTHONPATH": str(ROOT)}  # sbatch passes it on

    async def run(words: Sequence[str], seconds: float) -> CommandResult:
        def call() -> CommandResult:
            done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
            return CommandResult(tuple(words), done.returncode, done.stdout, done.stderr)

        return await asyncio.to_thread(call)

    nodes = [Node(name, 2) for name in names]
    copies = CopyLimits(str(folder / "weights"), 0.0)
    more = ("--cpus-per-task=1",)
    return SlurmBatches(nodes, copies, time.time, "", (*more, *infer), more, sys.executable, run)


BORROWED = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=CANCEL",
    "PartitionName=owners Nodes=gpu-01,gpu-02 PriorityTier=10",
    "PartitionName=borrowed Nodes=gpu-01,gpu-02 PriorityTier=1 GraceTime={grace}",
)
"""Lines of slurm.conf: jobs of owners end those of people who borrow idle nodes."""


WAIT = 'until [ -e "$0" ]; do sleep 0.1; done; exec "$@"'


async def carried_out(cluster: Cluster, folder: Path, names: Sequence[str], kill: str = "") -> RunProgress:
    """kill: a node that dies once something runs there."""
    store = await sqlite_store(folder / "test.db")
    await store.evaluations.add_run(replace(trial_run(folder, suite(folder, (40, 30), 0.1)), backend="slurm"))
    found = Coordinator(
        store.evaluations, executor(cluster, folder, names), time.time, lambda: secrets.token_hex(4), settings=FAST
    )
    limit = time.monotonic() + 300
    try:
        while (progress := await found.step("r1")).run.state is RunState.RUNNING:
            assert time.monotonic() < limit, progress
            if kill and any(batch.node == kill and _runs(folder, batch.id) for batch in progress.batches):
                await asyncio.to_thread(_kill, cluster, kill)
                kill = ""
            await asyncio.sleep(0.3)
        return progress
    finally:
        await store.close()


def _runs(folder: Path, batch: str) -> bool:
    place = folder / "r1" / "batches" / batch
    return (place / "started").exists() and not (place / "ended").exists()


def _kill(cluster: Cluster, node: str) -> None:
    cluster.end(node, kill=True)
    cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=killed by a test")


async def test_a_run_is_carried_out_by_jobs(cluster: Cluster, tmp_path: Path) -> None:
    """On two nodes, with a copy of the weights that goes at the end; each sample is inferred once."""
    progress = await carried_out(cluster, tmp_path, ("gpu-01", "gpu-02"))
    check(progress)
    assert set(completions(tmp_path).values()) == {1}
    assert {batch.node for batch in progress.batches if batch.kind is BatchKind.INFER} == {"gpu-01", "gpu-02"}
    weights = tmp_path / "r1" / "weights"
    await asyncio.to_thread(until, lambda: not list(weights.glob("*.use")), "the jobs that clean up have run")


@pytest.mark.dead_after(5)
async def test_a_dead_node_is_taken_over(cluster: Cluster, tmp_path: Path) -> None:
    """What ran there runs on another one; the run ends with every score."""
    progress = await carried_out(cluster, tmp_path, ("gpu-01", "gpu-02"), kill="gpu-02")
    check(progress)
    assert BatchState.LOST in {batch.state for batch in progress.batches if batch.node == "gpu-02"}


@pytest.mark.parametrize(("grace", "times"), [(0, 5), (3, 2)])
async def test_borrowed_gpus_are_given_back_piece_by_piece(tmp_path: Path, grace: int, times: int) -> None:
    """A node whose owners take it again and again, and then keep it, costs what ran there: no sample is lost or twice
    in a result, no shard counts as failed, and what waits for the node is given to the other one.

    grace: seconds between Slurm's SIGTERM and its SIGKILL.
    """
    if why := slurm.missing():
        pytest.skip(f"needs a real Slurm: {why}")
    settings = [line.format(grace=grace) for line in BORROWED]
    with slurm.running("borrowed", 2, settings=settings) as cluster:
        store = await sqlite_store(tmp_path / "test.db")
        given, released = suite(tmp_path, (60, 40)), tmp_path / "released"
        wait = ("sh", "-c", WAIT, str(released))  # so that the other node does not take what is given back too soon
        tasks = [replace(task, infer=(*wait, *task.infer)) for task in given.tasks]
        run = trial_run(tmp_path, replace(given, tasks=tuple(tasks)))
        await store.evaluations.add_run(replace(run, backend="slurm"))
        nodes = executor(cluster, tmp_path, cluster.nodes, "--partition=borrowed")
        coordinator = Coordinator(
            store.evaluations,
            nodes,
            time.time,
            lambda: secrets.token_hex(4),
            settings=replace(FAST, batch_seconds=1.0, late_seconds=600.0, queue_seconds=5.0, fast=True),
        )

        def is_borrowed(batch: BatchRecord) -> bool:
            return batch.node == "gpu-02" and _runs(tmp_path, batch.id)

        taken, limit = 0, time.monotonic() + 400
        while (progress := await coordinator.step("r1")).run.state is RunState.RUNNING:
            assert time.monotonic() < limit, progress
            if taken <= times and any(map(is_borrowed, progress.running)):
                taken += 1
                seconds = 600 if taken > times else 1
                await asyncio.to_thread(_take, cluster, "gpu-02", seconds)
            if taken > times:
                released.touch()
            await asyncio.sleep(0.3)
        await store.close()
    check(progress)
    assert [record for record in progress.shards if record.failures] == []
    states = [batch.state for batch in progress.batches if batch.node == "gpu-02"]
    assert states.count(BatchState.CANCELLED) > times, "the last one waited in vain, the others were preempted"


def _take(cluster: Cluster, node: str, seconds: int) -> None:
    """A job of the owners of a node, which runs before this returns."""
    words = ("sbatch", "--parsable", "--partition=owners", "--exclusive", f"--nodelist={node}")
    job = cluster.run(*words, "--output=/dev/null", f"--wrap=sleep {seconds}")
    until(lambda: cluster.state(job)[0] != "PENDING", "the owners have their node")


async def test_a_batch_is_one_job_however_often_it_is_started(cluster: Cluster, tmp_path: Path) -> None:
    """Whoever starts it again finds it by its name, running, cancelled or ended."""
    nodes = executor(cluster, tmp_path, ("gpu-01",))
    words = ("sh", "-c", "sleep 60; echo 1 > $0/x", "{samples}")
    command = Command(words, {}, str(tmp_path / "samples"))
    order = Order("b1", BatchKind.INFER, "gpu-01", 0, 1, "", str(tmp_path / "b1"), str(tmp_path), (command,))
    assert (await nodes.poll([order]))[0].state is OrderState.UNKNOWN
    await asyncio.gather(nodes.start(order), nodes.start(replace(order)))
    await nodes.start(order)
    names = (await asyncio.to_thread(cluster.run, "squeue", "-h", "-o", "%j")).split()
    assert set(names) == {"diagnoser-trial-b1"}
    assert (await nodes.poll([order]))[0].state in (OrderState.QUEUED, OrderState.RUNNING)
    await nodes.cancel(order)
    await nodes.start(order)
    limit = time.monotonic() + 60
    while (await nodes.poll([order]))[0].state is not OrderState.LOST:
        assert time.monotonic() < limit
        await asyncio.sleep(0.3)
