"""Reads the data in a pickle: numbers, strings, lists, tuples, dicts, and nothing else.

Dumps are hostile input. `pickle.loads` with a `find_class` that refuses everything runs no code, but a few bytes still
make it allocate gigabytes (a memo index is the size of a table). Here a memo is a dict, opcodes that make objects do
not exist, and strings are slices of what was sent: memory is bounded by the size of the dump.
"""

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from diagnoser.model.errors import BadInput

_STOP = 0x2E
_U32 = struct.Struct("<I")


def loads(data: bytes) -> Any:
    """Protocols 2 to 5 without classes. Raises BadInput for anything else, and for a pickle that is cut short."""
    try:
        return _Reader(data).read()
    except (IndexError, struct.error, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"the pickle cannot be read: {type(error).__name__}: {error}") from None


class _Reader:
    """at: place of the next opcode or of its argument. marks: heights of the stack."""

    __slots__ = ("at", "data", "marks", "memo", "stack")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def read(self) -> Any:
        """The opcodes that dumps are full of stand here, in the order of how often they come; the others in a table."""
        data, stack, memo, others = self.data, self.stack, self.memo, _OTHERS
        push, length_of = stack.append, _U32.unpack_from
        at = 0
        while (code := data[at]) != _STOP:
            at += 1
            if code == 0x68:  # BINGET
                push(memo[data[at]])
                at += 1
            elif code == 0x71:  # BINPUT
                memo[data[at]] = stack[-1]
                at += 1
            elif code == 0x4B:  # BININT1
                push(data[at])
                at += 1
            elif code == 0x58:  # BINUNICODE
                start = at + 4
                at = start + length_of(data, at)[0]
                push(str(data[start:at], "utf-8", "replace"))
            else:
                self.at = at
                action = others.get(code)
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
    reader.memo[len(reader.memo)] = reader.stack[-1]


def _put(reader: _Reader) -> None:
    reader.memo[_U32.unpack(reader.take(4))[0]] = reader.stack[-1]


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
    value, key = reader.stack.pop(), reader.stack.pop()
    _a(dict, reader)[key] = value


def _set_items(reader: _Reader) -> None:
    items = reader.marked()
    _a(dict, reader).update(zip(items[::2], items[1::2], strict=True))


def _a(kind: type, reader: _Reader) -> Any:
    """What is on top, which must be of this kind."""
    top = reader.stack[-1]
    if type(top) is not kind:
        raise BadInput(f"the pickle fills a {type(top).__name__} as if it were a {kind.__name__}")
    return top


_OTHERS: dict[int, Callable[[_Reader], None]] = {
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
    0x94: _memoize,
    0x72: _put,
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
