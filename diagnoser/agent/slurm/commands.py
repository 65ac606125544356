"""Slurm's commands: always lists of arguments, never a shell."""

import asyncio
import os
import re
import shlex
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

from diagnoser.agent.nodes import NodeRecord
from diagnoser.agent.places import Places, from_topology
from diagnoser.agent.plan_spec import OURS
from diagnoser.agent.slurm.parsing import (
    LOAN,
    JobRecord,
    parse_account,
    parse_jobs,
    parse_nodes,
    parse_reservation,
    parse_reservations,
)
from diagnoser.model.errors import Unavailable, os_reason

COMMAND_SECONDS = 30.0
GRACE_SECONDS = 5.0
OUTPUT_BYTES = 4000
READ_BYTES = 1 << 30
"""Of what a command prints; what comes after is thrown away."""
ABSENT = 127
"""The exit code of a command that is not there, as a shell gives it."""
NOT_STARTED = re.compile(
    r"Unable to allocate resources|Unable to confirm allocation|Unable to create step|Invalid job id"
)
"""srun's words when the program has not been started."""
CANCELLED = re.compile(r"error: Node failure on |error: \*\*\* \w+ \S+ ON \S+ CANCELLED AT \S+ (?!DUE TO TIME LIMIT)")
TASK_END = re.compile(r"error: \S+: tasks? [\d,-]+: ")
"""srun's words when its steps are cancelled, other than for their time, and when a task ends badly."""
READS = 3
LENT = f"{OURS}check: of its return"
"""Reason of a node that is kept for the check of its return."""
KEPT = ("PATH", "HOME", "USER", "LANG", "TZ", "SLURM_CONF", "SLURM_JWT", "TMPDIR")
"""Variables that commands get: a token of ours is not among them."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """End of a command. code is None when it took too long, 127 when it could not be started. error: its standard
    error."""

    words: tuple[str, ...]
    code: int | None
    output: str = ""
    error: str = ""

    @property
    def message(self) -> str:
        """Output for a person, cut to a bound."""
        return "\n".join(filter(None, (self.output.strip(), self.error.strip())))[-OUTPUT_BYTES:]

    @property
    def fault(self) -> str:
        return self.message or f"exit code {self.code}"

    @property
    def not_started(self) -> bool:
        """Whether srun has not started the program: that says nothing about the nodes."""
        if not self.code:
            return False
        if self.code == ABSENT:
            return True
        return bool(NOT_STARTED.search(self.error))

    @property
    def was_cancelled(self) -> bool:
        """Whether somebody, or a node that died, ended srun's program: that says nothing about the other nodes. Slurm
        cancels a step as well once a task of it has ended badly, but says so behind that."""
        if not self.code:
            return False
        cancelled, ended = CANCELLED.search(self.error), TASK_END.search(self.error)
        if cancelled is None:
            return False
        if ended is None:
            return True
        return cancelled.start() < ended.start()


Runner = Callable[[Sequence[str], float], Awaitable[CommandResult]]
"""(words, seconds) -> how it ended. Never raises for a command that fails."""


async def run(words: Sequence[str], seconds: float, limit: int = READ_BYTES) -> CommandResult:
    """A child process that is ended after ``seconds``: politely first, because srun then ends its tasks. limit: bytes
    that are kept of each output."""
    argv = tuple(words)
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environment, start_new_session=True
        )
    except OSError as error:
        return CommandResult(argv, ABSENT, error=f"{argv[0]}: {os_reason(error)}")
    communication = asyncio.ensure_future(_outputs(process, limit))
    try:
        output, errors = await asyncio.wait_for(asyncio.shield(communication), seconds)
    except TimeoutError:
        output, errors = await _stop(process, communication)
        return CommandResult(argv, None, _text(output), f"{_text(errors)}\nno answer within {seconds:.0f} s")
    except asyncio.CancelledError:
        await _stop(process, communication)
        raise
    return CommandResult(argv, process.returncode, _text(output), _text(errors))


@dataclass(frozen=True, slots=True)
class Slurm:
    """Reads the cluster's state. Every method raises Unavailable when the controller does not answer."""

    runner: Runner = run

    async def jobs(self) -> dict[int, JobRecord]:
        return parse_jobs(await self._read("squeue", "--json", "--states=all"))

    async def nodes(self) -> dict[str, NodeRecord]:
        """A node that is kept for the check of its return is shown as what it is: out of service, because of a plan."""
        for _ in range(READS):
            nodes = await self._read_nodes()
            kept = {name for name, node in nodes.items() if in_maintenance(node)}
            if not kept:
                return nodes
            reservations = parse_reservations(await self._read("scontrol", "-o", "show", "reservation"))
            loans = [names for loan, names in reservations.items() if loan.startswith(LOAN)]
            lent = [name for name in chain.from_iterable(loans) if name in kept and not nodes[name].cordoned]
            nodes |= {name: replace(nodes[name], cordoned=True, reason=LENT) for name in lent}
            if kept <= set(chain.from_iterable(reservations.values())):
                return nodes  # else one was given back between the two reads, or lent: it is looked at again
        return nodes

    async def _read_nodes(self) -> dict[str, NodeRecord]:
        return parse_nodes(await self._read("scontrol", "-o", "show", "node"))

    async def places(self) -> Places:
        """Leaf switches and blocks of the nodes; none where the cluster does not tell."""
        result = await self.runner(("scontrol", "-o", "show", "topology"), COMMAND_SECONDS)
        return from_topology(result.output) if result.code == 0 else {}

    async def reservation(self, name: str) -> tuple[str, ...]:
        """Its nodes; none where there is no such reservation."""
        words = ("scontrol", "-o", "show", "reservation", name)
        result = await self.runner(words, COMMAND_SECONDS)
        if result.code == 0:
            return parse_reservation(result.output)
        if "not found" in result.message:
            return ()
        raise Unavailable(f"{shlex.join(words)}: {result.fault}")

    async def ended(self, number: int) -> JobRecord:
        """Ask the accounting how a job ended that the controller knows no more. Never raises."""
        form = ("--noheader", "--parsable2", "--allocations", "--duplicates", "--format=State,ExitCode")
        result = await self.runner(("sacct", *form, f"--jobs={number}"), COMMAND_SECONDS)
        if result.code != 0:
            return parse_account(number, "")
        return parse_account(number, result.output)

    async def _read(self, *words: str) -> str:
        result = await self.runner(words, COMMAND_SECONDS)
        if result.code != 0:
            raise Unavailable(f"{shlex.join(words)}: {result.fault}")
        return result.output


def in_maintenance(node: NodeRecord) -> bool:
    """Tell whether a reservation keeps the node for maintenance."""
    return "MAINT" in node.record.partition(" Reason=")[0]


async def _outputs(process: asyncio.subprocess.Process, limit: int) -> tuple[bytes, bytes]:
    """Return standard output and standard error once the process has ended."""
    assert process.stdout is not None and process.stderr is not None, "both are pipes"
    output, errors, _ = await asyncio.gather(_read(process.stdout, limit), _read(process.stderr, limit), process.wait())
    return output, errors


async def _read(stream: asyncio.StreamReader, limit: int) -> bytes:
    data = bytearray()
    while chunk := await stream.read(1 << 16):
        data += chunk[: limit - len(data)]
    return bytes(data)


async def _stop(
    process: asyncio.subprocess.Process, communication: "asyncio.Future[tuple[bytes, bytes]]"
) -> tuple[bytes, bytes]:
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        return await asyncio.wait_for(asyncio.shield(communication), GRACE_SECONDS)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        return await communication


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
