"""Chunks of a file as blocks of whole lines, with memory that does not grow with the longest line."""

from collections.abc import Iterable, Iterator

from diagnoser.compress.lines import LONGEST, overwrite

MOST = 8 << 20
"""Most bytes of one line in memory before it is shortened."""
_END = LONGEST // 2 - 32
"""Bytes kept at each end of a shortened line: the compressor keeps no more of it anyway."""


def whole_lines(chunks: Iterable[bytes], most: int = MOST) -> Iterator[tuple[bytes, int]]:
    """(whole lines, bytes cut from the long ones).

    A line that grows over ``most`` bytes is shortened on the way: of screen states overwritten by carriage returns only
    the last one stays (and what is no bar), then the middle is cut.
    """
    parts: list[bytes] = []
    size = missing = 0
    for chunk in chunks:
        cut = chunk.rfind(b"\n") + 1
        if cut:
            yield b"".join((*parts, chunk[:cut])), missing
            parts, size, missing = [], 0, 0
        parts.append(chunk[cut:])
        size += len(chunk) - cut
        if size > most:
            line = b"".join(parts)
            parts = [_shortened(line, missing)]
            size = len(parts[0])
            missing += len(line) - size
    if any(parts):
        yield b"".join(parts), missing


def _shortened(line: bytes, missing: int) -> bytes:
    """The ends of a line. A state that is still being printed stays apart from the one before it."""
    length = len(line)
    if b"\r" in line:
        states, _, rest = line.rpartition(b"\r")
        line = overwrite(states) + b"\r" + rest
    if len(line) <= LONGEST:
        return line
    return line[:_END] + b" ...<%d bytes cut>... " % (missing + length - 2 * _END) + line[-_END:]
