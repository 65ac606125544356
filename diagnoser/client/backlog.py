"""Holds lines until the service has them: in memory first, packed on disk when they pile up, and never without bound.

Whoever adds lines is never kept waiting: adding touches no disk and no network. Where both bounds are reached the
oldest lines go, and are counted.
"""

from __future__ import annotations

import os
import tempfile
import threading
import zlib
from collections import deque
from dataclasses import dataclass, field
from typing import IO, Callable

SEGMENT_BYTES = 512 << 10
LINE_BYTES = 1 << 20
"""A line longer than this is sent in parts, each of which counts as a line."""
LINGER_SECONDS = 0.5
"""How long lines wait for more of them, so that a request is worth its price."""
PARTIAL_SECONDS = 30.0
"""How long a line waits for its end: progress bars write for hours without one."""
MEMORY_BYTES = 16 << 20
SPILL_BYTES = 4 << 20
"""Held in memory before any of it goes to disk."""
DISK_BYTES = 64 << 20
GZIP_LEVEL = 1


@dataclass(eq=False)
class Segment:
    """Whole lines of one stream. first: number of lines of the stream before them.

    body: None while it is on disk, at ``place`` with ``size`` bytes. packed: it is gzip. busy: somebody works on it.
    rank: that printed them, where it is another than the launch's.
    """

    source: str
    first: int
    lines: int
    body: bytes | None
    size: int
    packed: bool = False
    place: int = -1
    busy: bool = False
    rank: int = -1


@dataclass
class _OpenSegment:
    """What has come of a stream and is no segment yet. begun, ended: when its first and its last part came."""

    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    lines: int = 0
    begun: float = 0.0


class Backlog:
    """clock: seconds, monotonic. folder: where the spool is; it has no name there, so that it goes with this process.

    ``spill`` must be called again and again beside those who add and take (``spill_forever``). All methods may be
    called from any thread.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        folder: str = "",
        *,
        memory_bytes: int = MEMORY_BYTES,
        spill_bytes: int = SPILL_BYTES,
        disk_bytes: int = DISK_BYTES,
    ) -> None:
        self._clock = clock
        self._folder = folder or None  # the usual one is looked for when it is needed: a full disk has none
        self._memory_bytes = memory_bytes
        self._spill_bytes = spill_bytes
        self._disk_bytes = disk_bytes
        self._open: dict[str, _OpenSegment] = {}
        self._segments: deque[Segment] = deque()
        self._memory = 0
        self._head = 0
        self._spool: IO[bytes] | None = None
        self._changed = threading.Condition()
        self.last_added = clock()
        self.dropped = 0
        self.disk_fault = ""

    def add(self, source: str, data: bytes) -> None:
        with self._changed:
            self.last_added = self._clock()
            opened = self._open.setdefault(source, _OpenSegment())
            if not opened.parts:
                opened.begun = self._clock()
            opened.parts.append(data)
            opened.size += len(data)
            if opened.size >= SEGMENT_BYTES:
                self._seal(source, opened)

    def flush(self) -> None:
        """The streams are over: what has come of them is whole, also a last line without its end."""
        with self._changed:
            for source, opened in self._open.items():
                self._seal(source, opened, partial=True)

    def take(self, *, newest: bool = False) -> Segment | None:
        """The oldest segment that nobody works on, or the newest; None when there is nothing to send now. Whoever takes
        it calls ``done`` or ``put_back``."""
        with self._changed:
            now = self._clock()
            for source, opened in self._open.items():
                age = now - opened.begun
                if opened.parts and age >= LINGER_SECONDS:
                    self._seal(source, opened, partial=age >= PARTIAL_SECONDS)
            order = reversed(self._segments) if newest else iter(self._segments)
            segment = next((segment for segment in order if not segment.busy), None)
            if segment is None:
                return None
            segment.busy = True
        if segment.body is None:
            segment.body = self._from_disk(segment)
        return segment

    def done(self, segment: Segment) -> None:
        """It need not be kept: the service has it, or will never take it."""
        with self._changed:
            self._remove(segment)

    def lose(self, segment: Segment) -> None:
        """Its lines cannot be had any more."""
        with self._changed:
            self._drop(segment)

    def put_back(self, segment: Segment) -> None:
        with self._changed:
            segment.busy = False
            if segment.place >= 0:
                segment.body = None

    def spill(self) -> bool:
        """Packs the oldest segment in memory and writes it to disk, if there is more in memory than there should be.
        Whether it did."""
        with self._changed:
            if self._memory <= self._spill_bytes:
                return False
            unpacked = (segment for segment in self._segments if not segment.packed)
            segment = next((segment for segment in unpacked if not segment.busy), None)
            if segment is None or segment.body is None:
                return False
            segment.busy = True
            body = segment.body
        packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
        packed = packer.compress(body) + packer.flush()
        place = self._to_disk(packed)
        with self._changed:
            self._memory -= segment.size
            segment.packed, segment.busy, segment.size, segment.place = True, False, len(packed), place
            segment.body = None
            if place < 0:  # it stays in memory, but packed
                segment.body = packed
                self._memory += segment.size
            self._bound_memory()
        return True

    def spill_forever(self) -> None:
        while True:
            if not self.spill():
                with self._changed:
                    self._changed.wait(1.0)

    def close(self) -> None:
        if self._spool is not None:
            self._spool.close()

    @property
    def waiting(self) -> int:
        with self._changed:
            unsealed = sum(part.count(b"\n") for opened in self._open.values() for part in opened.parts)
            return sum(segment.lines for segment in self._segments) + unsealed

    @property
    def held_bytes(self) -> tuple[int, int]:
        """Bytes in memory, and in the spool on disk."""
        with self._changed:
            unsealed = sum(opened.size for opened in self._open.values())
            if self._spool is None:
                return self._memory + unsealed, 0
            return self._memory + unsealed, os.fstat(self._spool.fileno()).st_size

    def _seal(self, source: str, opened: _OpenSegment, *, partial: bool = False) -> None:
        """partial: also a line that has no end yet, as far as it goes."""
        data = b"".join(opened.parts)
        end = data.rfind(b"\n") + 1
        if partial:
            end = len(data)
        elif not end:
            if len(data) < LINE_BYTES:
                opened.parts = [data]
                return
            end = len(data)
        body, rest = data[:end], data[end:]
        opened.parts, opened.size = [], len(rest)
        if rest:
            opened.parts.append(rest)
        opened.begun = self._clock()
        if not body:
            return
        lines = body.count(b"\n") + (not body.endswith(b"\n"))
        self._segments.append(Segment(source, opened.lines, lines, body, len(body)))
        opened.lines += lines
        self._memory += len(body)
        self._bound_memory()
        if self._memory > self._spill_bytes:
            self._changed.notify_all()

    def _bound_memory(self) -> None:
        while self._memory > self._memory_bytes:
            in_memory = (segment for segment in self._segments if segment.place < 0)
            oldest = next((segment for segment in in_memory if not segment.busy), None)
            if oldest is None:
                return
            self._drop(oldest)

    def _drop(self, segment: Segment) -> None:
        self.dropped += segment.lines
        self._remove(segment)

    def _remove(self, segment: Segment) -> None:
        if segment not in self._segments:
            return
        if segment.place < 0:
            self._memory -= segment.size
        if self._segments[0] is segment:
            self._segments.popleft()
        else:
            self._segments.remove(segment)

    def _reserve(self, size: int) -> int:
        """Make room in the spool: the segments that lie there are dropped. -1 where one of them is being sent."""
        with self._changed:
            if size > self._disk_bytes:
                return -1
            place = self._head
            if place + size > self._disk_bytes:
                place = 0
            overwritten = [segment for segment in self._segments if _overlaps(segment, place, place + size)]
            if any(segment.busy for segment in overwritten):
                return -1
            for segment in overwritten:
                self._drop(segment)
            self._head = place + size
            return place

    def _to_disk(self, packed: bytes) -> int:
        """Write to the spool, which is a ring. Returns the place; -1 when it cannot be written."""
        place = self._reserve(len(packed))
        if place < 0:
            return -1
        try:
            if self._spool is None:
                self._spool = tempfile.TemporaryFile(prefix="diagnoser-", dir=self._folder)  # noqa: SIM115
            _write_at(self._spool.fileno(), packed, place)
        except OSError as error:
            self._note_fault("{}: {}".format(self._folder or "the usual folder", error.strerror))
            return -1
        return place

    def _from_disk(self, segment: Segment) -> bytes:
        """Read a segment from the spool; empty when it cannot be read any more."""
        if self._spool is None:
            return b""
        try:
            return os.pread(self._spool.fileno(), segment.size, segment.place)
        except OSError as error:
            self._note_fault(str(error.strerror))
            return b""

    def _note_fault(self, fault: str) -> None:
        """Keep the first fault of the disk: it says why the others came."""
        if not self.disk_fault:
            self.disk_fault = fault


def _overlaps(segment: Segment, start: int, stop: int) -> bool:
    if segment.place < 0:
        return False
    return segment.place < stop and start < segment.place + segment.size


def _write_at(handle: int, data: bytes, place: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, place)
        view, place = view[written:], place + written
