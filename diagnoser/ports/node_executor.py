"""The nodes that carry out the batches of evaluation runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from diagnoser.model.evaluations import BatchKind, Node, Server


class OrderState(StrEnum):
    UNKNOWN = "unknown"
    """Never started, or not to be found: it may be started."""
    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"
    """It has ended without saying so, and does not run any more."""
    PREEMPTED = "preempted"
    """Its scheduler has ended it to give the GPUs to somebody else."""


@dataclass(frozen=True, slots=True)
class Command:
    """One program of a batch. words: with placeholders in braces; values: of those that the coordinator knows. The node
    adds {checkpoint}, the path where the weights are, and {samples} or {scores}, where the program writes. output:
    absolute, a folder for inference, a file for scoring; it is there only when the program succeeded.
    """

    words: tuple[str, ...]
    values: Mapping[str, str]
    output: str


@dataclass(frozen=True, slots=True)
class Order:
    """A batch as its node gets it. Commands run in order, also after a failed command.

    checkpoint: what the node copies to memory before, "" for scoring. folder: absolute, of logs and results. directory:
    where commands run. gpus: of one slot. server: that they ask; it lives as long as the batch.
    """

    batch: str
    kind: BatchKind
    node: str
    slot: int
    gpus: int
    checkpoint: str
    folder: str
    directory: str
    commands: tuple[Command, ...]
    server: Server | None = None


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How the command with this output ended. code: 0 also where its output was there already. seconds: with the copy
    of the weights; of which load until the first sample. tail: of its log, where it failed."""

    output: str
    code: int
    seconds: float
    load: float = 0.0
    tail: str = ""


@dataclass(frozen=True, slots=True)
class OrderStatus:
    state: OrderState
    results: tuple[CommandResult, ...] = ()
    detail: str = ""


class NodeExecutor(Protocol):
    """Carries orders out. Every method may be called again, by anybody, at any time: the batch's id says what was done.

    Raises Unavailable where another try can help, BadInput or Denied where none can.
    """

    async def nodes(self) -> list[Node]:
        """Those that take work now."""

    async def start(self, order: Order) -> None: ...

    async def poll(self, orders: Sequence[Order]) -> list[OrderStatus]:
        """In the order of the question."""

    async def cancel(self, order: Order) -> None:
        """Returns when it does not run any more, or will end soon without anybody's help."""

    async def finish(self, checkpoints: Sequence[str], nodes: Sequence[str]) -> None:
        """The run is over: the nodes may drop their copies that nobody else reads."""
