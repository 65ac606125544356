"""A job of gloo ranks, of which one holds up the others; each leaves what its runtime knows. Needs only torch
and what comes with it.

``python trainer.py FOLDER KIND RANKS CULPRIT SEED STEP_SECONDS`` forks all ranks; under ``srun`` it is one of them.
KIND: see ``tools.real_hangs.runs``, and ``pauses``. What passes between a rank and who runs it lies in FOLDER:

- ``pid_RANK``: it has joined the job.
- ``held``: the culprit is about to do what holds up the others.
- ``back``: it has paused, and goes on.
- ``ask_RANK``, a pipe: once somebody opens it, the rank writes ``_dump_RANK`` (flight recorder) and ``stack_RANK.txt``
  (faulthandler). One that fails writes them by itself. One that is stopped, gone or out of the network leaves nothing.
- ``interface``: that of the cable to a culprit which has a network of its own.
"""

import ctypes
import datetime
import faulthandler
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist
from pauses import PAUSES, pause
from torch._C import _distributed_c10d
from torch.utils.data import DataLoader, IterableDataset

torch._inductor = object()  # a dump asks it for frames of compiled code, and its import takes seconds of each rank

NEW_NETWORK = 0x40000000
PATIENCE = datetime.timedelta(seconds=600)
STEPS_BEFORE = 10, 20
"""Fewest and most steps that are made before the culprit holds up the others."""
PAUSE_SECONDS = 50.0
"""Of one that comes back."""


def main(folder: Path, kind: str, ranks: int, culprit: int, seed: int, step_seconds: float) -> None:
    if "SLURM_PROCID" in os.environ:
        return train(folder, kind, int(os.environ["SLURM_PROCID"]), ranks, culprit, seed, step_seconds)
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=train, args=(folder, kind, rank, ranks, culprit, seed, step_seconds))
        for rank in range(ranks)
    ]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    finally:
        for process in processes:
            if process.pid:
                process.kill()


def join_other_network(folder: Path) -> str:
    """Into a network of its own, with a cable to the one where this process began; it is gone when the process ends."""
    own = os.getpid()
    host, guest, net = f"dgh{own}", f"dgg{own}", f"10.213.{own % 250}"
    ip("link", "add", host, "type", "veth", "peer", "name", guest)
    ip("addr", "add", f"{net}.1/24", "dev", host)
    ip("link", "set", host, "up")
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "unshare")
    outside = ["nsenter", f"--net=/proc/{os.getppid()}/ns/net"]
    subprocess.run([*outside, "ip", "link", "set", guest, "netns", str(own)], check=True)
    ip("addr", "add", f"{net}.2/24", "dev", guest)
    ip("link", "set", guest, "up")
    (folder / "interface.part").write_text(host)
    (folder / "interface.part").rename(folder / "interface")
    return guest


def interface_to_other_network(folder: Path) -> str:
    while not (folder / "interface").exists():
        time.sleep(0.05)
    return (folder / "interface").read_text()


def ip(*command: str) -> None:
    subprocess.run(["ip", *command], check=True)


def train(folder: Path, kind: str, rank: int, ranks: int, culprit: int, seed: int, step_seconds: float) -> None:
    torch.set_num_threads(1)
    is_cut_off = kind == "network_cut" and rank == culprit
    if kind == "network_cut":
        joins = join_other_network if is_cut_off else interface_to_other_network
        os.environ["GLOO_SOCKET_IFNAME"] = joins(folder)
    if not is_cut_off:
        threading.Thread(target=dump_when_asked, args=(folder, rank), daemon=True).start()
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks, timeout=PATIENCE)
    (folder / f"pid_{rank}").write_text(str(os.getpid()))
    try:
        steps(folder, kind, rank, ranks, culprit, random.Random(seed).randint(*STEPS_BEFORE), step_seconds)
    except Exception:
        if not is_cut_off:
            leave_evidence(folder, rank)
        raise


def steps(folder: Path, kind: str, rank: int, ranks: int, culprit: int, fault_at: int, step_seconds: float) -> None:
    half_of = [list(range(ranks // 2)), list(range(ranks // 2, ranks))]
    halves = [dist.new_group(members, timeout=PATIENCE) for members in half_of]
    everyone = dist.new_group(list(range(ranks)), timeout=PATIENCE)
    half = halves[rank >= ranks // 2]
    weights, gradient = torch.zeros(64), torch.ones(64)
    stuck_at = fault_at if kind == "data_loader" and rank == culprit else -1
    loader = DataLoader(Batches(folder, stuck_at), num_workers=1 if kind == "data_loader" else 0, batch_size=None)
    for step, _ in enumerate(loader):
        if kind in SLOW and rank == culprit and step >= fault_at:
            (folder / "held").touch()
            SLOW[kind](TIMES * step_seconds)
        faulty = rank == culprit and step == fault_at
        if faulty:
            (folder / "held").touch()
            hold_up(folder, kind)
        time.sleep(step_seconds)
        if faulty and kind == "other_order":
            dist.all_reduce(weights, group=everyone)
            dist.all_reduce(gradient)
        elif faulty and kind == "other_collective":
            dist.broadcast(gradient, src=rank)
        elif faulty and kind == "other_size":
            dist.all_reduce(torch.ones(32))
        else:
            dist.all_reduce(gradient)
            dist.all_reduce(weights, group=everyone)
        dist.all_reduce(weights, group=half)
        if not (faulty and kind == "missed_barrier") and (step % 5 == 0 or step == fault_at):
            dist.barrier()
        if rank == 0:
            print(f"step {step + 1}/10000 | loss {3 - step / 1000:.4f}", flush=True)


class Batches(IterableDataset):
    """One of them is read from a file system that does not answer: a pipe into which nobody writes."""

    def __init__(self, folder: Path, stuck_at: int) -> None:
        self.folder, self.stuck_at = folder, stuck_at

    def __iter__(self) -> object:
        for number in range(10_000):
            if number == self.stuck_at:
                (self.folder / "held").touch()
                os.mkfifo(self.folder / "shard")
                (self.folder / "shard").open().read()
            yield number


def hold_up(folder: Path, kind: str) -> None:
    if kind == "asleep":
        time.sleep(3600)
    elif kind == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "ended_early":
        os._exit(0)
    elif kind == "slow":
        compute(PATIENCE.seconds)
    elif kind == "network_cut":
        ip("link", "set", f"dgg{os.getpid()}", "down")
    elif kind in PAUSES:
        pause(kind, PAUSE_SECONDS)
        (folder / "back").touch()


def compute(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        torch.ones(200, 200).mm(torch.ones(200, 200))


def read(seconds: float) -> None:
    """As from a disk that is slow."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        Path(torch.__file__).parent.joinpath("lib/libtorch_cpu.so").open("rb").read(1 << 20)
        time.sleep(0.02)


SLOW = {"computes_slowly": compute, "reads_slowly": read, "waits_slowly": time.sleep}
"""Kinds of stragglers: in each of its steps one rank does this as well."""
TIMES = 8.0
"""How many times as long as a usual step it does so."""


def dump_when_asked(folder: Path, rank: int) -> None:
    (folder / f"ask_{rank}").open().close()
    leave_evidence(folder, rank)


def leave_evidence(folder: Path, rank: int) -> None:
    (folder / f"_dump_{rank}").write_bytes(_distributed_c10d._dump_fr_trace())
    with (folder / f"stack_{rank}.part").open("w") as stacks:
        faulthandler.dump_traceback(stacks, all_threads=True)
    (folder / f"stack_{rank}.part").rename(folder / f"stack_{rank}.txt")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2], *map(int, sys.argv[3:6]), float(sys.argv[6]))
