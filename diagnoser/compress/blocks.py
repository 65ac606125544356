"""Chunks of a file as blocks of whole lines, with memory that does not grow with the longest line."""

from collections.abc import Iterable, Iterator

from diagnoser.compress.lines import LONGEST, overwrite

MOST = 8 << 20
"""Bytes of one line that are held before it is shortened."""
_END = LONGEST // 2 - 32
"""Bytes at both ends of a shortened line: no more of them will be kept anyway."""


def whole_lines(chunks: Iterable[bytes], most: int = MOST) -> Iterator[tuple[bytes, int]]:
    """(whole lines, bytes that are missing of their long ones).

    A line that grows over ``most`` bytes is shortened on the way: of screen states that carriage returns paint over the
    last one stays (and what is no bar), then the middle goes.
    """
    parts: list[bytes] = []
    held = missing = 0
    for chunk in chunks:
        cut = chunk.rfind(b"\n") + 1
        if cut:
            yield b"".join((*parts, chunk[:cut])), missing
            parts, held, missing = [], 0, 0
        parts.append(chunk[cut:])
        held += len(chunk) - cut
        if held > most:
            line = b"".join(parts)
            parts = [_shortened(line, missing)]
            held = len(parts[0])
            missing += len(line) - held
    if any(parts):
        yield b"".join(parts), missing


def _shortened(line: bytes, missing: int) -> bytes:
    """The ends of a line. A state that is still being printed stays apart from the one before it."""
    length = len(line)
    if b"\r" in line:
        whole, _, rest = line.rpartition(b"\r")
        line = overwrite(whole) + b"\r" + rest
    if len(line) <= LONGEST:
        return line
    return line[:_END] + b" ...<%d bytes cut>... " % (missing + length - 2 * _END) + line[-_END:]
