"""Batches of evaluation runs as Slurm jobs. A job's name carries the id of its batch, so that whoever coordinates the
run finds it, and a batch that was submitted twice runs once.

Folders of a run are on a file system that the nodes share, and Python with this package is there at the same path.
"""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diagnoser.agent.slurm.commands import COMMAND_SECONDS, Runner, Slurm, run
from diagnoser.agent.slurm.parsing import JobRecord, parse_jobs
from diagnoser.evaluations import batch_folder
from diagnoser.evaluations.batch_folder import CANCELLED, ORDER, SUBMITTED, SchedulerJob
from diagnoser.evaluations.weights import CopyLimits
from diagnoser.model.errors import BadInput, Unavailable
from diagnoser.model.evaluations import BatchKind, Node
from diagnoser.ports import Clock, Order, OrderState, OrderStatus

PREFIX = "diagnoser-trial-"
_STATES = {
    "PENDING": OrderState.QUEUED,
    "COMPLETED": OrderState.ENDED,
    "PREEMPTED": OrderState.PREEMPTED,
}
_TRY_AGAIN = ("timed out", "Unable to contact", "temporarily", "Connection", "connect to", "Socket", "Zero Bytes")


@dataclass(frozen=True, slots=True)
class SlurmBatches:
    """``ports.NodeExecutor``. nodes: that may be used, each with the GPUs that may be taken of it.

    gres: by which jobs ask for GPUs, "" where nodes have none. infer, score: further words of sbatch, such as
    --partition; those of scoring should lead to nodes without GPUs. python: on the nodes.
    """

    nodes_given: Sequence[Node]
    copies: CopyLimits
    clock: Clock
    gres: str = "gpu"
    infer: Sequence[str] = ()
    score: Sequence[str] = ()
    python: str = sys.executable
    runner: Runner = field(default=run)

    async def nodes(self) -> list[Node]:
        known, usable = await Slurm(self.runner).nodes(), []
        for node in self.nodes_given:
            if node.name not in known:
                raise BadInput(f"Slurm knows no node {node.name}")
            if known[node.name].takes_jobs:
                usable.append(node)
        return usable

    async def start(self, order: Order) -> None:
        if batch_folder.is_marked(Path(order.folder), CANCELLED):
            return
        if batch_folder.is_marked(Path(order.folder), ORDER) and _name(order) in await self._jobs([order]):
            return
        folder = batch_folder.write_order(order, self.copies, {})
        words = self._sbatch(_name(order), folder / "runner.log", order.directory)
        if order.kind is BatchKind.INFER:
            words += (f"--nodelist={order.node}",)
            if self.gres:
                words += (f"--gres={self.gres}:{order.gpus}",)
            words += tuple(self.infer)
        else:
            words += tuple(self.score)
        runs = shlex.join((self.python, "-P", "-m", "diagnoser.evaluations.runner", str(folder)))
        await self._run((*words, f'--wrap=exec {runs} --owner "$SLURM_JOB_ID"'))
        batch_folder.mark(folder, SUBMITTED)

    async def poll(self, orders: Sequence[Order]) -> list[OrderStatus]:
        jobs, now = await self._jobs(orders), self.clock()
        return [batch_folder.status(Path(order.folder), _seen(jobs.get(_name(order))), now) for order in orders]

    async def cancel(self, order: Order) -> None:
        batch_folder.mark(Path(order.folder), CANCELLED)
        if await self._jobs([order]):
            await self._run(("scancel", f"--name={_name(order)}"))

    async def finish(self, checkpoints: Sequence[str], nodes: Sequence[str]) -> None:
        """A short job on each node drops its copies; a node that is down has none."""
        if not self.copies.folder:
            return
        usable = {node.name for node in await self.nodes()}
        drops = shlex.join((self.python, "-P", "-m", "diagnoser.evaluations.weights", self.copies.folder, *checkpoints))
        for node in sorted(usable & set(nodes)):
            words = (*self._sbatch(f"{PREFIX}clean", Path("/dev/null"), "/"), *self.infer, f"--nodelist={node}")
            await self._run((*words, f"--wrap=exec {drops}"))

    def _sbatch(self, name: str, log: Path, directory: str) -> tuple[str, ...]:
        """Not requeued: a batch that is lost is cut anew, for the nodes that are left."""
        one = ("--nodes=1", "--ntasks=1", "--no-requeue", "--open-mode=append", "--input=/dev/null")
        return ("sbatch", "--parsable", f"--job-name={name}", *one, f"--output={log}", f"--chdir={directory}")

    async def _jobs(self, orders: Sequence[Order]) -> Mapping[str, JobRecord]:
        """List jobs by name; of several with a name the job that has not ended, else the last."""
        names = ",".join(map(_name, orders))
        found = parse_jobs(await self._run(("squeue", "--json", "--states=all", f"--name={names}")))
        jobs = sorted(found.values(), key=lambda job: (not job.finished, job.number))
        return {job.name: job for job in jobs}

    async def _run(self, words: Sequence[str]) -> str:
        """Raises BadInput for what Slurm refuses, Unavailable where it does not answer."""
        result = await self.runner(words, COMMAND_SECONDS)
        if result.code == 0:
            return result.output
        message = f"{words[0]}: {result.fault}"
        if result.code is None or words[0] != "sbatch":
            raise Unavailable(message)
        if any(word in result.message for word in _TRY_AGAIN):
            raise Unavailable(message)
        raise BadInput(message)


def _seen(job: JobRecord | None) -> SchedulerJob | None:
    if job is None:
        return None
    if not job.finished:
        return SchedulerJob(_STATES.get(job.state, OrderState.RUNNING))
    state = _STATES.get(job.state, OrderState.LOST)
    return SchedulerJob(state, job.ended, f"Slurm's job {job.number} ended as {job.state}")


def _name(order: Order) -> str:
    return f"{PREFIX}{order.batch}"
