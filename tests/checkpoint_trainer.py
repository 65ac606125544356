"""A rank that saves checkpoints and kills itself with SIGKILL at a chosen operation on a file. Nothing but Python.

python -m tests.checkpoint_trainer FOLDER RUN RANK RANKS FIRST_STEP KILL_AT
"""

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

from diagnoser.client.checkpoints import Checkpointer, SaveFailed

STEPS = 2
PART_BYTES, PARTS = 40_000, 3
RANKS_SECONDS = 0.4


def names_of(rank: int) -> list[str]:
    return [f"__{rank}_0.distcp", *([".metadata", "extra/config.json"] if rank == 0 else [])]


def content(run: str, step: int, name: str) -> bytes:
    return random.Random(f"{run} {step} {name}").randbytes(PART_BYTES * PARTS)


class KillSwitch:
    """Counts what is done to files below a folder, and kills this process before operation ``kill_at``, from 1."""

    def __init__(self, folder: str, kill_at: int) -> None:
        self._folder, self._kill_at = folder, kill_at
        self.count = 0
        self._fsync = os.fsync
        setattr(os, "fsync", self._counted_fsync)  # noqa: B010 - mypy knows its type too well
        sys.addaudithook(self._audit)

    def operation(self, name: str) -> None:
        self.count += 1
        if self.count == self._kill_at:
            os.write(1, name.encode() + b"\n")
            os.kill(os.getpid(), signal.SIGKILL)

    def _counted_fsync(self, handle: int) -> None:
        self.operation("sync " + Path(f"/proc/self/fd/{handle}").readlink().name)
        self._fsync(handle)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event not in ("open", "os.rename", "os.mkdir") or not str(args[0]).startswith(self._folder + "/"):
            return
        name = Path(str(args[0])).name
        is_read = event == "open" and not int(args[2]) & (os.O_WRONLY | os.O_RDWR)
        if is_read and name.endswith(".json"):
            return  # rank 0 looks for manifests as often as it takes
        self.operation(f"{'read' if is_read else event.rpartition('.')[2]} {name}")


def main() -> None:
    folder, run, rank, ranks, first, kill_at = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:7])
    switch = KillSwitch(folder, kill_at)

    def save(path: str) -> None:
        for name in names_of(rank):
            place = Path(path) / name
            place.parent.mkdir(exist_ok=True)
            with place.open("wb", buffering=0) as file:
                for part in range(PARTS):
                    switch.operation(f"write {name}")
                    data = content(run, step, name)
                    file.write(data[part * PART_BYTES : (part + 1) * PART_BYTES])

    with Checkpointer(folder, rank=rank, ranks=ranks, run=run, ranks_seconds=RANKS_SECONDS) as checkpointer:
        for step in range(first, first + STEPS):
            try:
                checkpointer.save(step, save, loss=1 / step, background=step % 2 == 0).result()
            except SaveFailed:
                break  # the other rank is gone
    os.write(1, f"operations {switch.count}\n".encode())


if __name__ == "__main__":
    main()
