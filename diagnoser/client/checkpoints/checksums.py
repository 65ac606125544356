"""Checksums of files, piece by piece, so that several threads share one large file and damage has a place.

CRC-32 costs a trainer's CPU least of what the standard library has (figures: docs/checkpoints.md). It is there for
damage, not for forgery; a damaged piece passes unseen once in 4 billion.
"""

from __future__ import annotations

import errno
import os
import stat
import zlib
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Mapping

ALGORITHM = "crc32"
PIECE_BYTES = 16 << 20
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class FileSum:
    """name: below the checkpoint's directory. pieces: the CRC-32 of each ``PIECE_BYTES`` as 8 hex digits."""

    name: str
    size: int
    pieces: tuple[str, ...]

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> FileSum:
        return cls(str(body["name"]), int(body["size"]), tuple(map(str, body["pieces"])))


def file_sums(directory: str, names: Iterable[str], threads: int = 1) -> list[FileSum]:
    """Sync the files to the disk, and sum up what they hold now. Raises OSError."""
    chosen = sorted(names)
    sizes = [_synced_size(os.path.join(directory, name)) for name in chosen]
    sums = piece_sums(
        [(os.path.join(directory, name), size) for name, size in zip(chosen, sizes)], threads, lambda _: None
    )
    return [FileSum(name, size, pieces) for name, size, pieces in zip(chosen, sizes, sums)]


def piece_sums(
    files: list[tuple[str, int]], threads: int, advance: Callable[[int], None], *, from_disk: bool = False
) -> list[tuple[str, ...]]:
    """files: path and size; a piece that is cut short has another sum. advance: called with the bytes of each piece.
    from_disk: what the kernel holds in memory of them is dropped first, where it can be. Raises OSError."""

    def one_piece(path: str, first: int, size: int) -> str:
        total = piece_sum(path, first, size, from_disk=from_disk)
        advance(size)
        return total

    with ThreadPoolExecutor(max(1, threads), "checksums") as pool:
        work = [
            [
                pool.submit(one_piece, path, first, min(PIECE_BYTES, size - first))
                for first in range(0, size, PIECE_BYTES)
            ]
            for path, size in files
        ]
        every = [piece for pieces in work for piece in pieces]
        if any(piece.exception() for piece in wait(every, return_when=FIRST_EXCEPTION).done):
            for piece in every:
                piece.cancel()
    return [tuple(piece.result() for piece in pieces) for pieces in work]


def regular(path: str, flags: int) -> int:
    """Open a file as ``open`` does by its opener, but no FIFO, which waits for a writer, and no device. Raises
    OSError."""
    handle = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, "no regular file", path)


def piece_sum(path: str, first: int, size: int, *, from_disk: bool = False) -> str:
    buffer = memoryview(bytearray(min(size, CHUNK_BYTES)))
    total, place, end = 0, first, first + size
    handle = regular(path, os.O_RDONLY)
    try:
        if from_disk and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(handle, first, size, os.POSIX_FADV_DONTNEED)
        while place < end:
            read = os.preadv(handle, [buffer[: end - place]], place)
            if not read:
                break
            total, place = zlib.crc32(buffer[:read], total), place + read
    finally:
        os.close(handle)
    return "{:08x}".format(total)


def _synced_size(path: str) -> int:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        return os.fstat(handle).st_size
    finally:
        os.close(handle)
