"""Runs the groups of a node check, and asks nodes: one job of ``srun`` each, on exactly its nodes."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diagnoser.agent import node_query
from diagnoser.agent.cluster import Command, CommandAttempt, NodeQuestion
from diagnoser.agent.nodes import NodeRecord
from diagnoser.agent.slurm.commands import Runner
from diagnoser.model.errors import Unavailable

CHECK_JOB, QUERY_JOB = "diagnoser-check", "diagnoser-ask"
START_SECONDS = 60.0
FIRST_PORT, PORTS = 29_600, 2_000


@dataclass(frozen=True, slots=True)
class SrunCheck:
    """seconds: that the program may take. reservation: that the nodes are kept by, "" for none."""

    runner: Runner
    program: tuple[str, ...]
    nodes: Mapping[str, NodeRecord]
    seconds: float
    reservation: str

    async def run(self, place: int, group: Sequence[str], attempts: list[CommandAttempt]) -> tuple[bool, str, float]:
        started = time.monotonic()
        command = self._srun(place, group)
        result = await self.runner(command.words, self.seconds + START_SECONDS)
        attempts.append(CommandAttempt(command, result.code, result.message))
        if result.not_started:
            raise Unavailable(f"Slurm did not start the check of {', '.join(group)}: {result.message}")
        if result.was_cancelled:
            raise Unavailable(f"the check of {', '.join(group)} was cancelled: {result.message}")
        return result.code == 0, result.message, time.monotonic() - started

    def _srun(self, place: int, group: Sequence[str]) -> Command:
        gpus = min(self.nodes[name].gpus for name in group)
        address = self.nodes[group[0]].address or group[0]
        options = (
            f"--ntasks-per-node={gpus or 1}",
            "--kill-on-bad-exit=1",
            f"--export=MASTER_ADDR={address},MASTER_PORT={FIRST_PORT + place % PORTS},PATH",
        )
        allocation = _allocation(CHECK_JOB, group, self.seconds, self.reservation, gpus)
        return Command(("srun", *allocation, *options, *self.program))


def _allocation(name: str, nodes: Sequence[str], seconds: float, reservation: str, gpus: int) -> list[str]:
    """Ask for exactly these nodes. Without an option for GPUs, these are hidden where devices are confined."""
    options = [
        f"--job-name={name}",
        f"--nodelist={','.join(nodes)}",
        f"--nodes={len(nodes)}",
        f"--immediate={START_SECONDS:.0f}",
        f"--time={int(seconds // 60) + 1}",
        "--exclusive",
    ]
    if reservation:
        options.append(f"--reservation={reservation}")
    if gpus:
        options.append(f"--gres=gpu:{gpus}")
    return options


@dataclass(frozen=True, slots=True)
class SrunQueries:
    """Asks nodes as the user who runs this process, who is root or Slurm's own: no file of the job's user is used."""

    runner: Runner
    nodes: Mapping[str, NodeRecord]
    reservation: str

    async def ask(self, place: int, node: str, asked: Sequence[NodeQuestion], attempts: list[CommandAttempt]) -> str:
        seconds = node_query.seconds(asked)
        options = _allocation(QUERY_JOB, [node], seconds, self.reservation, self.nodes[node].gpus)
        options += ["--ntasks=1", "--export=PATH", "--chdir=/"]
        result = await self.runner(("srun", *options, *node_query.program(asked)), seconds + START_SECONDS)
        shown, message = Command(("srun", *options), note=node_query.summary(asked)), ""
        if result.code != 0:
            message = result.message
        attempts.append(CommandAttempt(shown, result.code, message))
        if result.not_started:
            raise Unavailable(f"Slurm did not start the queries on {node}: {result.message}")
        return result.output or result.message
