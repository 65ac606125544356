"""Reads the data in a pickle: numbers, strings, lists, tuples and dicts, and nothing else.

Dumps are hostile input. `pickle.loads` with a `find_class` that refuses everything runs no code, but a few bytes still
make it allocate gigabytes (a memo index is the size of a table), and a tuple of tuples as a key of a dict takes it
ages, or its stack, to hash. The reader here knows no opcodes that make objects, its memo is a dict, a key is a string,
and the number of values is bounded.

What torch itself writes is a small part of the format: only strings have a place in the memo, and a tuple is a pair of
strings. Where a pickle is of that part, and its memo small, nothing of the above can happen: then `pickle` reads it.
"""

import io
import pickle
import re
import struct
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NoReturn

from diagnoser.model.errors import BadInput

BYTES_MAX = 16 << 20
"""Twenty thousand operations with their stacks are about 10 MiB."""
_COSTLY = b"]}(\x85\x86\x87\x94"
_COSTLY_MAX = 4_000_000
"""Most bytes that may each stand for 50 to 100 bytes in memory: a container, a mark or a place in the memo."""
_UNREADABLE = (LookupError, struct.error, TypeError, ValueError, AttributeError, EOFError)
_STOP = 0x2E
_STRING_KEYS = {str}
_DATA = "\x80\x95N\x88\x89KMJ\x8aGX\x8c\x8dCB\x8e)\x85\x86\x87t](ae}suqr\x94hj."
"""Opcodes of plain data: protocol and frame, constants, numbers, strings, bytes, tuples, lists, dicts, the memo."""
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
        reader = _Unpickler if _is_of_torch(data) else _Reader
        return reader(io.BytesIO(data)).load()
    except (*_UNREADABLE, pickle.UnpicklingError) as error:
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


class _DataOpcodes(dict[int, Callable[[Any], None]]):
    """Opcode -> method that carries it out. What is not here is refused."""

    def __missing__(self, opcode: int) -> NoReturn:
        raise BadInput(f"the pickle asks for more than data (opcode {opcode:#04x})")


_Python: Any = pickle._Unpickler


class _Reader(_Python):  # type: ignore[misc]
    """The library's reader in Python, without the opcodes that make objects. A place in its memo takes room only when
    something is put there, and what is read is never longer than what was sent. Half a character, which a pickle may
    hold and no database or page takes, raises UnicodeEncodeError."""

    dispatch = _DataOpcodes((ord(code), _Python.dispatch[ord(code)]) for code in _DATA)

    def load_setitem(self) -> None:
        _check_keys(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        _check_keys(self.stack[::2])
        super().load_setitems()

    def load_binunicode(self) -> None:
        super().load_binunicode()
        self.stack[-1].encode()

    def load_short_binunicode(self) -> None:
        super().load_short_binunicode()
        self.stack[-1].encode()

    def load_binunicode8(self) -> None:
        super().load_binunicode8()
        self.stack[-1].encode()

    dispatch[ord("s")], dispatch[ord("u")] = load_setitem, load_setitems
    dispatch[ord("X")], dispatch[0x8C], dispatch[0x8D] = load_binunicode, load_short_binunicode, load_binunicode8


def _check_keys(keys: Iterable[object]) -> None:
    if not _STRING_KEYS.issuperset(map(type, keys)):
        raise BadInput("the pickle has a dict with a key that is no string")
