"""Reads the data in a pickle: numbers, strings, lists, tuples and dicts, and nothing else.

Dumps are hostile input. `pickle.loads` with a `find_class` that refuses everything runs no code, but a few bytes still
make it allocate gigabytes (a memo index is the size of a table), and a tuple of tuples as a key of a dict takes it
ages, or its stack, to hash. The reader here knows no opcodes that make objects, its memo has no gaps, a key is a
string, strings are slices of what was sent, and the number of values is bounded.

What torch itself writes is a small part of the format: only strings have a place in the memo, and a tuple is a pair of
strings. Where a pickle is of that part, and its memo small, nothing of the above can happen: then `pickle` reads it.
"""

import io
import pickle
import re
import struct
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NoReturn

from diagnoser.model.errors import BadInput

BYTES_MAX = 16 << 20
"""Twenty thousand operations with their stacks are about 10 MiB."""
_COSTLY = b"]}(\x85\x86\x87\x94"
_COSTLY_MAX = 4_000_000
"""Most bytes that may each stand for 50 to 100 bytes in memory: a container, a mark or a place in the memo."""
_STOP = 0x2E
_U32 = struct.Struct("<I")
_STRING_KEYS = {str}
_LONG_STRING = 0x58
_PUT = rb"(?:q.|r..[\x00-\x0f]\x00)?"
"""A place among the first million of the memo."""
_LENGTHS = b"|".join(rb"\x%02x\x00\x00\x00[^\xed]{%d}" % (length, length) for length in range(200))
"""Short strings. Where they have a byte that may begin half a character (0xed), they are looked at one by one."""
_STRING = rb"(?:X(?:%b)%b|h.|j....)" % (_LENGTHS, _PUT)
_NUMBER = rb"(?:K.|M..|J....|\x8a\x08.{8}|G.{8})"
_CONTAINER = rb"(?:[]}]\(?|[eu]%b)" % _PUT
_AFTER_STRING = re.compile(_PUT, re.DOTALL)


@cache
def _torch() -> re.Pattern[bytes]:
    """Up to 1000 values in the form in which torch writes: a repeat remembers where each of its steps began. Compiled
    with the first dump: it takes longer than to read one."""
    return re.compile(rb"(?s)(?:%b(?:%b\x86)?|%b|%b|[N\x88\x89]){1,1000}" % (_STRING, _STRING, _NUMBER, _CONTAINER))


def loads(data: bytes) -> Any:
    """Protocols 2 to 5 without classes. Raises BadInput for anything else, and for a pickle that is cut short."""
    if len(data) > BYTES_MAX:
        raise BadInput(f"a pickle of {len(data)} bytes is larger than {BYTES_MAX}")
    if len(data) - len(data.translate(None, delete=_COSTLY)) > _COSTLY_MAX:
        raise BadInput("the pickle makes more values than a dump has")
    try:
        return _Unpickler(io.BytesIO(data)).load() if _is_of_torch(data) else _Reader(data).read()
    except (IndexError, struct.error, TypeError, ValueError, AttributeError, EOFError, pickle.UnpicklingError) as error:
        raise BadInput(f"the pickle cannot be read: {type(error).__name__}: {error}") from None


def _is_of_torch(data: bytes) -> bool:
    """Whether all of it, opcode by opcode, is in the form in which torch writes."""
    if data[:2] != b"\x80\x02":
        return False
    at = 2
    while (match := _torch().match(data, at)) or data[at] == _LONG_STRING:
        if match:
            at = match.end()
            continue
        start = at + 5
        end = start + int.from_bytes(data[start - 4 : start], "little")
        data[start:end].decode()
        after = _AFTER_STRING.match(data, end)
        at = after.end() if after else end
    return data[at] == _STOP


class _Unpickler(pickle.Unpickler):
    """It is only given what has no opcode that looks a name up; should it meet one, it refuses."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise BadInput(f"the pickle asks for more than data ({module}.{name})")


class _Reader:
    """at: place of the next opcode or of its argument. marks: heights of the stack."""

    __slots__ = ("at", "data", "marks", "memo", "stack")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[Any] = []

    def read(self) -> Any:
        """Strings and what is in the memo stand here, for they are most of a dump; the other opcodes in a table."""
        data, stack, memo, opcodes = self.data, self.stack, self.memo, _OPCODES
        at = 0
        while (code := data[at]) != _STOP:
            at += 1
            if code == 0x68:  # BINGET
                stack.append(memo[data[at]])
                at += 1
            elif code == 0x58:  # BINUNICODE
                start = at + 4
                at = start + _U32.unpack_from(data, at)[0]
                stack.append(str(data[start:at], "utf-8", "replace"))
            else:
                self.at = at
                action = opcodes.get(code)
                if action is None:
                    raise BadInput(f"the pickle asks for more than data (opcode {code:#04x} at byte {at - 1})")
                action(self)
                at = self.at
        return stack.pop()

    def take(self, count: int) -> bytes:
        start, self.at = self.at, self.at + count
        if self.at > len(self.data):
            raise BadInput("the pickle is cut short")
        return self.data[start : self.at]

    def marked(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items


def _integer(width: int, reader: _Reader) -> None:
    reader.stack.append(int.from_bytes(reader.take(width), "little", signed=width > 2))


def _long(reader: _Reader) -> None:
    reader.stack.append(int.from_bytes(reader.take(reader.take(1)[0]), "little", signed=True))


def _float(reader: _Reader) -> None:
    reader.stack.append(struct.unpack(">d", reader.take(8))[0])


def _text(width: int, reader: _Reader) -> None:
    reader.stack.append(str(reader.take(int.from_bytes(reader.take(width), "little")), "utf-8", "replace"))


def _bytes(width: int, reader: _Reader) -> None:
    reader.stack.append(reader.take(int.from_bytes(reader.take(width), "little")))


def _skip(width: int, reader: _Reader) -> None:
    reader.take(width)


def _constant(value: Any, reader: _Reader) -> None:
    reader.stack.append(value)


def _new(kind: Callable[[], Any], reader: _Reader) -> None:
    reader.stack.append(kind())


def _mark(reader: _Reader) -> None:
    reader.marks.append(len(reader.stack))


def _memoize(reader: _Reader) -> None:
    reader.memo.append(reader.stack[-1])


def _put(width: int, reader: _Reader) -> None:
    """Places are numbered as they come: a gap would be room that nothing was sent for."""
    place, memo = int.from_bytes(reader.take(width), "little"), reader.memo
    if place > len(memo):
        raise BadInput(f"the pickle's memo has a gap before {place}")
    memo[place : place + 1] = [reader.stack[-1]]


def _get(reader: _Reader) -> None:
    reader.stack.append(reader.memo[_U32.unpack(reader.take(4))[0]])


def _tuple(length: int, reader: _Reader) -> None:
    items = tuple(reader.stack[-length:])
    del reader.stack[-length:]
    reader.stack.append(items)


def _marked_tuple(reader: _Reader) -> None:
    reader.stack.append(tuple(reader.marked()))


def _append(reader: _Reader) -> None:
    value = reader.stack.pop()
    _a(list, reader).append(value)


def _appends(reader: _Reader) -> None:
    values = reader.marked()
    _a(list, reader).extend(values)


def _set_item(reader: _Reader) -> None:
    reader.marks.append(len(reader.stack) - 2)
    _set_items(reader)


def _set_items(reader: _Reader) -> None:
    items = reader.marked()
    keys = items[::2]
    if not _STRING_KEYS.issuperset(map(type, keys)):
        raise BadInput("the pickle has a dict with a key that is no string")
    _a(dict, reader).update(zip(keys, items[1::2], strict=True))


def _a(kind: type, reader: _Reader) -> Any:
    """Look at the top of the stack, which must be of this kind."""
    top = reader.stack[-1]
    if type(top) is not kind:
        raise BadInput(f"the pickle fills a {type(top).__name__} as if it were a {kind.__name__}")
    return top


_OPCODES: dict[int, Callable[[_Reader], None]] = {
    0x4B: partial(_integer, 1),
    0x4D: partial(_integer, 2),
    0x4A: partial(_integer, 4),
    0x8A: _long,
    0x47: _float,
    0x8C: partial(_text, 1),
    0x8D: partial(_text, 8),
    0x43: partial(_bytes, 1),
    0x42: partial(_bytes, 4),
    0x8E: partial(_bytes, 8),
    0x80: partial(_skip, 1),  # PROTO
    0x95: partial(_skip, 8),  # FRAME
    0x4E: partial(_constant, None),
    0x88: partial(_constant, True),
    0x89: partial(_constant, False),
    0x29: partial(_constant, ()),
    0x5D: partial(_new, list),
    0x7D: partial(_new, dict),
    0x28: _mark,
    0x71: partial(_put, 1),
    0x72: partial(_put, 4),
    0x94: _memoize,
    0x6A: _get,
    0x85: partial(_tuple, 1),
    0x86: partial(_tuple, 2),
    0x87: partial(_tuple, 3),
    0x74: _marked_tuple,
    0x61: _append,
    0x65: _appends,
    0x73: _set_item,
    0x75: _set_items,
}
