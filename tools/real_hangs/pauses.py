"""What one rank does alone for a while, as trainings do: the others wait for it, and it comes back."""

import gc
import gzip
import hashlib
import io
import mmap
import multiprocessing
import os
import random
import subprocess
import tarfile
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import torch

_SOURCE = "#include <map>\n#include <regex>\n#include <string>\n" + "\n".join(
    f"std::map<int, std::string> f{number}() {{ return {{{{{number}, std::to_string({number})}}}}; }}"
    for number in range(400)
)
_MEGABYTE = 1 << 20
SERVER = "SLOW_SERVER"
"""Variable with the address of a server that sends for as long as somebody reads."""


def compiles(end: float) -> None:
    """By a program below it, as compilers of kernels are."""
    while time.monotonic() < end:
        subprocess.run(["g++", "-O2", "-x", "c++", "-c", "-o", os.devnull, "-"], input=_SOURCE.encode(), check=True)


def evaluates(end: float) -> None:
    model, batch = torch.nn.Linear(256, 256), torch.rand(64, 256)
    with torch.no_grad():
        while time.monotonic() < end:
            model(batch)


def saves(end: float) -> None:
    """To a disk that takes 4 MB/s."""
    state = {"weights": torch.rand(_MEGABYTE)}
    while time.monotonic() < end:
        torch.save(state, "checkpoint.pt")
        time.sleep(1.0)


def loads(end: float) -> None:
    """Shards from a disk that gives 4 MB/s."""
    numpy.save("shard.npy", numpy.random.rand(_MEGABYTE // 2))
    while time.monotonic() < end:
        numpy.load("shard.npy")
        time.sleep(1.0)


def downloads(end: float) -> None:
    """Into memory, from a server without TLS that sends 300 kB/s."""
    with urllib.request.urlopen(os.environ[SERVER]) as answer:
        while time.monotonic() < end:
            answer.read(64 << 10)


def downloads_in_threads(end: float) -> None:
    """As a hub's client: the main thread waits for threads that write files."""

    def fetch(number: int) -> None:
        with urllib.request.urlopen(os.environ[SERVER]) as answer, Path(f"part_{number}").open("wb") as file:
            while time.monotonic() < end:
                file.write(answer.read(64 << 10))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(fetch, range(2)))


def collects_garbage(end: float) -> None:
    objects = [[number] for number in range(300_000)]
    while time.monotonic() < end:
        gc.collect()
    del objects


def pages_in(end: float) -> None:
    """What was swapped out, from a slow disk: pages of a file that are not in memory."""
    path = Path("swap")
    path.write_bytes(os.urandom(64 * _MEGABYTE))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory.madvise(mmap.MADV_RANDOM)
        os.fsync(file.fileno())
        while time.monotonic() < end:
            memory.madvise(mmap.MADV_DONTNEED)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            for page in random.sample(range(len(memory) // mmap.PAGESIZE), 200):
                memory[page * mmap.PAGESIZE]
                time.sleep(0.005)


def indexes_in_processes(end: float) -> None:
    """The main thread waits for children that compute."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(_hash_until, [end] * 2)


def tokenizes_in_threads(end: float) -> None:
    """The main thread waits for threads of a library in another language, which compute."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(_hash_until, [end] * 2))


def shuffles(end: float) -> None:
    order = numpy.arange(_MEGABYTE)
    while time.monotonic() < end:
        numpy.random.shuffle(order)


def unpacks(end: float) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo("shard")
        entry.size = 8 * _MEGABYTE
        archive.addfile(entry, io.BytesIO(os.urandom(entry.size)))
    while time.monotonic() < end:
        gzip.decompress(packed.getvalue())


PAUSES: dict[str, Callable[[float], None]] = {
    pause.__name__: pause
    for pause in (
        compiles,
        evaluates,
        saves,
        loads,
        downloads,
        downloads_in_threads,
        collects_garbage,
        pages_in,
        indexes_in_processes,
        tokenizes_in_threads,
        shuffles,
        unpacks,
    )
}


def pause(kind: str, seconds: float) -> None:
    PAUSES[kind](time.monotonic() + seconds)


def _hash_until(end: float) -> None:
    """Releases the interpreter's lock."""
    block = bytes(4 * _MEGABYTE)
    while time.monotonic() < end:
        hashlib.sha256(block).digest()
