#!/usr/bin/env python3
"""One all-gather among a few nodes, verified for its data. The node check starts one process for each GPU or node.

NCCL where GPUs are, gloo elsewhere. Every rank sends a pattern that depends on its rank and on the place in the buffer;
every rank compares all that it received with what the others must have sent, and compares a matrix product with one
that is known, so that a device that computes or moves wrong data fails even when the call succeeds.

Rank and size come from torchrun (RANK, WORLD_SIZE, LOCAL_RANK) or from srun (SLURM_PROCID, SLURM_NTASKS,
SLURM_LOCALID); MASTER_ADDR and MASTER_PORT must be set. Rank 0 prints one JSON line.

Exit code: 0 all ranks are sound, 1 wrong data, 2 the group or the all-gather failed or took too long, 3 bad arguments
or no torch.
"""

import argparse
import faulthandler
import json
import os
import socket
import sys
import time
from datetime import timedelta

SOUND, WRONG_DATA, FAILED, UNUSABLE = 0, 1, 2, 3
PRIME = 251
"""Patterns repeat with a prime period, so that a shift by a block or a page is seen."""


def main() -> int:
    args = parse()
    # A native call that hangs cannot be interrupted: leave without it.
    faulthandler.dump_traceback_later(args.timeout + 5, exit=True)
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
        "--corrupt-rank", type=int, default=-1, help="for tests of this program: this rank sends wrong data"
    )
    return parser.parse_args()


def place() -> tuple[int, int, int]:
    """rank, size, local rank. Raises KeyError or ValueError."""
    env = os.environ
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK") if "RANK" in env else ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
    rank, size, local = (int(env[name]) for name in names)
    return rank, size, local


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
