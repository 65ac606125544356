"""Reads what a log file has gained since last time, in whole lines and bounded chunks."""

import os
import stat
from dataclasses import dataclass, replace
from zlib import crc32

from diagnoser.agent.state_file import LogOffset
from diagnoser.model.errors import BadInput

CHUNK_BYTES = 1 << 20
SEAM_BYTES = 256


@dataclass(frozen=True, slots=True)
class LogChunk:
    """body: whole lines. first: number of lines before it. offset: where the next chunk begins. anew: the file was
    truncated or replaced, so it is read from its beginning."""

    body: bytes
    first: int
    offset: LogOffset
    anew: bool = False


def read_chunk(
    path: str, offset: LogOffset, uid: int, *, rest: bool = False, limit: int = CHUNK_BYTES
) -> LogChunk | None:
    """The next whole lines, None when there are none. rest: also take a last line without a line break.

    uid: who must own the file. A job may name any path as its output, and this may run as root. Raises BadInput for a
    file that is not the owner's or not a plain file, OSError when it cannot be read.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != uid:
            raise BadInput(f"{path}: not a plain file of the job's user")
        anew = bool(offset.inode) and (status.st_ino != offset.inode or _seam(handle, offset.position) != offset.seam)
        place, lines = (0, 0 if offset.first else offset.lines) if anew else (offset.position, offset.lines)
        body = _whole(os.pread(handle, limit, place), rest, limit)
        end = place + len(body)
        seam = _seam(handle, end)
    finally:
        os.close(handle)
    if not body:
        return None
    count = body.count(b"\n") + (not body.endswith(b"\n"))
    after = replace(offset, inode=status.st_ino, position=end, lines=lines + count, seam=seam, first=False)
    return LogChunk(body, lines, after, anew)


def end_of(path: str, uid: int) -> LogOffset:
    """The offset behind everything that is there now; as when ``read_chunk`` it raises."""
    offset = LogOffset()
    while chunk := read_chunk(path, offset, uid, rest=True):
        offset = chunk.offset
    return offset


def _seam(handle: int, place: int) -> int:
    size = min(place, SEAM_BYTES)
    return crc32(os.pread(handle, size, place - size)) if size else 0


def _whole(data: bytes, rest: bool, limit: int) -> bytes:
    """Up to the last line's end. A line longer than a chunk is sent in parts; each part counts as a line."""
    end = data.rfind(b"\n") + 1
    if end and (len(data) == limit or not rest):
        return data[:end]
    return data if rest or len(data) == limit else b""
