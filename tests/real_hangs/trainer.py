"""A job of N ranks that hangs in a given way and then leaves what its runtime knows. Needs torch; nothing of ours.

Run as `python trainer.py OUT KIND RANKS CULPRIT SEED`. KIND: asleep, stopped, ended_early, data_loader, busy_loop,
other_collective, other_size, second_group, missed_barrier (gloo ends some of the last four with an error). When all
ranks stand still each writes `_dump_RANK` (flight recorder) and `stack_RANK.txt` (faulthandler) into OUT. A stopped or
ended rank leaves nothing, as in life.
"""

import datetime
import faulthandler
import multiprocessing
import os
import queue
import random
import signal
import socket
import sys
import threading
import time
from pathlib import Path

os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

STEP_SECONDS = 0.02


def main(out: Path, kind: str, ranks: int, culprit: int, seed: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")
    begun = [context.Value("i", 0) for _ in range(ranks)]
    processes = [
        context.Process(target=train, args=(out, kind, rank, ranks, culprit, seed, port, begun))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    try:
        wait_until_it_stands_still(begun)
        if kind == "stopped":
            time.sleep(0.5)
        (out / "dump").touch()
        expected = [rank for rank in range(ranks) if rank != culprit or kind not in ("stopped", "ended_early")]
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not all((out / f"stack_{rank}.txt").exists() for rank in expected):
            time.sleep(0.1)
    finally:
        for process in processes:
            process.kill()
            process.join()


def wait_until_it_stands_still(begun: list, quiet: float = 3.0, most: float = 120.0) -> None:
    """No rank has begun a step for a while."""
    deadline, seen, since = time.monotonic() + most, None, time.monotonic()
    while time.monotonic() < deadline:
        now = [value.value for value in begun]
        if now != seen:
            seen, since = now, time.monotonic()
        elif max(now) > 0 and time.monotonic() - since > quiet:
            return
        time.sleep(0.1)


def train(out: Path, kind: str, rank: int, ranks: int, culprit: int, seed: int, port: int, begun: list) -> None:
    threading.Thread(target=dump_when_asked, args=(out, rank), daemon=True).start()
    patience = datetime.timedelta(seconds=300)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks, timeout=patience)
    halves = [
        dist.new_group(list(range(ranks // 2)), timeout=patience),
        dist.new_group(list(range(ranks // 2, ranks)), timeout=patience),
    ]
    everyone = dist.new_group(list(range(ranks)), timeout=patience)
    half = halves[rank >= ranks // 2]
    fault_at = random.Random(seed).randint(5, 15)
    weights, gradient = torch.zeros(64), torch.ones(64)
    batches = queue.Queue()
    for step in range(200):
        begun[rank].value = step + 1
        faulty = rank == culprit and step == fault_at
        batches.put(step)
        if faulty:
            hold_up(kind, batches)
        batches.get()
        time.sleep(STEP_SECONDS)
        if kind == "second_group" and faulty:
            dist.all_reduce(weights, group=everyone)
            dist.all_reduce(gradient)
        elif kind == "other_collective" and faulty:
            dist.broadcast(gradient, src=0)
        elif kind == "other_size" and faulty:
            dist.all_reduce(torch.ones(32))
        else:
            dist.all_reduce(gradient)
            dist.all_reduce(weights, group=everyone)
        dist.all_reduce(weights, group=half)
        if step % 5 == 0 and not (kind == "missed_barrier" and rank == culprit and step >= fault_at - 5):
            dist.barrier()


def hold_up(kind: str, batches: queue.Queue) -> None:
    if kind == "asleep":
        time.sleep(600)
    elif kind == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "ended_early":
        os._exit(0)
    elif kind == "data_loader":
        batches.get()
        batches.get()
    elif kind == "busy_loop":
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline:
            time.sleep(0.001)


def dump_when_asked(out: Path, rank: int) -> None:
    while not (out / "dump").exists():
        time.sleep(0.05)
    (out / f"_dump_{rank}").write_bytes(_distributed_c10d._dump_fr_trace())
    with (out / f"stack_{rank}.part").open("w") as stacks:
        faulthandler.dump_traceback(stacks, all_threads=True)
    (out / f"stack_{rank}.part").rename(out / f"stack_{rank}.txt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:6]))
