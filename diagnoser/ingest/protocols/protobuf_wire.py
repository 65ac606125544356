"""Protocol Buffers on the wire: the fields of a message, without a class for it.

Log records are read so, and not into generated messages: those refuse a whole request for one record that is broken or
not UTF-8, hold all of it before anything can be bounded, and cost up to twice as much for each line. Numbers of fields
are those of the published definitions; tests compare them, and what is read, with the generated classes.
"""

from collections.abc import Iterator
from typing import NamedTuple

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_WIDTHS = {FIXED64: 8, FIXED32: 4}
_VARINT_BYTES = 10


class Malformed(ValueError):
    """Bytes that are no message."""


class WireField(NamedTuple):
    """start, stop: of the value's bytes; of a ``LENGTH`` one without its length."""

    number: int
    kind: int
    start: int
    stop: int


def fields(data: bytes, start: int, stop: int) -> Iterator[WireField]:
    """Those of the message in ``data[start:stop]``, as they come. Raises Malformed."""
    while start < stop:
        key, start = varint(data, start, stop)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            end = varint(data, start, stop)[1]
        elif kind == LENGTH:
            size, start = varint(data, start, stop)
            end = start + size
        elif kind in _WIDTHS:
            end = start + _WIDTHS[kind]
        else:
            raise Malformed(f"wire type {kind} at byte {start}")
        if end > stop or not number:
            raise Malformed(f"a field ends behind its message, at byte {start}")
        yield WireField(number, kind, start, end)
        start = end


def messages(data: bytes, start: int, stop: int, number: int) -> Iterator[tuple[int, int]]:
    """Where the messages, texts and bytes under this number begin and end. Raises Malformed."""
    for field in fields(data, start, stop):
        if field.number == number and field.kind == LENGTH:
            yield field.start, field.stop


def packed(data: bytes, start: int, stop: int, key: int) -> Iterator[tuple[int, int]]:
    """As ``messages``, for a number that nearly all fields have: keys and short lengths are read where they stand, in a
    fraction of the time. key: of one byte. Raises Malformed, or IndexError where a length leads out of the data."""
    while start < stop:
        if data[start] != key:
            start = next(fields(data, start, stop)).stop
            continue
        size = data[start + 1]
        start += 2
        if size > 0x7F:
            size, start = size & 0x7F | data[start] << 7, start + 1
            if size > 0x3FFF:
                size, start = varint(data, start - 2, stop)
        end = start + size
        if end > stop:
            raise Malformed(f"a message ends behind the one that holds it, at byte {start}")
        yield start, end
        start = end


def varint(data: bytes, start: int, stop: int) -> tuple[int, int]:
    """(the number, where it ends). Raises Malformed."""
    value = 0
    for index in range(min(stop - start, _VARINT_BYTES)):
        byte = data[start + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, start + index + 1
    raise Malformed(f"a number without an end, at byte {start}")


def signed(value: int) -> int:
    """An ``int64`` or ``int32`` as it was before it became a varint."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def encoded(number: int, value: int | bytes) -> bytes:
    """A field of a message; an ``int`` is not negative."""
    if isinstance(value, int):
        return _varint(number << 3 | VARINT) + _varint(value)
    return _varint(number << 3 | LENGTH) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)
