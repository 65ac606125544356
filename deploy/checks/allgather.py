#!/usr/bin/env python3
"""One all-gather among a few nodes, verified for its data. The node check starts one process for each GPU or node.

NCCL where GPUs are, gloo elsewhere. Every rank sends a pattern that depends on its rank and on the place in the buffer;
every rank compares all that it received with what the others must have sent, and compares a matrix product with one
that is known, so that a device that computes or moves wrong data fails even when the call succeeds.

Rank and size come from torchrun (RANK, WORLD_SIZE, LOCAL_RANK) or from srun (SLURM_PROCID, SLURM_NTASKS,
SLURM_LOCALID); MASTER_ADDR and MASTER_PORT must be set. Rank 0 prints one JSON line.

Where nccl-tests is installed (all_gather_perf, built with MPI=1) and a GPU is there, it is used instead: it checks the
data as well. Start it with srun --mpi=pmix, or whatever its MPI wants. When its processes do not find each other, or
it is not there, torch does the check.

Exit code: 0 all ranks are sound, 1 wrong data, 2 the group or the all-gather failed or took too long, 3 bad arguments
or no torch.
"""

import argparse
import faulthandler
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

SOUND, WRONG_DATA, FAILED, UNUSABLE = 0, 1, 2, 3
PRIME = 251
"""Patterns repeat with a prime period, so that a shift by a block or a page is seen."""


@dataclass(frozen=True)
class Found:
    code: int
    detail: str
    rank: int
    seconds: float


def main() -> int:
    args = parse()
    # A native call that hangs cannot be interrupted: leave without it.
    faulthandler.dump_traceback_later(args.timeout + 5, exit=True)
    found = by_nccl_tests(args)
    if found is not None:
        return tell(found.code, found.rank, found.detail, found.seconds)
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        return tell(UNUSABLE, 0, f"torch cannot be imported: {error}", 0.0)
    try:
        rank, size, local = place()
    except (KeyError, ValueError) as error:
        return tell(UNUSABLE, 0, f"rank and size are not known: {error}", 0.0)
    started = time.perf_counter()
    try:
        device = join(torch, dist, rank, size, local, args)
        code, detail = verify(torch, dist, rank, size, device, args)
    except Exception as error:  # whatever the backend raises: this group is not sound
        return tell(
            FAILED,
            rank,
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            time.perf_counter() - started,
        )
    return tell(code, rank, detail, time.perf_counter() - started)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Verified all-gather of a few nodes.")
    parser.add_argument("--mebibytes", type=float, default=16.0, help="data that each rank sends, a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for the whole check")
    parser.add_argument("--backend", choices=("nccl", "gloo"), help="default: nccl where a GPU is, else gloo")
    parser.add_argument(
        "--nccl-tests", default="auto", help="auto: when all_gather_perf is in PATH; never; or the program's path"
    )
    parser.add_argument(
        "--corrupt-rank", type=int, default=-1, help="for tests of this program: this rank sends wrong data"
    )
    return parser.parse_args()


def place() -> tuple[int, int, int]:
    """rank, size, local rank. Raises KeyError or ValueError."""
    env = os.environ
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK") if "RANK" in env else ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
    rank, size, local = (int(env[name]) for name in names)
    return rank, size, local


def by_nccl_tests(args: argparse.Namespace) -> Found | None:
    """What nccl-tests finds; None when torch has to do it. Only its first process prints."""
    program = nccl_tests(args)
    if program is None:
        return None
    size = f"{max(1, int(args.mebibytes * (1 << 20)))}"
    command = [program, "-b", size, "-e", size, "-g", "1", "-c", "1", "-w", "1", "-n", str(args.rounds)]
    started = time.perf_counter()
    try:
        rank, ranks, _ = place()
        done = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout, check=False)
    except (KeyError, ValueError):
        return None
    except OSError as error:
        return Found(UNUSABLE, f"{program} cannot be started: {error.strerror}", rank, 0.0)
    except subprocess.TimeoutExpired:
        return Found(FAILED, f"nccl-tests took longer than {args.timeout:g} s", rank, time.perf_counter() - started)
    seconds = time.perf_counter() - started
    met = len(re.findall(r"^#\s+Rank\s+\d+ ", done.stdout, re.MULTILINE))
    if met not in (0, ranks):
        return None  # each process is a group of its own: its MPI was not started
    return Found(*judged(done, ranks, args), rank=rank, seconds=seconds)


def nccl_tests(args: argparse.Namespace) -> str | None:
    """The program, if it can be used. A build without MPI would test each GPU alone."""
    if args.nccl_tests not in ("auto", "never"):
        return str(args.nccl_tests)
    program = shutil.which("all_gather_perf")
    if args.nccl_tests == "never" or args.backend == "gloo" or not program or not Path("/dev/nvidia0").exists():
        return None
    ldd = shutil.which("ldd")
    if ldd is None:
        return None
    linked = subprocess.run([ldd, program], capture_output=True, text=True, check=False)
    return program if "libmpi" in linked.stdout else None


def judged(done: "subprocess.CompletedProcess[str]", ranks: int, args: argparse.Namespace) -> tuple[int, str]:
    """(exit code, detail) by its own words and its exit code."""
    wrong = re.search(r"Out of bounds values\s*:\s*(\d+)", done.stdout)
    if wrong and int(wrong[1]):
        return WRONG_DATA, f"nccl-tests: {wrong[1]} values out of bounds"
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        return FAILED, f"nccl-tests: exit code {done.returncode}: {''.join(last)[:500]}"
    return SOUND, f"{ranks} ranks, {args.rounds} rounds of {args.mebibytes:g} MiB each, by nccl-tests"


def join(torch, dist, rank, size, local, args):  # type: ignore[no-untyped-def]
    backend = args.backend or ("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", local % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group(backend, rank=rank, world_size=size, timeout=timedelta(seconds=args.timeout))
    return device


def pattern(torch, rank, count, round_, device):  # type: ignore[no-untyped-def]
    """What a rank sends: float32 whole numbers, which every backend moves without rounding."""
    return ((torch.arange(count, device=device) * 7 + rank * 31 + round_ * 17) % PRIME).to(torch.float32)


def verify(torch, dist, rank, size, device, args):  # type: ignore[no-untyped-def]
    """(exit code, detail), the same on every rank."""
    wrong = [] if computes(torch, device) else [f"rank {rank} on {socket.gethostname()} computes wrong results"]
    count = max(PRIME, int(args.mebibytes * (1 << 20) / 4))
    for round_ in range(args.rounds):
        mine = pattern(torch, rank, count, round_, device)
        if rank == args.corrupt_rank:
            mine[count // 2] += 1.0
        got = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(got, mine)
        wrong += [
            f"rank {rank} got wrong data from rank {other} in round {round_}"
            for other, data in enumerate(got)
            if not torch.equal(data, pattern(torch, other, count, round_, device))
        ]
    bad = torch.tensor([float(bool(wrong))], device=device)
    dist.all_reduce(bad)
    dist.destroy_process_group()
    if not bad.item():
        return SOUND, f"{size} ranks, {args.rounds} rounds of {args.mebibytes:g} MiB each"
    return WRONG_DATA, "; ".join(wrong[:4]) or f"{bad.item():.0f} ranks saw wrong data"


def computes(torch, device):  # type: ignore[no-untyped-def]
    """A product whose result is known exactly: whole numbers below 2**24 in float32."""
    left = (torch.arange(256 * 256, device=device).reshape(256, 256) % 13).to(torch.float32)
    right = (torch.arange(256 * 256, device=device).reshape(256, 256) % 7).to(torch.float32)
    exact = left.cpu().to(torch.int64) @ right.cpu().to(torch.int64)
    return bool(torch.equal((left @ right).cpu().to(torch.int64), exact))


def tell(code: int, rank: int, detail: str, seconds: float) -> int:
    """One JSON line: rank 0 always, another rank when it is not sound."""
    if rank == 0 or code != SOUND:
        told = {
            "ok": code == SOUND,
            "rank": rank,
            "host": socket.gethostname(),
            "seconds": round(seconds, 3),
            "detail": detail,
        }
        print(json.dumps(told), flush=True)
    return code


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads of a broken backend must not keep the process
