"""Reads what a log file has gained since last time: whole lines, bounded chunks, and nothing lost to its rotation."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, Iterator, TypeVar
from zlib import crc32

CHUNK_BYTES = 1 << 20
SEAM_BYTES = 256
ANYBODY = -1
"""In place of a user id: the file may be anybody's."""


@dataclass(frozen=True)
class FileOffset:
    """How far a log has been sent. lines: number sent.

    inode: which file it was (0: none yet). position: in bytes. seam: checksum of the bytes just before it; a file that
    was cut and has grown past it since differs there. first: none of the present launch were read yet, so that they
    count from one when the file begins anew.
    """

    lines: int = 0
    inode: int = 0
    position: int = 0
    seam: int = 0
    first: bool = True


Offset = TypeVar("Offset", bound=FileOffset)


@dataclass(frozen=True)
class LogChunk(Generic[Offset]):
    """body: whole lines. first: number of lines before it. offset: where the next chunk begins. anew: the file was
    truncated or replaced, so it is read from its beginning."""

    body: bytes
    first: int
    offset: Offset
    anew: bool = False


def read_chunk(
    path: str, offset: Offset, uid: int = ANYBODY, *, rest: bool = False, limit: int = CHUNK_BYTES
) -> LogChunk[Offset] | None:
    """The next whole lines, None when there are none. rest: also take a last line without a line break.

    uid: who must own the file, where a job may name any path as its output and this runs as root. Raises OSError when
    it cannot be read, is not the owner's or is not a plain file.
    """
    with _opened(path, uid) as handle:
        inode = os.fstat(handle).st_ino
        position, lines, anew = offset.position, offset.lines, False
        if offset.inode:
            anew = not _continues(handle, offset)
        if anew:
            position = _first_data(handle)
            if offset.first:
                lines = 0
        body = _whole(os.pread(handle, limit, position), rest, limit)
        end = position + len(body)
        seam = _seam(handle, end)
    body = body.lstrip(b"\0") or body
    if not body:
        return None
    count = body.count(b"\n") + (not body.endswith(b"\n"))
    after = replace(offset, inode=inode, position=end, lines=lines + count, seam=seam, first=False)
    return LogChunk(body, lines, after, anew)


def read_rotated(path: str, offset: Offset) -> LogChunk[Offset] | None:
    """Read what a rotation took away: the next lines of the file that was at ``path`` before, None when there are
    none, or ``path`` is still that file.

    Rotation by rename leaves the old file beside the new one under a longer name; rotation by copy and truncation
    leaves a copy there. Either is known by the bytes just before the offset.
    """
    if not offset.inode:
        return None
    if _is_same(path, offset):
        return None
    for sibling in sorted(Path(path).parent.glob(Path(path).name + "?*"), key=_age):
        try:
            with _opened(str(sibling), ANYBODY) as handle:
                if not _holds(handle, offset):
                    continue
                inode = os.fstat(handle).st_ino
            chunk = read_chunk(str(sibling), replace(offset, inode=inode), rest=True)
        except OSError:
            continue
        if chunk and not chunk.anew:
            return chunk
    return None


def end_of(path: str, offset: Offset, uid: int = ANYBODY) -> Offset:
    """The offset behind everything that is there now; as when ``read_chunk`` it raises."""
    while True:
        chunk = read_chunk(path, offset, uid, rest=True)
        if chunk is None:
            return offset
        offset = chunk.offset


def near_end(path: str, offset: Offset, most: int, uid: int = ANYBODY) -> Offset:
    """Pass over what is left of a log but for its last ``most`` bytes, which tell most about its end; raises as
    ``read_chunk``. Lines passed over are not counted: a file with a hole may claim to have exabytes."""
    with _opened(path, uid) as handle:
        status = os.fstat(handle)
        position = status.st_size - most
        if offset.inode and not _continues(handle, offset):
            return offset
        if position <= offset.position:
            return offset
        return replace(offset, inode=status.st_ino, position=position, seam=_seam(handle, position))


@contextmanager
def _opened(path: str, uid: int) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe of that name does not block
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a plain file", path)
        if uid not in (ANYBODY, status.st_uid):
            raise PermissionError(errno.EPERM, "not a file of the job's user", path)
        yield handle
    finally:
        os.close(handle)


def _is_same(path: str, offset: FileOffset) -> bool:
    try:
        with _opened(path, ANYBODY) as handle:
            return _continues(handle, offset)
    except OSError:
        return False


def _continues(handle: int, offset: FileOffset) -> bool:
    if os.fstat(handle).st_ino != offset.inode:
        return False
    return _seam(handle, offset.position) == offset.seam


def _holds(handle: int, offset: FileOffset) -> bool:
    if not os.fstat(handle).st_size >= offset.position > 0:
        return False
    return _seam(handle, offset.position) == offset.seam


def _first_data(handle: int) -> int:
    """Where the file begins to hold something: a writer that goes on at its place in a truncated file leaves a hole."""
    try:
        return os.lseek(handle, 0, os.SEEK_DATA)
    except OSError:
        return 0


def _seam(handle: int, position: int) -> int:
    size = min(position, SEAM_BYTES)
    if not size:
        return 0
    return crc32(os.pread(handle, size, position - size))


def _age(path: Path) -> float:
    """Sorts the newest first."""
    try:
        return -path.stat().st_mtime
    except OSError:
        return 0.0


def _whole(data: bytes, rest: bool, limit: int) -> bytes:
    """Cut the data at the last line's end. A line longer than a chunk is sent in parts; each part counts as a line."""
    end = data.rfind(b"\n") + 1
    if len(data) == limit:
        rest = not end
    if rest:
        return data
    return data[:end]
