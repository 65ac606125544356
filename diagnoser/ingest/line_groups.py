"""Lines on their way to blocks, grouped by the attempt and stream they belong to."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from diagnoser.ingest.batch import LINES_LIMIT, Batch, Place, Unattributed, check_count
from diagnoser.model import DAEMON, KERNEL_SOURCES, LineBlock, Stream

YEAR_2000, YEAR_2100 = 946_684_800.0, 4_102_444_800.0
"""What is outside is no time of a line."""
SAMPLE_BYTES = 4000

ReadTimes = Callable[[list[Any]], Sequence[float]]
"""The times of a group as a protocol writes them -> seconds since the epoch, NaN where unknown."""


@dataclass(slots=True)
class LineGroup:
    """Texts of one stream, mostly a line each; a shipper may join those of a stack. times: one a text, as the protocol
    writes them: read all at once, they cost a tenth."""

    texts: list[bytes] = field(default_factory=list)
    times: list[Any] = field(default_factory=list)


class LineGroups:
    """The lines of one request, those included that belong to nothing."""

    def __init__(self) -> None:
        self._by_place: dict[Place | Unattributed, LineGroup] = {}

    def __len__(self) -> int:
        return len(self._by_place)

    def at(self, place: Place | Unattributed) -> LineGroup:
        group = self._by_place.get(place)
        if group is None:
            group = self._by_place[place] = LineGroup()
        return group

    def into(self, batch: Batch, received: float, *, first: int = 0, read_times: ReadTimes = list) -> None:
        """first: number of the first line, 0 for those that are numbered when they are committed. Raises TooLarge."""
        for place, group in self._by_place.items():
            if not group.texts:
                continue
            if isinstance(place, Unattributed):
                batch.leave_out(place, len(group.texts), group.texts[0][:SAMPLE_BYTES].decode("utf-8", "replace"))
            else:
                batch.add(place.target, _block(place.stream, group.texts, read_times(group.times), first, received))


def one_line(stream: Stream, text: bytes) -> bytes:
    """The message as one line, where a second one could pass as a message of the kernel: a path may hold a line feed,
    which ``/dev/kmsg`` writes so."""
    if stream.source in KERNEL_SOURCES or stream.source == DAEMON:
        return text.removesuffix(b"\n").replace(b"\n", b"\\x0a")
    return text


def _block(stream: Stream, texts: Sequence[bytes], times: Sequence[float], first: int, received: float) -> LineBlock:
    data = b"\n".join(texts)
    if data.count(b"\n") >= len(texts):
        texts = [one_line(stream, text) for text in texts]
        data = b"\n".join(texts)
    if data.count(b"\n") >= len(texts):
        texts, times = _single_lines(texts, times)
        data = b"\n".join(texts)
    if not texts[-1]:
        data += b"\n"  # an empty line at the end is one
    known = None if all(map(math.isnan, times)) else tuple(times)
    return LineBlock(stream, data, first, known, received)


def _single_lines(texts: Sequence[bytes], times: Sequence[float]) -> tuple[list[bytes], list[float]]:
    lines: list[bytes] = []
    of_lines: list[float] = []
    for text, time in zip(texts, times, strict=True):
        parts = text.removesuffix(b"\n").split(b"\n")
        lines += parts
        of_lines += [time] * len(parts)
        check_count(len(lines), LINES_LIMIT, "lines")
    return lines, of_lines
