"""Batches as processes of this machine. They do not end with the coordinator that started them.

Each holds the lock of its folder as long as any of its processes lives: who starts it again finds that out, and who
looks whether it lives does, too, without knowing a process by its number.
"""

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from diagnoser.evaluations import batch_folder
from diagnoser.evaluations.batch_folder import CANCELLED, ENDED, STARTED
from diagnoser.evaluations.weights import CopyLimits, drop
from diagnoser.model.evaluations import BatchKind, Node
from diagnoser.ports import Order, OrderState, OrderStatus

GRACE_SECONDS = 5.0
OURS = "DIAGNOSER_"
"""Variables that commands of a suite do not get: settings of the service, with its secrets."""


class LocalExecutor:
    """``ports.NodeExecutor``. nodes: parts of this machine, each with its number of GPUs (or of trials at once)."""

    def __init__(self, nodes: Sequence[Node], copies: CopyLimits) -> None:
        self._nodes = list(nodes)
        self._copies = copies
        self._children: list[subprocess.Popen[bytes]] = []

    async def nodes(self) -> list[Node]:
        return self._nodes

    async def start(self, order: Order) -> None:
        await asyncio.to_thread(self._start, order)

    async def poll(self, orders: Sequence[Order]) -> list[OrderStatus]:
        self._children = [child for child in self._children if child.poll() is None]
        return [_status(Path(order.folder)) for order in orders]

    async def cancel(self, order: Order) -> None:
        await asyncio.to_thread(_cancel, Path(order.folder))

    async def finish(self, checkpoints: Sequence[str], nodes: Sequence[str]) -> None:
        await asyncio.to_thread(self._reap)
        if self._copies.folder:
            await asyncio.to_thread(drop, self._copies.folder, checkpoints)

    def _reap(self) -> None:
        """A process that has given its lock back is about to end."""
        for child in self._children:
            with suppress(subprocess.TimeoutExpired):
                child.wait(GRACE_SECONDS)

    def _start(self, order: Order) -> None:
        Path(order.folder).mkdir(parents=True, exist_ok=True)
        with _locked(Path(order.folder)) as lock:
            if lock is None:
                return
            if batch_folder.is_marked(Path(order.folder), STARTED, CANCELLED):
                return
            folder = batch_folder.write_order(order, self._copies, _gpus(order))
            environment = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
            # -P: the folder in which it starts is not searched for modules
            words = [sys.executable, "-P", "-m", "diagnoser.evaluations.runner", str(folder), "--lock", str(lock)]
            with (folder / "runner.log").open("ab") as log:
                self._children.append(
                    subprocess.Popen(  # noqa: S603 - our own program
                        words,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        env=environment,
                        cwd="/",
                        pass_fds=(lock,),
                        start_new_session=True,
                    )
                )


def _gpus(order: Order) -> dict[str, str]:
    devices = ""
    if order.kind is BatchKind.INFER:
        first = order.slot * order.gpus
        devices = ",".join(map(str, range(first, first + order.gpus)))
    return {"CUDA_VISIBLE_DEVICES": devices}


@contextmanager
def _locked(folder: Path, kind: int = fcntl.LOCK_EX) -> Iterator[int | None]:
    """Take the lock; None where a process of the batch holds it."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    taken: int | None = None
    try:
        with suppress(BlockingIOError):
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
            taken = lock
        yield taken
    finally:
        os.close(lock)


def _lives(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    with _locked(folder, fcntl.LOCK_SH) as lock:  # shared: those who look do not stand in each other's way
        return lock is None


def _status(folder: Path) -> OrderStatus:
    """Results are read last: what has ended by then has written all of its own."""
    if _lives(folder):
        return OrderStatus(OrderState.RUNNING, batch_folder.results(folder))
    if not batch_folder.is_marked(folder, STARTED):
        return OrderStatus(OrderState.UNKNOWN)
    state = OrderState.ENDED if batch_folder.is_marked(folder, ENDED) else OrderState.LOST
    return OrderStatus(state, batch_folder.results(folder), batch_folder.fault(folder))


def _cancel(folder: Path) -> None:
    batch_folder.mark(folder, CANCELLED)
    for sent in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + GRACE_SECONDS
        while _lives(folder):
            with suppress(OSError, ValueError):  # it has just started, or has just ended
                os.killpg(json.loads((folder / "started").read_text())["pid"], sent)
            if time.monotonic() > until:
                break
            time.sleep(0.05)
