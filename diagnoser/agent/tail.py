"""Reads what a log file has gained since last time, in whole lines and bounded pieces."""

import os
import stat
from dataclasses import dataclass
from zlib import crc32

from diagnoser.model.errors import BadInput

PIECE_BYTES = 1 << 20
SEAM_BYTES = 256


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a file has been read. inode: which file it was (0: none yet). place: in bytes. lines: before it.

    seam: checksum of the bytes just before the place. A file that was cut and has grown past it since differs there.
    first: nothing of this launch has been read yet, so that its lines count from one when the file begins anew.
    """

    inode: int = 0
    place: int = 0
    lines: int = 0
    seam: int = 0
    first: bool = True


@dataclass(frozen=True, slots=True)
class Piece:
    """body: whole lines. first: number of lines before it. mark: where the next piece begins. anew: the file had been
    cut or replaced, so that it is read from its beginning."""

    body: bytes
    first: int
    mark: Mark
    anew: bool = False


def read(path: str, mark: Mark, uid: int, *, rest: bool = False, limit: int = PIECE_BYTES) -> Piece | None:
    """The next whole lines, None when there is none. rest: take a last line without its end too.

    uid: who must own the file. A job may name any path as its output, and this may run as root. Raises BadInput for a
    file that is not the owner's or not a plain file, OSError when it cannot be read.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != uid:
            raise BadInput(f"{path}: not a plain file of the job's user")
        anew = bool(mark.inode) and (status.st_ino != mark.inode or _seam(handle, mark.place) != mark.seam)
        place, lines = (0, 0 if mark.first else mark.lines) if anew else (mark.place, mark.lines)
        body = _whole(os.pread(handle, limit, place), rest, limit)
        end = place + len(body)
        seam = _seam(handle, end)
    finally:
        os.close(handle)
    if not body:
        return None
    count = body.count(b"\n") + (not body.endswith(b"\n"))
    return Piece(body, lines, Mark(status.st_ino, end, lines + count, seam, first=False), anew)


def end_of(path: str, uid: int) -> Mark:
    """The mark behind everything that is there now; as when ``read`` it raises."""
    mark = Mark()
    while piece := read(path, mark, uid, rest=True):
        mark = piece.mark
    return mark


def _seam(handle: int, place: int) -> int:
    size = min(place, SEAM_BYTES)
    return crc32(os.pread(handle, size, place - size)) if size else 0


def _whole(data: bytes, rest: bool, limit: int) -> bytes:
    """Up to the last line's end. A line longer than a piece is handed on in parts; each part counts as a line."""
    end = data.rfind(b"\n") + 1
    if end and (len(data) == limit or not rest):
        return data[:end]
    return data if rest or len(data) == limit else b""
