"""An ordinary small training job of gloo ranks, of which one falls asleep. Needs only torch.

TORCH_FR_BUFFER_SIZE=2000 python hang_job.py FOLDER RANKS SLEEPER

Rank 0 prints its steps. A rank whose step takes too long writes its flight recorder and its stacks into FOLDER, as the
watchdog of NCCL does on a timeout. Ends when it is told to.
"""

import datetime
import faulthandler
import multiprocessing
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

STEP_SECONDS, STEPS, ASLEEP_FROM = 0.5, 400, 12
TOO_LONG = 4.0
"""Seconds of a step after which a rank writes what it knows."""


def main(folder: Path, ranks: int, sleeper: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=train, args=(folder, rank, ranks, sleeper, port)) for rank in range(ranks)]
    for process in processes:
        process.start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        for process in processes:
            process.join()
    finally:
        for process in processes:
            process.kill()


def train(folder: Path, rank: int, ranks: int, sleeper: int, port: int) -> None:
    watchdog = Watchdog(folder, rank)
    patience = datetime.timedelta(seconds=3600)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks, timeout=patience)
    if rank == 0:
        print(f"{now()} initialized process group: backend=gloo world_size={ranks}", flush=True)
    weights = torch.ones(64)
    for step in range(1, STEPS):
        watchdog.begin()
        time.sleep(STEP_SECONDS)
        if rank == sleeper and step == ASLEEP_FROM:
            load_batch()
        dist.all_reduce(weights)
        weights /= ranks
        if rank == 0:
            seconds = f"time per iteration (ms): {1000 * STEP_SECONDS:.1f}"
            print(f"{now()} iteration {step}/{STEPS} | {seconds} | lm loss: {9 - step / 100:.4f} |", flush=True)


def load_batch() -> None:
    """A file system that does not answer."""
    time.sleep(3600)


def now() -> str:
    return f"[{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M:%S.%f}]"


class Watchdog:
    """Writes once for each step that takes too long, from a thread of its own."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank, self._begun = folder, rank, 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def begin(self) -> None:
        self._begun = time.monotonic()

    def _watch(self) -> None:
        written = 0.0
        while True:
            time.sleep(0.1)
            if self._begun != written and time.monotonic() - self._begun > TOO_LONG:
                written = self._begun
                self._write()

    def _write(self) -> None:
        stacks = self._folder / f"part_{self._rank}"
        with stacks.open("w") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        stacks.rename(self._folder / f"stack_{self._rank}.txt")
        recorder = self._folder / f"fr_part_{self._rank}"
        recorder.write_bytes(_distributed_c10d._dump_fr_trace())
        recorder.rename(self._folder / f"_dump_{self._rank}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
