"""What manifests cost beside torch's own saver: `python -m tools.bench.checkpoints [MEGABYTES [ROUNDS]]`.

`python -m tools.bench.checkpoints blocking FOLDER...` compares how long a save keeps the loop waiting, by torch's own
`save` and by `async_save`, for 0.5, 2 and 8 GB where there is room, in each folder (on a disk, on a tmpfs).

One process trains and saves with ``torch.distributed.checkpoint.async_save`` (in a thread), plain and below the
``Checkpointer``, in turns. Reported are ratios within one run, by the clock and by the kernel's count of CPU time,
which other programs of a busy machine disturb less. Also the speed of checksums on this machine.
"""

import hashlib
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from diagnoser.client.checkpoints import Checkpointer
from diagnoser.client.checkpoints.checksums import PIECE_BYTES, piece_sum
from tests.environments import TORCH

MEGABYTES, ROUNDS = 384, 9
SIZES, BLOCKING_ROUNDS = (0.5, 2.0, 8.0), 3
"""Gigabytes."""
STEPS, WIDTH = 20, 1024
CALLS = 100
READ_MEGABYTES = 128
CHECKSUMS: dict[str, Callable[[bytes], object]] = {
    "crc32": zlib.crc32,
    "sha256": lambda data: hashlib.sha256(data).digest(),
    "blake2b": lambda data: hashlib.blake2b(data).digest(),
}


def main() -> None:
    if importlib.util.find_spec("torch") is None:
        if TORCH.missing:
            sys.exit(TORCH.missing)
        root = Path(__file__).resolve().parents[2]
        command = [str(TORCH.python), "-m", "tools.bench.checkpoints", *sys.argv[1:]]
        sys.exit(subprocess.run(command, check=False, env={**os.environ, "PYTHONPATH": str(root)}).returncode)
    if sys.argv[1:2] == ["blocking"]:
        warnings.simplefilter("ignore")
        for size, name in product(SIZES, sys.argv[2:]):
            say({"folder": name, **blocking(name, size)})
        return
    megabytes, rounds = [*map(int, sys.argv[1:]), *(MEGABYTES, ROUNDS)[len(sys.argv) - 1 :]]
    warnings.simplefilter("ignore")
    say(checksums())
    with tempfile.TemporaryDirectory(prefix="diagnoser-bench-", dir=os.environ.get("BENCH_FOLDER")) as folder:
        say(reading(Path(folder) / "read"))
        say(own(Path(folder) / "own"))
        say(savers(Path(folder), megabytes, rounds))


@dataclass(frozen=True)
class Cost:
    """blocked_s: that a save keeps the loop waiting. blocked_cpu_s: of the loop's own thread. steps_s: of a fixed
    number of steps from there. done_s: until the files are written; for ours until they are complete, or verify.
    cpu_s: of the process, all that time."""

    blocked_s: float
    blocked_cpu_s: float
    steps_s: float
    done_s: float
    cpu_s: float


def savers(folder: Path, megabytes: int, rounds: int) -> dict[str, object]:
    """Medians. added: the median of the ratios within a round, less 1; added_least: by the least of each, which a busy
    machine disturbs least."""
    import torch

    state = {"model": {f"w{number}": torch.randn(256, 1024) for number in range(megabytes)}}
    work = torch.randn(WIDTH, WIDTH)
    costs: dict[str, list[Cost]] = {"plain": [], "complete": [], "verified": []}
    for number in range(rounds + 1):
        names = list(costs)
        for name in (*names[number % 3 :], *names[: number % 3]):
            place = folder / f"{name}-{number}"
            cost = _cost(place, name, state, work)
            shutil.rmtree(place)
            if number:  # the first warms up
                costs[name].append(cost)
    columns = [field.name for field in fields(Cost)]
    report: dict[str, object] = {"megabytes": megabytes, "rounds": rounds}
    for name, rows in costs.items():
        medians = map(statistics.median, zip(*map(astuple, rows), strict=True))
        report[name] = {column: round(median, 4) for column, median in zip(columns, medians, strict=True)}
    for name in ("complete", "verified"):
        ours, plain = (list(map(astuple, costs[each])) for each in (name, "plain"))
        added = [
            [mine[each] / its[each] for mine, its in zip(ours, plain, strict=True)] for each in range(len(columns))
        ]
        least = [min(row[each] for row in ours) / min(row[each] for row in plain) for each in range(len(columns))]
        medians = map(statistics.median, added)
        report[f"{name}: added"] = {column: round(share - 1, 4) for column, share in zip(columns, medians, strict=True)}
        report[f"{name}: added_least"] = {
            column: round(share - 1, 4) for column, share in zip(columns, least, strict=True)
        }
    return report


def blocking(name: str, gigabytes: float) -> dict[str, object]:
    """Medians of a save's blocking time. name: of a folder."""
    import torch
    from torch.distributed import checkpoint as dcp

    copies = 2.2  # the state and its copy
    if os.major(Path(name).stat().st_dev) == 0:
        copies += 1.1  # a tmpfs has the checkpoint in memory, too
    if copies * gigabytes * 1e9 > _available_memory() or 1.1 * gigabytes * 1e9 > shutil.disk_usage(name).free:
        return {"gigabytes": gigabytes, "left out": "no room"}
    state = {"model": {f"w{number}": torch.randn(1024, 1024) for number in range(int(gigabytes * 238))}}
    sync, background = list[float](), list[float]()
    with tempfile.TemporaryDirectory(dir=name) as folder:
        for number in range(BLOCKING_ROUNDS + 1):
            place = Path(folder) / str(number)
            seconds = _seconds(partial(dcp.save, dict(state), checkpoint_id=place / "sync"))
            shutil.rmtree(place)
            with Checkpointer(place) as checkpointer:
                first = checkpointer.async_save(1, state, loss=1.0)  # its buffers are there from now on
                shutil.rmtree(first.result().path)
                pending = checkpointer.async_save(2, state, loss=1.0)
                pending.result()
            shutil.rmtree(place)
            if number:  # the first warms up
                sync.append(seconds)
                background.append(pending.blocked_ms / 1000)
    ratios = [one / other for one, other in zip(sync, background, strict=True)]
    medians = {"sync_s": sync, "async_s": background, "ratio": ratios}
    return {"gigabytes": gigabytes, **{key: round(statistics.median(row), 3) for key, row in medians.items()}}


def _available_memory() -> float:
    """Bytes that a process can have, without swapping."""
    rows = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return 1024.0 * int(rows["MemAvailable"].split()[0])


def own(folder: Path) -> dict[str, object]:
    """What a save blocks of itself: the saver writes nothing."""
    with Checkpointer(folder, verify=False) as checkpointer:
        blocked = []
        for step in range(CALLS):
            pending = checkpointer.save(step, lambda path: None)
            blocked.append(pending.blocked_ms)
            pending.result()
    return {"own_blocked_ms": {"median": round(statistics.median(blocked), 3), "least": round(min(blocked), 3)}}


def reading(file: Path) -> dict[str, object]:
    """CPU seconds a gigabyte of reading a file that the kernel holds in memory, and of the checksum alone; the least of
    seven."""
    data = os.urandom(1 << 20)
    file.write_bytes(data * READ_MEGABYTES)
    size = file.stat().st_size
    acts: dict[str, Callable[[], object]] = {
        "read_and_crc32": lambda: [piece_sum(str(file), first, PIECE_BYTES) for first in range(0, size, PIECE_BYTES)],
        "crc32": lambda: [zlib.crc32(data) for _ in range(READ_MEGABYTES)],
    }
    least = {name: min(_cpu_seconds(act) for _ in range(7)) for name, act in acts.items()}
    file.unlink()
    return {"cpu_seconds_a_gigabyte": {name: round(seconds / size * 1e9, 2) for name, seconds in least.items()}}


def checksums() -> dict[str, object]:
    """Megabytes a second of one thread, the best of five."""
    data = os.urandom(64 << 20)
    speeds = {}
    for name, checksum in CHECKSUMS.items():
        seconds = min(_seconds(partial(checksum, data)) for _ in range(5))
        speeds[name] = round(len(data) / seconds / 1e6)
    return {"megabytes_a_second": speeds}


def _cost(place: Path, name: str, state: dict[str, Any], work: Any) -> Cost:
    from torch.distributed import checkpoint as dcp

    checkpointer = None if name == "plain" else Checkpointer(place, verify=name == "verified")
    started, thread, process = time.perf_counter(), time.thread_time(), time.process_time()
    pending: Any = (
        checkpointer.async_save(1, state, loss=1.0)
        if checkpointer
        else dcp.async_save(dict(state), checkpoint_id=place / "1")
    )
    blocked, blocked_cpu = time.perf_counter() - started, time.thread_time() - thread
    stepped = _seconds(partial(_steps, work))
    pending.result()
    done, used = time.perf_counter() - started, time.process_time() - process
    if checkpointer:
        checkpointer.close()
    return Cost(blocked, blocked_cpu, stepped, done, used)


def _steps(work: Any) -> None:
    for _ in range(STEPS):
        work @ work


def _cpu_seconds(act: Callable[[], object]) -> float:
    started = time.thread_time()
    act()
    return time.thread_time() - started


def _seconds(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def say(figures: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
